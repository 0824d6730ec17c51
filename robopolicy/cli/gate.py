"""`robopolicy gate`: decide from recorded episodes, or in a world model, whether a policy is better than its base."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from robopolicy.cli.gate_world import in_world
from robopolicy.config.schema import Count, Fraction, Node, Seed
from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.core.trees import flatten
from robopolicy.core.types import BASE_ACTION
from robopolicy.datasets.compatibility import misfits
from robopolicy.datasets.episodes import Episodes, concatenate, take
from robopolicy.datasets.episodes import held_out as held_out_of
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.evaluation.gate_text import text, without_run
from robopolicy.evaluation.off_policy_evaluation import UPDATES, GateResult
from robopolicy.evaluation.off_policy_evaluation import gate as decide
from robopolicy.evaluation.policy_ref import PolicyRef
from robopolicy.policies.residual import ZERO_ACTION
from robopolicy.runs.checkpointer import load_policy
from robopolicy.runs.inputs import same_input, there, unchanged_input
from robopolicy.runs.logger import Tracker
from robopolicy.runs.run_dir import CONFIG, read_config
from robopolicy.utils.atomic import write_atomically
from robopolicy.utils.threads import set_threads

FILE = "decision.json"  # in out=
_HELD_OUT = "loop.held_out"

Learner = tuple[str, Path | None, dict[str, Any]]  # name in messages, run, config


def gate(
    *,
    candidate: Path,
    base: Path | None = None,
    dataset: Path | None = None,
    rollouts: dict[str, Path] | None = None,
    held_out: Fraction | None = None,
    world: Node | None = None,
    level: Fraction = 0.9,
    updates: Count | None = None,
    out: Path | None = None,
    seed: Seed = 0,
    threads: Count | None = None,
) -> GateResult:
    """Judge `candidate` against `base` by fitted Q evaluation on held-out episodes of `dataset`, or in a `world`.

    No env step is taken.

    Args:
        candidate: run, checkpoint or policy directory. base: the same of the reference; None: the candidate's base.
        dataset: recorded rollouts (LeRobotDataset v3), with failures and successes; None: only with a `world`.
        rollouts: further ones, {name: path}, that are judged on too.
        held_out: share of the dataset's episodes that is read; None: as both policies' trainings left out, or all
            where neither learned from this dataset.
        world: node of an imagined env. Both policies then play imagined episodes from starts that its model was not
            trained on, or from those of `world.starts`, and no dataset is read.
        level: confidence of each bound; the candidate is accepted where the lower bound of its gain is above 0.
        updates: TD steps of each policy's critic, more where success takes long; None: 1,500. Not in a world.
        out: folder of decision.json; None: it is only printed.
        seed: of resamples and batches. threads: of torch; None: its choice.

    Raises:
        ConfigError: the base is not known, one of the policies learned from the episodes or in the world, or neither or
            both of a dataset and a world are given. SpecError, DataError: see joined and
            robopolicy.evaluation.off_policy_evaluation.gate. CheckpointError: not a trained world model.
    """
    set_threads(threads)
    named = {"dataset": dataset, **{f"rollouts.{name}": path for name, path in (rollouts or {}).items()}}
    datasets = {key: path for key, path in named.items() if path is not None}
    _check_sources(datasets, world, {"held_out": held_out, "updates": updates})
    run, config = run_of(candidate)
    base = base or _own_base(candidate, run, config)
    base_run, base_config = run_of(base)
    learners = [*lineage("candidate", run, config), *lineage("base", base_run, base_config)]
    if world is not None:
        result = in_world(candidate, base, world, learners, level=level, seed=seed)
    else:
        shares = unseen_shares(datasets, learners, held_out)
        result = _on_episodes(candidate, base, datasets, shares, level=level, seed=seed, updates=updates or UPDATES)
    alone = tuple(name for name, found in (("candidate", run), ("base", base_run)) if found is None)
    result = replace(result, without_run=alone)
    print(text(result), *without_run(result), sep="\n")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / FILE, json.dumps(asdict(result), indent=1) + "\n")
    return result


def _own_base(candidate: Path, run: Path | None, config: dict[str, Any]) -> Path:
    """Return the policy that a run refined; raise ConfigError where it is not known, gone, or another one now."""
    given = config.get("base")
    if run is None or not given or given == ZERO_ACTION:
        raise ConfigError(f"base: {candidate} does not say which policy it refines. Give base=<run directory>.")
    if (path := unchanged_input(run, "base", given)) is None:
        found = "nothing lies there now" if there(given) is None else "another policy lies there now"
        raise ConfigError(
            f"base: {candidate} was refined from {given}, and {found}. Give base=<run directory or checkpoint> of the "
            "policy that it began with."
        )
    return path


def _check_sources(datasets: dict[str, Path], world: Node | None, others: dict[str, Any]) -> None:
    if world is None and "dataset" not in datasets:
        raise ConfigError(
            "dataset: needs a value, recorded rollouts to judge on: dataset=data/rollouts. Or judge in a world model: "
            "world=imagined world.model=<run directory of train algo=world_model>."
        )
    given = [*datasets, *(key for key, value in others.items() if value is not None)]
    if world is not None and given:
        raise ConfigError(
            f"{', '.join(given)}: a gate in a world model reads no rollouts, its model was trained on them. Leave them "
            "away, or leave world away."
        )


def _on_episodes(
    candidate: Path, base: Path, datasets: dict[str, Path], shares: dict[str, float], **settings: Any
) -> GateResult:
    """Judge by fitted Q evaluation on a share of each dataset's episodes."""
    policies = load_policy(candidate), load_policy(base)
    needed = {k: f for policy in policies for k, f in policy.spec.observation.items() if k != BASE_ACTION}
    whole = {key: load_episodes(path, needed=needed) for key, path in datasets.items()}
    unseen = joined({f"{key}={datasets[key]}": take(e, held_out_of(e, shares[key])) for key, e in whole.items()})
    return decide(*policies, unseen, tracker=Tracker(), **settings)


def joined(parts: dict[str, Episodes]) -> Episodes:
    """Join episodes of several datasets, {key=path: episodes}.

    Raises:
        SpecError: features, actions, rate or tasks of one differ from the first's.
    """
    first = next(iter(parts.values()))
    for name, part in parts.items():
        problems = misfits(first, part, needs="the dataset", offers=name)
        if part.tasks != first.tasks:
            problems.append(f"tasks: the dataset has {first.tasks}, {name} has {part.tasks}")
        if problems:
            raise SpecError(f"{name}: does not fit the first dataset:\n  - " + "\n  - ".join(problems))
    return first if len(parts) == 1 else concatenate(list(parts.values()))


def run_of(policy: Path) -> tuple[Path | None, dict[str, Any]]:
    """Return the run that a policy was trained in, and its config; without a run None and {}."""
    run = PolicyRef.of(policy, "latest", policy).run
    return run, (read_config(run) if run is not None else None) or {}


def lineage(name: str, run: Path | None, config: dict[str, Any]) -> Iterator[Learner]:
    """Yield (name, run, config) of a policy, and of the policies and world models that it learned from or in, as far as
    they still lie there.

    What a teacher, a base or a model learned from shows in its student.
    """
    seen, ahead = set[Path](), [(name, run, config)]
    while ahead:
        called, at, its = ahead.pop(0)
        if at is not None and at.resolve() in seen:
            continue
        seen |= {at.resolve()} if at is not None else set()
        yield called, at, its
        for key in ("teacher", "base"):
            if isinstance(text := its.get(key), str) and (path := there(text)) is not None and path.is_dir():
                ahead.append((f"{called}'s {key}", *run_of(path)))
        flat = flatten(its)
        for key in ("world.model", "loop.synthetic.model", "loop.init"):
            if isinstance(text := flat.get(key), str) and (path := there(text)) is not None:
                model = next((p for p in (path, *path.parents[:3]) if (p / CONFIG).is_file()), None)
                ahead.append((f"{called}'s {key}", model, (read_config(model) if model else None) or {}))


def unseen_shares(datasets: dict[str, Path], learners: list[Learner], held_out: float | None) -> dict[str, float]:
    """Return the share of each dataset's episodes that no policy learned from; see unseen_share."""
    return {
        key: min(unseen_share(run, config, path, held_out, policy=name) for name, run, config in learners)
        for key, path in datasets.items()
    }


def unseen_share(
    run: Path | None, config: dict[str, Any], dataset: Path, share: float | None, *, policy: str = "candidate"
) -> float:
    """Return the share of the episodes to judge on; those that the policy learned from are refused."""
    loop, flat = config.get("loop") or {}, flatten(config)
    keys = [k for k in flat if k in ("dataset", "world.dataset") or k.startswith(("loop.rollouts.", "loop.data."))]
    found = [key for key in keys if run is not None and same_input(run, key, flat[key], str(dataset))]
    if not found:
        return 1.0 if share is None else share
    if whole := [key for key in found if not key.startswith("loop.rollouts.")]:
        raise ConfigError(
            f"dataset={dataset}: the {policy} learned from all of it, as its {whole[0]}=. Give episodes that it did "
            "not learn from: record others."
        )
    kept = float(loop.get("held_out") or 0.0)
    share = kept if share is None else share
    if not 0.0 < share <= kept:
        raise ConfigError(
            f"dataset={dataset}: the {policy} learned from it as {found[0]}, and {_HELD_OUT}={kept:g} of its episodes "
            f"were left out; found held_out={share:g}. Train with {_HELD_OUT}=0.25, or record other episodes."
        )
    return share

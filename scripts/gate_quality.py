"""Decisions of `robopolicy gate` beside true success: how often it accepts a policy that is not better than its base.

    python scripts/gate_quality.py [--tasks pick stack] [--seeds 0 1] [--estimators world_model] [--record]

A base plays 300 episodes, which are recorded. Candidates are the checkpoints along the trainings of METHODS. Most learn
from three quarters of the episodes and improve the policy. Those of the base's demonstrations, imitated once more by
another seed, are seldom better than the base. Truth is the paired difference of success on the validation episodes.

fitted_q: fitted Q evaluation on the other quarter of the episodes. world_model: imagined episodes, in a model of all
episodes and the demonstrations. Bases are made as in scripts/experiments.py. Trainings that are complete, and decisions
that are kept as lines of JSON beside them, are not made again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robopolicy.cli.pipeline_gate import MODEL
from robopolicy.config.instantiate import build
from robopolicy.core.rng import episode_seeds
from robopolicy.datasets.episodes import held_out, take
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.evaluation.gate_checks import check_policies
from robopolicy.evaluation.off_policy_evaluation import (
    HEADS,
    UPDATES,
    GateResult,
    decided,
    fitted_values,
    updates_needed,
)
from robopolicy.evaluation.rollout import evaluate
from robopolicy.evaluation.statistics import wilson
from robopolicy.reporting.result_rows import Evidence, measured, write
from robopolicy.runs.checkpointer import load_policy
from robopolicy.utils.provenance import commit
from robopolicy.utils.threads import set_threads
from robopolicy.world_models.evaluation.imagined_gain import decided_beside, played
from scripts.experiment_plan import BASES as PLANNED
from scripts.experiment_plan import Base
from scripts.experiments import record_rollouts, robopolicy, train_base
from scripts.kept_lines import Line, keep_line, kept_lines

ROOT, ID = Path(__file__).resolve().parents[1], "gate_quality"
BASES = {task: PLANNED[task] for task in ("pick", "stack", "push", "drawer", "reach")}
METHODS = {  # overrides of `robopolicy train`
    "preset": ("algo=offline",),
    "even": ("algo=offline", "algo.beta=100"),  # all executed chunks count alike, failures too: near the base
    "fast": ("algo=offline", "algo.actor_lr=3e-3"),
    "again": ("algo=bc", "loop.steps=3000", "loop.save_every=600"),  # the base's demonstrations imitated once more
}
HELD_OUT, ROLLOUTS, EPISODES = 0.25, 300, 300
OTHER_SEEDS = 100  # of the imitation that is not the base
CRITIC_ONLY = 2_000  # updates before the policy changes
LARGE = 0.10  # a true gain that the gate should see


class Judged(NamedTuple):
    """A candidate: its name, the decision, and the true gain of success."""

    name: str
    accepted: bool
    gain: float
    low: float
    true: float


@dataclass(frozen=True)
class Study:
    """A base and a training seed: what was recorded and trained in `start`, and learned from it in `here`."""

    base: Base
    seed: int
    start: Path
    here: Path

    @property
    def rollouts(self) -> Path:
        return self.start / f"rollouts-{ROLLOUTS}"

    def train(self, name: str, *words: str) -> Path:
        robopolicy("train", f"run_dir={self.here / name}", "tracker=local", "threads=1", *words,
                   threads=1, log=self.here / "log.txt")  # fmt: skip
        return self.here / name

    def kept(self, what: str, paths: Sequence[Path], level: float, judged: Callable[..., Iterator[Line]]) -> list[Line]:
        """Return a line for each path: those on disk, and new ones of `judged`, which are kept."""
        file = self.here / f"{what}.jsonl"
        lines = kept_lines(file, {"level": level, "commit": commit()})
        left = paths[len(lines) :]
        for line in judged(self, left, level) if left else ():
            lines.append(line)
            keep_line(file, line)
            print(f"{self.here.name}: {what}: {json.dumps(line)}", flush=True)
        return lines


def candidates(study: Study) -> list[Path]:
    """Train, and return the checkpoints along every method."""
    data, policy = study.start / "data", study.start / "bc"
    found = list[Path]()
    offline = (
        f"base={policy}", f"loop.rollouts.own={study.rollouts}", f"loop.held_out={HELD_OUT}", f"seed={study.seed}",
        "loop.save_every=250", f"loop.critic_only_updates={CRITIC_ONLY}",
    )  # fmt: skip
    for name, (algo, *overrides) in METHODS.items():
        more = offline if algo == "algo=offline" else (f"seed={OTHER_SEEDS + study.seed}",)
        run = study.train(name, algo, f"task={study.base.task}", f"dataset={data}", "keep_checkpoints=100",
                          *more, *overrides)  # fmt: skip
        saved = sorted((run / "checkpoints").glob("step_*"))
        first = CRITIC_ONLY if more is offline else 0  # checkpoints before it are the base
        found += [path for path in saved if int(path.name.removeprefix("step_")) > first]
    return found


def truth(study: Study, paths: Sequence[Path], level: float) -> Iterator[Line]:
    """Yield the difference of success to the base on the validation episodes."""
    env = build({"_target_": "native", "task": study.base.task}, "task", num_envs=100, seed=0)
    seeds = episode_seeds("validation", 0, EPISODES)
    before, *rates = (evaluate(load_policy(path), env, seeds, policy_id=path.name).success_rate().value
                      for path in (study.start / "bc", *paths))  # fmt: skip
    for path, rate in zip(paths, rates, strict=True):
        yield {"name": name_of(study, path), "true": rate - before}


def fitted_q(study: Study, paths: Sequence[Path], level: float) -> Iterator[Line]:
    """Yield the decisions on the held-out episodes."""
    reference = load_policy(study.start / "bc")
    rollouts = load_episodes(study.rollouts, needed=dict(reference.spec.observation))
    unseen = take(rollouts, held_out(rollouts, HELD_OUT))
    reader = check_policies(reference, reference, unseen)
    updates = max(UPDATES, updates_needed(unseen, reader.spec.n_action_steps))
    fit = partial(fitted_values, base=reader, episodes=unseen, seed=study.seed, heads=HEADS, updates=updates)
    value = fit(reference)  # of the base: `gate` fits it for every candidate again
    for path in paths:
        yield line_of(study, path, decided(fit(load_policy(path)), value, level=level, episodes=unseen.num_episodes))


def world_model(study: Study, paths: Sequence[Path], level: float) -> Iterator[Line]:
    """Yield the decisions by imagined episodes."""
    data = (f"dataset={study.rollouts}", f"loop.data.demos={study.start / 'data'}")
    run = study.train("world", *MODEL, *data, "seed=0")
    env = build({"_target_": "imagined", "model": run, "even_if_imprecise": True}, "world", num_envs=1, seed=0)
    base = played(load_policy(study.start / "bc"), env)
    for path in paths:
        yield line_of(study, path, decided_beside(base, load_policy(path), level=level))


ESTIMATORS = {"fitted_q": fitted_q, "world_model": world_model}


def line_of(study: Study, path: Path, result: GateResult) -> Line:
    return {"name": name_of(study, path), "accepted": result.accepted, "gain": result.gain, "low": result.low}


def name_of(study: Study, path: Path) -> str:
    return f"{study.here.name}/{path.parents[1].name}/{path.name}"


def judge(out: Path, base: Base, seed: int, level: float, estimators: Sequence[str]) -> dict[str, list[Judged]]:
    """Return the decisions of each estimator about every candidate of one base, beside its true gain."""
    name = f"{base.name}-{seed}"
    study = Study(base, seed, out / "bases" / name, out / ID / name)
    train_base(out, base, seed, 1)
    record_rollouts(base, study.start, seed, ROLLOUTS, 1)
    paths = candidates(study)
    true = {line["name"]: line["true"] for line in study.kept("truth", paths, level, truth)}
    return {
        each: [Judged(**line, true=true[line["name"]]) for line in study.kept(each, paths, level, ESTIMATORS[each])]
        for each in estimators
    }


def rows_of(setting: str, judged: list[Judged], level: float) -> list[Evidence]:
    """Return the rates of false and of true acceptance, and the share of accepted candidates that are not better."""
    wrong = [j.accepted for j in judged if j.true <= 0.0]
    large = [j.accepted for j in judged if j.true >= LARGE]
    not_better = [j.true <= 0.0 for j in judged if j.accepted]
    about = f"{len(judged)} candidates, level {level:g}, {sum(j.accepted for j in judged)} accepted"
    return [
        measured(id=ID, setting=setting, metric=metric, interval=wilson(sum(found), len(found)), notes=(
            f"{about}; over {len(found)} {which}"), episodes=EPISODES)
        for metric, found, which in (
            ("false_acceptance", wrong, "candidates that are not better than their base"),
            ("true_acceptance", large, f"candidates that gain at least {100 * LARGE:g} points"),
            ("accepted_not_better", not_better, "accepted candidates"),
        ) if found
    ]  # fmt: skip


def gain_of(task: str, seed: int, judged: list[Judged]) -> Evidence:
    """Return the true gain of algo=offline, the last candidate of the preset."""
    last = [j for j in judged if "/preset/" in j.name][-1]
    return measured(
        id=ID, setting=task, metric="gain_points", interval=round(100 * last.true, 3), seeds=seed, episodes=EPISODES,
        notes=f"algo=offline from {ROLLOUTS} rollouts, {last.name}",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/experiments"), help="run directories go here")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="training seeds")
    parser.add_argument("--tasks", choices=BASES, nargs="+", default=list(BASES))
    parser.add_argument("--estimators", choices=ESTIMATORS, nargs="+", default=list(ESTIMATORS))
    parser.add_argument("--level", type=float, default=0.9)
    parser.add_argument("--record", action="store_true", help=f"add to docs/results/{ID}.json")
    options = parser.parse_args()
    set_threads(1)
    found: dict[str, list[Judged]] = {each: [] for each in options.estimators}
    rows = list[Evidence]()
    for task in options.tasks:
        by_seed = {seed: judge(options.out.resolve(), BASES[task], seed, options.level, options.estimators)
                   for seed in options.seeds}  # fmt: skip
        rows += [gain_of(task, seed, next(iter(judged.values()))) for seed, judged in by_seed.items()]
        for each in options.estimators:
            mine = [j for judged in by_seed.values() for j in judged[each]]
            rows += rows_of(f"{each}/{task}", mine, options.level)
            found[each] += mine
    whole = set(options.tasks) == set(BASES) and set(options.seeds) == {0, 1}  # a part has no rows over all
    every = [row for each, judged in found.items() for row in rows_of(f"{each}/all", judged, options.level) if whole]
    for row in every:
        print(f"{row.setting} {row.metric} {row.value:.3f} ({row.low:.3f} to {row.high:.3f}); {row.notes}")
    if options.record:
        print(*write([*rows, *every], root=ROOT / "docs" / "results"), file=sys.stderr)


if __name__ == "__main__":
    main()

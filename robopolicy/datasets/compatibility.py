"""Check that base and data, imagined and true env, and a run and its checkpoint fit together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from robopolicy.core.errors import CheckpointError, SpecError
from robopolicy.core.specs import PolicySpec, changes, check_action_spec, check_features
from robopolicy.core.types import BASE_ACTION, TASK, EnvSpec
from robopolicy.core.untrusted import read_json
from robopolicy.datasets.episodes import Episodes


def check_same_data(spec: PolicySpec, episodes: Episodes, *, base: Path, dataset: Path) -> None:
    """Raise SpecError with all differences between a base's spec and the dataset of a training on it."""
    problems = misfits(spec, episodes, needs="the base", offers="the dataset")
    if problems:
        hint = "Is one of them of another task?"
        if all(p.startswith(("action.low", "action.high")) for p in problems):
            hint = ("Limits that were taken from the data differ between recordings of one arm. Give both datasets "
                    "the arm's own, robopolicy data import dataset=… 'action.low=[…]' 'action.high=[…]', and train the "
                    "base again.")  # fmt: skip
        raise SpecError(f"base={base} and dataset={dataset} do not fit:\n  - " + "\n  - ".join(problems) + f"\n{hint}")


def misfits(
    needed: Episodes | EnvSpec | PolicySpec, offered: Episodes | EnvSpec | PolicySpec, *, needs: str, offers: str,
    skip: Iterable[str] = (),
) -> list[str]:  # fmt: skip
    """Return all differences in features, actions and rate, one sentence each; `needs` and `offers` name both sides.

    Args:
        skip: features that are needed and do not count; `base_action` never does.
    """
    features = {k: v for k, v in needed.observation.items() if k not in {BASE_ACTION, *skip}}
    one, other = (x.action_spec if isinstance(x, Episodes) else x.action for x in (needed, offered))
    problems = check_features(features, offered.observation, needs=needs, offers=offers)
    problems += check_action_spec(one, other, needs=needs, offers=offers)
    if not abs(needed.dt - offered.dt) <= 1e-6:
        problems.append(f"dt: {needs} has a step every {needed.dt} s, {offers} every {offered.dt} s")
    return problems


def number_tasks(episodes: Episodes, spec: PolicySpec) -> Episodes:
    """Return the episodes with `task_index` counted in the instructions of `spec`, matched by their text.

    Where `spec` reads no `task_index`, or counts as the episodes do, they are returned unchanged.

    Raises:
        SpecError: `spec` lacks the instruction of an episode.
    """
    if TASK not in spec.observation or TASK not in episodes.obs or episodes.tasks == spec.tasks:
        return episodes
    index = episodes.obs[TASK]
    number = task_numbers(episodes.tasks, spec.tasks, used=index.unique().tolist()).to(index.device)
    return replace(episodes, obs={**episodes.obs, TASK: number[index]}, tasks=spec.tasks)


def task_numbers(
    tasks: tuple[str, ...], known: tuple[str, ...], *, used: Iterable[int] | None = None,
    holds: str = "the dataset", whose: str = "the policy",
) -> Tensor:  # fmt: skip
    """Return the number of each of `tasks` in `known`, [T] int64, matched by text; −1 where it is unused and unknown.

    Args:
        used: numbers in `tasks` that occur; None: all. holds, whose: owners of `tasks` and of `known`, for the error.

    Raises:
        SpecError: `known` lacks one that is used.
    """
    if missing := [tasks[i] for i in (range(len(tasks)) if used is None else used) if tasks[i] not in known]:
        raise SpecError(
            f"tasks: {holds} has {'; '.join(missing[:5])}, and {whose} knows {'; '.join(known[:5])}. They must be "
            "the same to the letter: leave the former out, or choose tasks that include them."
        )
    return torch.tensor([known.index(text) if text in known else -1 for text in tasks])


def check_same_spec(checkpoint: Path, spec: PolicySpec) -> None:
    """Raise CheckpointError unless `spec`, of data and env as they are now, is the one that a run began with.

    Weights are valid only under the spec of their training.
    """
    saved = PolicySpec.from_data(read_json(checkpoint / "policy" / "spec.json", finite=False))
    found = changes(saved, spec)
    if found:
        raise CheckpointError(
            f"{checkpoint}: data and env are not those that the run began with:\n  - " + "\n  - ".join(found) + "\n"
            "Restore them (dataset, task, code of the env) to resume it, or give a new run_dir."
        )


def check_same_statistics(
    checkpoint: Path, fitted: Mapping[str, Tensor], saved: Mapping[str, Tensor], *, dataset: Path | None
) -> None:
    """Raise CheckpointError where the normaliser, `fitted` to the dataset, is not the one that was `saved`.

    This detects other demonstrations with the same spec.
    """
    for name in (n for n in fitted if n.startswith("normalizer.") and n in saved):
        own, other = fitted[name].cpu(), saved[name].cpu()
        if own.shape == other.shape and not torch.allclose(own, other, rtol=1e-3):
            was, now = (x.flatten()[(own - other).abs().argmax()] for x in (other, own))
            raise CheckpointError(
                f"{checkpoint}: dataset={dataset} differs from the data of the run: {name} was "
                f"{float(was):.4g} and is {float(now):.4g} when fitted to it. Restore it, or give a new run_dir."
            )


def check_same_world(imagined: EnvSpec, true: EnvSpec) -> None:
    """Raise SpecError with all differences between an imagined env and the true one that it stands for."""
    problems = misfits(imagined, true, needs="the world model", offers="the task")
    if imagined.tasks != true.tasks:
        problems.append(f"tasks: the world model knows {imagined.tasks}, the task is {true.tasks}")
    if problems:
        raise SpecError(f"world: {imagined.id} is not of task={true.id}:\n  - " + "\n  - ".join(problems))

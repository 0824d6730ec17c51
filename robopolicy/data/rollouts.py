"""Recorded rollouts for an off-policy learner, of as many datasets as there are, joined and checked against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from robopolicy.data.episodes import Episodes, concatenate
from robopolicy.data.lerobot import load_episodes
from robopolicy.data.tables import DRIVERS
from robopolicy.errors import DataError, SpecError
from robopolicy.fits import data_problems
from robopolicy.policies.base import Policy
from robopolicy.types import BASE_ACTION

_POLICY = DRIVERS.index("policy")


def load_rollouts(datasets: Mapping[str, Path], policy: Policy) -> Episodes:
    """All of `datasets`, {name: path}, in a row, with what `policy` and the base underneath it read.

    Where a dataset does not say who drove, a policy did.

    Raises:
        SpecError: one of them lacks something, is of other actions, another rate, or other tasks than the first.
        DataError: one of them has neither rewards nor successes.
    """
    reader, parts = policy if policy.base is None else policy.base, list[Episodes]()
    needed = {k: f for k, f in reader.spec.observation.items() if k != BASE_ACTION}
    for name, path in datasets.items():
        part = load_episodes(path, needed=needed)
        problems = data_problems(reader.spec, part, needs="the policy")
        if parts and part.tasks != parts[0].tasks:
            problems.append(f"tasks: {next(iter(datasets))} has {parts[0].tasks}, the dataset has {part.tasks}")
        if problems:
            raise SpecError(f"loop.rollouts.{name}={path} does not fit:\n  - " + "\n  - ".join(problems))
        if not part.outcomes:
            raise DataError(
                f"loop.rollouts.{name}={path}: has neither rewards nor successes, so nothing can be learned from it. "
                "Leave it out, or annotate it (robopolicy.data.lerobot.annotate_dataset)."
            )
        driver = torch.full((part.num_frames,), _POLICY) if part.driver is None else part.driver
        parts.append(replace(part, driver=driver))
    return concatenate(parts)

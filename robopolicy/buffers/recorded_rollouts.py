"""Load recorded rollouts of several datasets for an off-policy learner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from robopolicy.core.errors import DataError, SpecError
from robopolicy.core.types import BASE_ACTION
from robopolicy.datasets.compatibility import data_problems
from robopolicy.datasets.episodes import Episodes, concatenate
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.datasets.tables import DRIVERS
from robopolicy.policies.base import Policy

_POLICY = DRIVERS.index("policy")


def load_rollouts(datasets: Mapping[str, Path], policy: Policy) -> Episodes:
    """Load and join `datasets`, {name: path}, with the observations that `policy` or its base reads.

    A dataset without a driver column counts as driven by a policy.

    Raises:
        SpecError: a dataset lacks an observation, or its actions, rate or tasks differ from the first's.
        DataError: a dataset has neither rewards nor successes.
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
                "Leave it out, or annotate it (robopolicy.datasets.lerobot_reader.annotate_dataset)."
            )
        driver = torch.full((part.num_frames,), _POLICY) if part.driver is None else part.driver
        parts.append(replace(part, driver=driver))
    return concatenate(parts)

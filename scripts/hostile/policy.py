"""The policy of the node under attack: it waves. By itself it is the process that plans, of ProcessPlanner.

python -m scripts.hostile.policy WIRING CHECKPOINT OPTIONS DESCRIPTOR
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch

from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import STATE, ActionSpec, Feature
from robopolicy.policies.base import Policy
from robopolicy.real.planning import process_planner
from robopolicy.real.planning.planner import Planner

CAMERA, PICTURE = "observation.images.front", (3, 24, 32)
HOME = np.array([0.0, 0.0459777, 0.0, -2.3761762, 0.0, 2.4221521, 0.7853982])
PERIOD, REACH = 1.6, np.array([0.25, 0.1, 0.15, 0.12, 0.2, 0.15, 0.3])  # s; rad to either side of home
GRIP_PERIOD = 1.2  # s between closing and closing


class Wave(Policy):
    """All joints to and fro about home by the clock, the gripper open and closed by turns."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        self.spec = spec

    def act(self, obs: Any, *, noise: Any = None, deterministic: bool = False) -> torch.Tensor:
        at = time.monotonic() + self.spec.dt * np.arange(self.spec.horizon)
        phase = 2 * np.pi * (at[:, None] / PERIOD + np.arange(7) / 7)
        grip = np.where(at % GRIP_PERIOD < GRIP_PERIOD / 2, 0.07, 0.01)
        chunk = np.concatenate([HOME + REACH * np.sin(phase), grip[:, None]], axis=1)
        return torch.from_numpy(chunk).float()[None]


def policy_of(wiring: str) -> Wave:
    """For an arm by its preset's name; only the simulated one has a camera."""
    joints = [f"{'fr3' if wiring == 'fr3' else 'panda'}_joint{i}.pos" for i in range(1, 8)]
    action = ActionSpec(
        names=(*joints, "gripper"), units=(*("rad",) * 7, "m"), low=(*(-3.0,) * 7, 0.0), high=(*(4.0,) * 7, 0.08),
        frame="joint", tcp="tcp", rotation="joint", reference="absolute", gripper=7, gripper_meaning="opening",
    )  # fmt: skip
    seen = {STATE: Feature((7,), names=tuple(joints))}
    if wiring != "fr3":
        seen[CAMERA] = Feature(PICTURE, "uint8")
    return Wave(PolicySpec(seen, action, 0.04, 1, 8, 4, ("wave",)))


def main() -> None:
    wiring = sys.argv.pop(1)
    process_planner.planner_of = lambda *_, **__: Planner(policy_of(wiring))  # type: ignore[assignment]
    process_planner.main()


if __name__ == "__main__":
    main()

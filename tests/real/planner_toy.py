"""A planner's process with a toy in it; see tests/real/planning/test_process_planner.py."""

from __future__ import annotations

import os
import time

import numpy as np

from robopolicy.real.planning import process_planner


class Toy:
    """Answers with what it was asked; does as `kind` says in step 3."""

    history = 2

    def __init__(self, kind: str) -> None:
        self.kind, self.seed = kind, -1

    def reset(self, seed: int) -> None:
        self.seed = seed

    def plan(self, obs, step, ahead=None):
        if step == 3 and self.kind == "raises":
            raise ZeroDivisionError("of the policy")
        if step == 3 and self.kind == "dies":
            os._exit(3)
        if step == 3 and self.kind == "hangs":
            time.sleep(100)
        told = [] if ahead is None else [ahead.delay, *ahead.actions.ravel()]
        return np.array([[self.seed, step, float(obs["x"].sum()), *told]])


if __name__ == "__main__":
    process_planner.planner_of = lambda checkpoint, kind: Toy(kind)
    process_planner.main()

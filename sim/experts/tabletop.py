"""Scripted expert of the tabletop task."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from robopolicy.core.types import TASK, Obs
from robopolicy.sim.experts.waypoints import Expert, Groups, Phase, Targets
from robopolicy.sim.tasks.scene import Array, Bool
from robopolicy.sim.tasks.tabletop_goals import COLOURS, CUBES, PRESS


class TabletopExpert(Expert):
    """Go above (or behind) the object that the instruction names, descend, close, then lift, push or press."""

    phases = 4
    offset = (0.014, 0.014, 0.008, 0.3)
    noise = 1.0
    task: Any  # Tabletop, whose module imports this one

    def act(self, obs: Obs) -> Tensor:
        self.goal = self.task.goal_of(obs[TASK].numpy())  # [N]
        return super().act(obs)

    def plan(self, f: Groups, phase: Phase) -> Targets:
        n, goal, tcp = np.arange(self.num_envs), self.goal, f["tcp"]
        pick, push = goal < CUBES, (goal >= CUBES) & (goal < PRESS)
        rel = np.stack([*(f[f"{c}_rel"] for c in COLOURS), f["button_rel"]], axis=1)
        turn = np.stack([*(f[f"{c}_turn"] for c in COLOURS), 0 * f["yaw"]], axis=1)
        which = np.where(goal == PRESS, CUBES, goal % CUBES)
        aim = tcp + rel[n, which] + self.bias[:, :3]
        first, early = phase == 0, phase <= 1
        at, kind = np.array([0.0, 0.0, 0.08]), [pick[:, None], push[:, None]]
        behind = aim * [1, 1, 0] + np.array([-0.06, 0, 0])
        above = np.select(kind, [aim + at, behind + at], aim + at)
        there = np.select(kind, [aim, behind + [0, 0, 0.02]], aim + [0, 0, 0.015])
        # A push aims 1 cm a step beyond contact: slowly, or the cube tips.
        forth = aim * [1, 1, 0] + [-0.016, 0, 0.02]
        last = np.select(kind, [tcp * [1, 1, 0] + [0, 0, 0.20], forth], aim - [0, 0, 0.02])
        pos = np.select([first[:, None], (phase <= 2)[:, None]], [above, there], last)
        held = f["yaw"] + f["lag"][:, 3]
        yaw = np.where(pick, np.where(early, f["yaw"] + turn[n, which] + self.bias[:, 3], held), 0.0)
        return pos, yaw, np.where(pick & early, 1.0, -1.0)

    def done(self, f: Groups, phase: Phase, gap: Array, turn: Array, clock: Array) -> Bool:
        pick = self.goal < CUBES
        return np.select(
            [phase == 0, phase == 1, phase == 2],
            [
                (gap < 0.02) & (turn < 0.1) | (clock > 25),
                (gap < np.where(pick, 0.006, 0.01)) | (clock > 12),
                (clock >= 5) | ~pick,
            ],
            False,
        )

    def retry(self, f: Groups, phase: Phase) -> Bool:
        """Return whether the cube was lost on the way up, or slipped aside of the push."""
        n, which = np.arange(self.num_envs), self.goal % CUBES
        rel = np.stack([f[f"{c}_rel"] for c in COLOURS], axis=1)[n, which]
        lost = (self.goal < CUBES) & (f["tcp"][:, 2] > 0.09) & (rel[:, 2] < -0.05)
        push = (self.goal >= CUBES) & (self.goal < PRESS)
        return (phase == 3) & (lost | push & ((np.abs(rel[:, 1]) > 0.03) | (rel[:, 0] < 0.0)))

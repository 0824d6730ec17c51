"""Scripted experts for ManiSkill's cubes: where to be is a function of the observation alone, so errors are mended.

All lengths in m. A step at action 1 asks for 0.1 m or 0.1 rad more than measured; the arm does about 0.4 of it, which
`gain` makes up for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from robopolicy.core.types import Obs
from robopolicy.sim.experts.quaternion_utils import face_to, quarter, yaw
from robopolicy.sim.experts.suites import Target, ToolExpert, instead, over_and_down

HALF = 0.02  # of a cube's side
CLEAR = 0.06  # above what must not be touched
OPEN, CLOSED = 1.0, -1.0


class CubeExpert(ToolExpert):
    """Straight to the target."""

    offset, noise = 0.15, 0.15
    gain, turn_gain = 17.0, -17.0  # the suite turns the other way round

    def read(self, obs: Obs) -> dict[str, Tensor]:
        f = super().read(obs)
        (tool, quat), (cube, cube_quat) = (f[key].split([3, 4], dim=1) for key in ("tcp", "cube"))
        return {**f, "tool": tool, "quat": quat, "object": cube, "object_quat": cube_quat}


def reach_and_grasp(f: dict[str, Tensor]) -> Target:
    """Over the cube, then down on it like a funnel, then close: as `CubeExpert.target`."""
    turn = quarter(yaw(f["object_quat"]) - yaw(f["quat"]))
    where, there = over_and_down(f, turn, clear=CLEAR, slack=(0.008, 0.15), near=(0.015, 0.01))
    return where, turn, torch.where(there, CLOSED, OPEN)


class PickCube(CubeExpert):
    """Grasp the cube and bring it to the goal."""

    def target(self, f: dict[str, Tensor]) -> Target:
        carry = f["tool"] + f["goal"] - f["object"]
        return instead(reach_and_grasp(f), f["held"][:, 0] > 0.5, carry, CLOSED)


class StackCube(CubeExpert):
    """Grasp the red cube, lift it over the green one, set it down, let go."""

    def target(self, f: dict[str, Tensor]) -> Target:
        tcp, cube, base = f["tool"], f["object"], f["base"][:, :3]
        width = f["qpos"][:, 7:9].sum(1)
        held = (width < 2 * HALF + 0.006) & ((cube - tcp).norm(dim=1) < 0.02)
        gap = base - cube
        off = gap[:, :2].norm(dim=1)
        on = (off < 0.015) & ((gap[:, 2] + 2 * HALF).abs() < 0.004)
        # Up first, across once the cube is higher than the other, down where it is over it.
        high = base[:, 2] + 2 * HALF + (4 * (off - 0.01)).clamp(0.0, 0.03)
        across = (cube[:, 2] > base[:, 2] + 2 * HALF - 0.01) | (off < 0.02)
        carry = tcp.clone()
        carry[:, :2] += torch.where(across[:, None], gap[:, :2], 0.0)
        carry[:, 2] += high - cube[:, 2]
        carried = instead(reach_and_grasp(f), held, carry, CLOSED)
        return instead(carried, on, tcp, OPEN)  # stand still while the fingers open


class PushCube(CubeExpert):
    """Go behind the cube with closed fingers, and push it along x."""

    def target(self, f: dict[str, Tensor]) -> Target:
        tcp, cube, goal = f["tool"], f["object"], f["goal"]
        behind = cube[:, 0] - HALF - 0.06
        ready = (tcp[:, 0] < cube[:, 0] - HALF) & ((tcp - cube)[:, 1].abs() < 0.012) & (tcp[:, 2] < 0.05)
        low = (tcp[:, 0] < behind + 0.03) & ((tcp - cube)[:, 1].abs() < 0.05)
        where = torch.stack([behind, cube[:, 1], torch.where(low, HALF, 0.1)], dim=1)
        push = torch.stack([goal[:, 0], cube[:, 1], torch.full_like(behind, HALF)], dim=1)
        where = torch.where(ready[:, None], push, where)
        return where, face_to(f["quat"], 0.0), torch.full_like(behind, CLOSED)


EXPERTS: dict[str, type[CubeExpert]] = {"PickCube-v1": PickCube, "PushCube-v1": PushCube, "StackCube-v1": StackCube}

"""Scripted experts for ManiSkill's cubes: where to be is a function of the observation alone, so errors are mended.

All lengths in m. A step at action 1 asks for 0.1 m or 0.1 rad more than measured; the arm does about 0.4 of it, which
`GAIN` makes up for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from robopolicy.core.types import Obs
from robopolicy.sim.experts.quaternion_utils import down, face_to, quarter, yaw
from robopolicy.sim.experts.suites import ToolExpert

GAIN = 17.0  # 1/m, 1/rad: action per remaining way
HALF = 0.02  # of a cube's side
CLEAR = 0.06  # above what must not be touched
OPEN, CLOSED = 1.0, -1.0


class CubeExpert(ToolExpert):
    """Straight to the target."""

    offset, noise = 0.15, 0.15

    def plan(self, obs: Obs) -> Tensor:
        f = self.read(obs)
        where, turn, gripper = self.target(f)
        move = GAIN * (where - f["tcp"][:, :3])
        move = move / move.abs().amax(1, keepdim=True).clamp(min=1.0)  # straight on, at full speed
        tilt = down(f["tcp"][:, 3:])
        return torch.cat([move, -GAIN * tilt[:, :2], -GAIN * turn[:, None], gripper[:, None]], dim=1)


def reach_and_grasp(f: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Over the cube, then down on it like a funnel, then close: as `CubeExpert.target`."""
    tcp, cube = f["tcp"][:, :3], f["cube"][:, :3]
    turn = quarter(yaw(f["cube"][:, 3:]) - yaw(f["tcp"][:, 3:]))
    off = (cube - tcp)[:, :2].norm(dim=1)
    wrong = 4 * (off - 0.008) + 0.2 * (turn.abs() - 0.15).clamp(min=0.0)
    where = cube.clone()
    where[:, 2] += wrong.clamp(0.0, CLEAR)
    there = (off < 0.015) & ((cube - tcp)[:, 2].abs() < 0.01) & (turn.abs() < 0.3)
    return where, turn, torch.where(there, CLOSED, OPEN)


class PickCube(CubeExpert):
    """Grasp the cube and bring it to the goal."""

    def target(self, f: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        where, turn, gripper = reach_and_grasp(f)
        held = f["held"][:, 0] > 0.5
        carry = f["tcp"][:, :3] + f["goal"] - f["cube"][:, :3]
        return (
            torch.where(held[:, None], carry, where),
            torch.where(held, 0.0, turn),
            torch.where(held, CLOSED, gripper),
        )


class StackCube(CubeExpert):
    """Grasp the red cube, lift it over the green one, set it down, let go."""

    def target(self, f: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        where, turn, gripper = reach_and_grasp(f)
        tcp, cube, base = f["tcp"][:, :3], f["cube"][:, :3], f["base"][:, :3]
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
        where = torch.where(held[:, None], carry, where)
        turn, gripper = torch.where(held, 0.0, turn), torch.where(held, CLOSED, gripper)
        where = torch.where(on[:, None], tcp, where)  # stand still while the fingers open
        return where, torch.where(on, 0.0, turn), torch.where(on, OPEN, gripper)


class PushCube(CubeExpert):
    """Go behind the cube with closed fingers, and push it along x."""

    def target(self, f: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        tcp, cube, goal = f["tcp"][:, :3], f["cube"][:, :3], f["goal"]
        behind = cube[:, 0] - HALF - 0.06
        ready = (tcp[:, 0] < cube[:, 0] - HALF) & ((tcp - cube)[:, 1].abs() < 0.012) & (tcp[:, 2] < 0.05)
        low = (tcp[:, 0] < behind + 0.03) & ((tcp - cube)[:, 1].abs() < 0.05)
        where = torch.stack([behind, cube[:, 1], torch.where(low, HALF, 0.1)], dim=1)
        push = torch.stack([goal[:, 0], cube[:, 1], torch.full_like(behind, HALF)], dim=1)
        where = torch.where(ready[:, None], push, where)
        return where, face_to(f["tcp"][:, 3:], 0.0), torch.full_like(behind, CLOSED)


EXPERTS: dict[str, type[CubeExpert]] = {"PickCube-v1": PickCube, "PushCube-v1": PushCube, "StackCube-v1": StackCube}

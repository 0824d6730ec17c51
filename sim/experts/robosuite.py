"""Scripted experts for robosuite's Lift and Can: where to be is a function of the observation alone.

All lengths in m. A step at action 1 asks for 0.05 m or 0.5 rad more than measured.
"""

from __future__ import annotations

import torch
from torch import Tensor

from robopolicy.core.types import Obs
from robopolicy.sim.experts.quaternion_utils import down, quarter, yaw
from robopolicy.sim.experts.suites import ToolExpert

GAIN = 20.0  # 1/m: action per remaining way; critically damped, as the controller is
TURN = 2.0  # 1/rad
OPEN, CLOSED = -1.0, 1.0
GOAL = (0.1975, 0.4025)  # x, y of the can's place: the far quarter of the right bin
OVER = 1.05  # height at which a can is carried over the wall between the bins


class BinExpert(ToolExpert):
    """Straight to the target."""

    offset, noise = 0.2, 0.3

    def plan(self, obs: Obs) -> Tensor:
        f = self.read(obs)
        f = {key: value[:, [3, 0, 1, 2]] if key.endswith("quat") else value for key, value in f.items()}  # w first
        where, turn, gripper = self.target(f)
        move = GAIN * (where - f["tool"])
        move = move / move.abs().amax(1, keepdim=True).clamp(min=1.0)  # straight on, at full speed
        tilt = down(f["quat"])
        return torch.cat([move, TURN * tilt[:, :2], TURN * turn[:, None], gripper[:, None]], dim=1)


def reach_and_grasp(f: dict[str, Tensor], turn: Tensor, *, clear: float) -> tuple[Tensor, Tensor]:
    """Over the object, then down on it like a funnel, then close: tool position [N 3], gripper [N].

    `clear`: height above the object until the tool is over it.
    """
    gap = f["object"] - f["tool"]
    off = gap[:, :2].norm(dim=1)
    wrong = 4 * (off - 0.01) + 0.2 * (turn.abs() - 0.2).clamp(min=0.0)
    where = f["object"].clone()
    where[:, 2] += wrong.clamp(0.0, clear)
    there = (off < 0.018) & (gap[:, 2].abs() < 0.012) & (turn.abs() < 0.3)
    return where, torch.where(there, CLOSED, OPEN)


def width(f: dict[str, Tensor]) -> Tensor:
    """Return the opening [N] of the fingers; 0.08 where they are open."""
    return f["fingers"][:, 0] - f["fingers"][:, 1]


class Lift(BinExpert):
    """Grasp the cube and lift it."""

    def target(self, f: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        turn = quarter(yaw(f["object_quat"]) - yaw(f["quat"]))
        where, gripper = reach_and_grasp(f, turn, clear=0.06)
        held = (width(f) < 0.046) & ((f["object"] - f["tool"]).norm(dim=1) < 0.025)
        up = f["tool"] + torch.tensor([0.0, 0.0, 0.05])
        return (
            torch.where(held[:, None], up, where),
            torch.where(held, 0.0, turn),
            torch.where(held, CLOSED, gripper),
        )


class Can(BinExpert):
    """Grasp the can, carry it over the wall between the bins, let it fall into its quarter."""

    def target(self, f: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        tool, can = f["tool"], f["object"]
        turn = quarter(-yaw(f["quat"]))  # it is round: keep the fingers along the walls
        where, gripper = reach_and_grasp(f, turn, clear=0.1)
        held = (width(f) < 0.07) & ((can - tool).norm(dim=1) < 0.035)
        off = (torch.tensor(GOAL) - can[:, :2]).norm(dim=1)
        across = (can[:, 2] > OVER - 0.08) | (off < 0.05)
        carry = tool.clone()
        carry[:, :2] += torch.where(across[:, None], torch.tensor(GOAL) - can[:, :2], 0.0)
        carry[:, 2] += torch.where(off > 0.05, OVER, 0.95) - can[:, 2]
        over = (off < 0.07) & (can[:, 2] < 0.98)  # open here, then go up: opening takes some steps
        away = tool.clone()
        away[:, 2] += torch.where(width(f) > 0.07, 0.1, 0.0)
        where = torch.where(held[:, None], carry, where)
        where = torch.where(over[:, None], away, where)
        gripper = torch.where(over, OPEN, torch.where(held, CLOSED, gripper))
        return where, torch.where(held | over, 0.0, turn), gripper


EXPERTS: dict[str, type[BinExpert]] = {"Lift": Lift, "Can": Can}

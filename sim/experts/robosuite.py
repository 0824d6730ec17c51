"""Scripted experts for robosuite's Lift, Can and square nut: where to be is a function of the observation alone.

All lengths in m. A step at action 1 asks for 0.05 m or 0.5 rad more than measured.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from robopolicy.core.types import Obs
from robopolicy.sim.experts.quaternion_utils import half, quarter, yaw
from robopolicy.sim.experts.suites import Target, ToolExpert, instead, over_and_down

OPEN, CLOSED = -1.0, 1.0
GOAL = (0.1975, 0.4025)  # x, y of the can's place: the far quarter of the right bin
OVER = 1.05  # height at which a can is carried over the wall between the bins
PEG = (0.23, 0.1)  # x, y of the square peg
PEG_TOP = 0.95
HANDLE = 0.064  # from the middle of the nut to where its handle is grasped, beyond the nut's corners


class BinExpert(ToolExpert):
    """Straight to the target."""

    offset, noise = 0.2, 0.3
    gain, turn_gain = 20.0, 2.0  # critically damped, as the controller is

    def read(self, obs: Obs) -> dict[str, Tensor]:
        return {k: v[:, [3, 0, 1, 2]] if k.endswith("quat") else v for k, v in super().read(obs).items()}  # w first


def reach_and_grasp(f: dict[str, Tensor], turn: Tensor, *, clear: float, slack: float = 0.01) -> Target:
    """Over the object, then down on it like a funnel, then close: as `BinExpert.target`.

    `clear`: height above the object until the tool is over it. `slack`: how far off it may go all the way down.
    """
    where, there = over_and_down(f, turn, clear=clear, slack=(slack, 0.2), near=(0.018, 0.012))
    return where, turn, torch.where(there, CLOSED, OPEN)


def width(f: dict[str, Tensor]) -> Tensor:
    """Return the opening [N] of the fingers; 0.08 where they are open."""
    return f["fingers"][:, 0] - f["fingers"][:, 1]


class Lift(BinExpert):
    """Grasp the cube and lift it."""

    def target(self, f: dict[str, Tensor]) -> Target:
        turn = quarter(yaw(f["object_quat"]) - yaw(f["quat"]))
        held = (width(f) < 0.046) & ((f["object"] - f["tool"]).norm(dim=1) < 0.025)
        up = f["tool"] + torch.tensor([0.0, 0.0, 0.05])
        return instead(reach_and_grasp(f, turn, clear=0.06), held, up, CLOSED)


class Can(BinExpert):
    """Grasp the can, carry it over the wall between the bins, let it fall into its quarter."""

    def target(self, f: dict[str, Tensor]) -> Target:
        tool, can = f["tool"], f["object"]
        turn = quarter(-yaw(f["quat"]))  # it is round: keep the fingers along the walls
        held = (width(f) < 0.07) & ((can - tool).norm(dim=1) < 0.035)
        off = (torch.tensor(GOAL) - can[:, :2]).norm(dim=1)
        across = (can[:, 2] > OVER - 0.08) | (off < 0.05)
        carry = tool.clone()
        carry[:, :2] += torch.where(across[:, None], torch.tensor(GOAL) - can[:, :2], 0.0)
        carry[:, 2] += torch.where(off > 0.05, OVER, 0.95) - can[:, 2]
        over = (off < 0.07) & (can[:, 2] < 0.98)  # open here, then go up: opening takes some steps
        away = tool.clone()
        away[:, 2] += torch.where(width(f) > 0.07, 0.1, 0.0)
        carried = instead(reach_and_grasp(f, turn, clear=0.1), held, carry, CLOSED)
        return instead(carried, over, away, OPEN)


class Square(BinExpert):
    """Grasp the nut at its handle, carry it over the peg, turn it to the peg's sides, lower it."""

    def target(self, f: dict[str, Tensor]) -> Target:
        tool, nut, angle = f["tool"], f["object"], yaw(f["object_quat"])
        handle = nut + HANDLE * torch.stack([angle.cos(), angle.sin(), torch.zeros_like(angle)], dim=1)
        grasp_turn = half(half(angle) - yaw(f["quat"]))
        where, turn, gripper = reach_and_grasp({**f, "object": handle}, grasp_turn, clear=0.06, slack=0.005)
        held = (width(f) < 0.04) & ((handle - tool).norm(dim=1) < 0.03)
        # Its handle may not point away from the arm, which does not reach so far.
        ahead = angle.abs() < math.pi / 4
        aligned = torch.where(ahead, torch.copysign(angle.new_tensor(math.pi / 2), angle) - angle, quarter(-angle))
        off = (torch.tensor(PEG) - nut[:, :2]).norm(dim=1)
        high = nut[:, 2] > PEG_TOP + 0.02
        around = (off < 0.012) & (nut[:, 2] < PEG_TOP)  # the peg is in the hole
        fits = around | ((off < 0.004) & (aligned.abs() < 0.08))
        carry = tool.clone()
        carry[:, :2] += torch.where((high | (off < 0.02))[:, None], torch.tensor(PEG) - nut[:, :2], 0.0)
        carry[:, 2] += torch.where(fits, PEG_TOP - 0.1, PEG_TOP + 0.05) - nut[:, 2]
        turn = torch.where(held, torch.where(high | around, aligned, 0.0), turn)
        return torch.where(held[:, None], carry, where), turn, torch.where(held, CLOSED, gripper)


EXPERTS: dict[str, type[BinExpert]] = {"Lift": Lift, "Can": Can, "NutAssemblySquare": Square}

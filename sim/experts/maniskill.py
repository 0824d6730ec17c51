"""Scripted experts for ManiSkill's cubes and peg, functions of the observation alone, so that errors are mended.

All lengths in m. A step at action 1 asks for 0.1 m or 0.1 rad more than measured; the arm does about 0.4 of it, which
`gain` makes up for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from robopolicy.core.types import Obs
from robopolicy.sim.experts.quaternion_utils import face_to, frame, half, quarter, yaw
from robopolicy.sim.experts.suites import Target, ToolExpert, instead, over_and_down

HALF = 0.02  # of a cube's side
CLEAR = 0.06  # above what must not be touched
BEHIND = 0.06  # from the middle of a peg to where it is grasped: the hand stays before the box
SAG = 40.0  # m of aim above the target per m³ of an eighth of the held peg: it pulls the arm down
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

    side = -1.0  # of the cube on which the fingers go down

    def target(self, f: dict[str, Tensor]) -> Target:
        tcp, cube, goal = f["tool"], f["object"], f["goal"]
        behind = cube[:, 0] + self.side * (HALF + 0.06)
        beyond = self.side * (tcp[:, 0] - cube[:, 0])
        ready = (beyond > HALF) & ((tcp - cube)[:, 1].abs() < 0.012) & (tcp[:, 2] < 0.05)
        low = (beyond > HALF + 0.03) & ((tcp - cube)[:, 1].abs() < 0.05)
        where = torch.stack([behind, cube[:, 1], torch.where(low, HALF, 0.1)], dim=1)
        push = torch.stack([goal[:, 0], cube[:, 1], torch.full_like(behind, HALF)], dim=1)
        where = torch.where(ready[:, None], push, where)
        return where, face_to(f["quat"], 0.0), torch.full_like(behind, CLOSED)


class PullCube(PushCube):
    """The same from the far side."""

    side = 1.0


class PegInsertion(ToolExpert):
    """Grasp the peg behind its middle, hold it before the hole along the hole's axis, push it in."""

    offset, noise = 0.15, 0.15
    gain, turn_gain = 17.0, -17.0

    def read(self, obs: Obs) -> dict[str, Tensor]:
        f = super().read(obs)
        (tool, quat), (peg, peg_quat), (hole, hole_quat) = (f[k].split([3, 4], dim=1) for k in ("tcp", "peg", "hole"))
        axes, into = frame(peg_quat), frame(hole_quat)  # the peg's x axis is its own, the hole's leads into it
        back = peg - BEHIND * axes[:, :, 0]
        near = (back - tool).norm(dim=1) < 0.03
        return {
            **f, "tool": tool, "quat": quat, "peg": peg, "axes": axes, "hole": hole, "into": into, "object": back,
            "held": near & (f["qpos"][:, 7:9].sum(1) < 2 * f["half_size"][:, 1] + 0.006),
            "wrong": torch.linalg.cross(axes[:, :, 0], into[:, :, 0]),  # rotation vector to the hole's axis
        }  # fmt: skip

    def tilt(self, f: dict[str, Tensor]) -> Tensor:
        return torch.where(f["held"][:, None], f["wrong"], super().tilt(f))

    def target(self, f: dict[str, Tensor]) -> Target:
        axis = f["axes"][:, :, 0]
        turn = half(torch.atan2(axis[:, 1], axis[:, 0]) - yaw(f["quat"]))
        where, there = over_and_down(f, turn, clear=CLEAR, slack=(0.008, 0.15), near=(0.015, 0.01))
        where = torch.where(f["held"][:, None], self.carry(f), where)
        turn = torch.where(f["held"], f["wrong"][:, 2], turn)
        return where, turn, torch.where(f["held"] | there, CLOSED, OPEN)

    def carry(self, f: dict[str, Tensor]) -> Tensor:
        """Return the tool position [N 3] for a held peg: before the hole, and into it while it fits."""
        axes, into, long = f["axes"], f["into"], f["half_size"][:, 0]
        head = ((f["peg"] + long[:, None] * axes[:, :, 0] - f["hole"])[:, None] @ into)[:, 0]  # in the hole's frame
        error = head[:, 1:].norm(dim=1) + 0.05 * f["wrong"].norm(dim=1)
        # A peg in the hole goes on; one before it goes back where it does not fit.
        onward = torch.where(head[:, 0] > 0.01 - long, 0.03, (0.04 - 8 * error).clamp(-0.03, 0.03))
        grasp = ((f["tool"] - f["peg"])[:, None] @ axes)[:, 0]  # in the peg's frame
        grasp[:, 0] += torch.maximum(head[:, 0] + onward, -long - 0.03) - long
        where = f["hole"] + (into @ grasp[:, :, None])[:, :, 0]
        where[:, 2] += SAG * f["half_size"].prod(dim=1)
        return where


EXPERTS: dict[str, type[ToolExpert]] = {
    "PickCube-v1": PickCube,
    "PushCube-v1": PushCube,
    "PullCube-v1": PullCube,
    "StackCube-v1": StackCube,
    "PegInsertionSide-v1": PegInsertion,
}

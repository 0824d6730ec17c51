"""Peg: put a square peg into a square hole. `peg_easy` holds it rigidly, `peg` by friction, so it slips and tilts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import mujoco
import numpy as np

from robopolicy.sim.arm_model import TCP
from robopolicy.sim.experts.waypoints import Expert, Groups, Phase, Targets, Until
from robopolicy.sim.kinematics import PANDA, forward
from robopolicy.sim.tasks import register
from robopolicy.sim.tasks.base import Task
from robopolicy.sim.tasks.scene import Array, BodySpec, Bool, Planar, Range, Scene, fold, planar_fixture

# Collision bits: 1 table and objects, 2 arm (sim/arm.py), 4 walls, which meet arm and peg but not the table below.
_WALL_BITS, _FREE_BITS, _HELD_BITS = (
    f'contype="{own}" conaffinity="{other}"' for own, other in ((4, 2), (1, 5), (2, 1))
)
_ORANGE, _BLUE = "0.9 0.6 0.2 1", "0.35 0.5 0.75 1"


class PegExpert(Expert):
    """Align the tip above the hole, then insert, keeping it aligned."""

    task: PegEasy
    phases = 2
    ends = (Until(0.001, turn=0.02, late=25),)
    offset = (0.001, 0.001, 0.0, 0.04)  # m m m rad: it presses beside the hole or jams
    noise = 0.5
    grip = -0.375  # the fingers stay where they are, at the peg's faces

    def plan(self, f: Groups, phase: Phase) -> Targets:
        height = np.where(phase == 0, 0.005, -self.task.depth - 0.005)  # m, tip over the hole's mouth
        pos = f["tcp"] + f["mouth_rel"] + self.bias[:, :3]
        pos[:, 2] += height
        return pos, f["yaw"] + f["turn"] + self.bias[:, 3], np.full(len(phase), self.grip)


class SlipExpert(PegExpert):
    """The same; what it measures is the peg, not the hand, so it makes good for tilts and slips."""

    offset = (0.0006, 0.0006, 0.0, 0.025)
    noise = 0.3
    grip = -1.0


class Hole(NamedTuple):
    base: Planar
    peg: Any  # Body of a free peg; None: part of the hand


class Tip(NamedTuple):
    """The middle of the peg's lower face."""

    pos: Array  # [M 3] m
    yaw: Array  # [M] rad


@register("peg_easy")
@dataclass(frozen=True)
class PegEasy(Task):
    horizon: int = 60
    timestep: float = 0.005
    substeps: int = 10
    hold: int = 3
    peg_half: float = 0.0125  # m, half the side of its square cross section
    peg_length: float = 0.08  # m
    peg_mass: float = 0.2  # kg
    reach: float = 0.06  # m from the TCP to the tip
    clearance: float = 0.001  # m per side: the hole's half width less the peg's
    depth: float = 0.03  # m
    inserted: float = 0.8  # of the depth, to count
    wall: float = 0.015  # m thick
    range_xy: float = 0.03  # m, hole either side of (0.5, 0)
    range_yaw: float = 0.3  # rad

    name = "peg_easy"
    instructions = ("insert the peg into the hole",)
    periods: ClassVar[Mapping[str, float]] = {"turn": np.pi / 2}
    expert = PegExpert
    speed = 0.2
    workspace = ((0.42, -0.08, 0.035), (0.58, 0.08, 0.17))
    start = (0.0, 0.19792, 0.0, -2.40093, 0.0, 2.59885, 0.7853982)  # TCP at (0.5, 0, 0.13) m
    start_opening = 0.025

    @property
    def _contact(self) -> str:
        """As stiff as the timestep permits: all that the arm can press is a fraction of a clearance deep."""
        return f'solref="{2 * self.timestep} 1" solimp="0.95 0.99 0.0005"'

    def bodies(self) -> str:
        inner, t, h = self.peg_half + self.clearance, self.wall / 2, self.depth / 2
        outer, middle = inner + self.wall, inner + t
        ring = ((middle, 0, t, outer), (-middle, 0, t, outer), (0, middle, inner, t), (0, -middle, inner, t))
        walls = "".join(
            f'<geom name="wall{i}" type="box" pos="{x} {y} {h}" size="{sx} {sy} {h}" {_WALL_BITS} priority="2" '
            f'friction="0.4 0.005 0.0001" {self._contact} rgba="{_BLUE}"/>'
            for i, (x, y, sx, sy) in enumerate(ring)
        )
        return planar_fixture("hole", walls)

    def _peg(self, pos: str, bits: str) -> str:
        size = f"{self.peg_half} {self.peg_half} {self.peg_length / 2}"
        return (
            f'<geom name="peg" type="box" pos="{pos}" size="{size}" mass="{self.peg_mass}" {bits} {self._contact} '
            f'rgba="{_ORANGE}"/>'
        )

    def tool(self) -> str:
        return self._peg(f"0 0 {TCP + self.reach - self.peg_length / 2}", _HELD_BITS)

    @property
    def ranges(self) -> Mapping[str, Range]:
        return {
            "hole_x": (0.5 - self.range_xy, 0.5 + self.range_xy),
            "hole_y": (-self.range_xy, self.range_xy),
            "hole_yaw": (-self.range_yaw, self.range_yaw),
        }

    def bind(self, model: mujoco.MjModel) -> Hole:
        return Hole(Planar.find(model, "hole"), peg=None)

    def reset(self, at: Hole, draw: Mapping[str, Array], qpos: Array, extra: Array) -> None:
        at.base.place(qpos, draw["hole_x"], draw["hole_y"], draw["hole_yaw"])

    def tip(self, at: Hole, scene: Scene) -> Tip:
        hand_z = forward(scene.qpos[:, : PANDA.dof]).axes[:, 2]  # a pressed hand tilts: the tip moves by mm
        return Tip(scene.tcp + self.reach * hand_z, scene.yaw)

    def _mouth(self, at: Hole, scene: Scene) -> Array:
        """Return [M 3] m, the middle of the hole's upper rim."""
        return np.column_stack([at.base.pos(scene), np.full(len(scene.qpos), self.depth)])

    def observe(self, at: Hole, scene: Scene) -> Mapping[str, Array]:
        tip = self.tip(at, scene)
        rel = self._mouth(at, scene) - tip.pos
        return {
            "mouth_rel": rel,
            "mouth_near": np.clip(100 * rel, -1, 1),  # the last centimetre, enlarged
            "turn": fold(at.base.yaw.pos(scene) - tip.yaw, self.periods["turn"]),  # to the nearest face
        }

    def success(self, at: Hole, scene: Scene) -> Bool:
        rel = self._mouth(at, scene) - self.tip(at, scene).pos
        return (rel[:, 2] > self.inserted * self.depth) & (np.abs(rel[:, :2]) < 0.005).all(axis=1)

    def dense(self, at: Hole, scene: Scene) -> Array:
        rel = self._mouth(at, scene) - self.tip(at, scene).pos
        above = 1 - np.tanh(30 * np.sqrt((rel[:, :2] ** 2).sum(axis=1)))
        return above * (0.4 + 0.6 * np.clip(rel[:, 2] / self.depth, 0, 1))


@register("peg")
@dataclass(frozen=True)
class Peg(PegEasy):
    horizon: int = 80
    timestep: float = 0.0025
    substeps: int = 20
    clearance: float = 0.0004  # m per side
    range_slide: float = 0.003  # m, the peg in the hand, along and across the fingers
    range_tilt: float = 0.08  # rad, about the axis along which the fingers close

    name = "peg"
    expert = SlipExpert
    # Held by friction alone: a pyramid's facets and a soft grip would let it creep out of the fingers.
    cone, impratio = "elliptic", 5.0

    def bodies(self) -> str:
        peg = f'<body name="peg" pos="0.5 0 0.1"><freejoint name="peg"/>{self._peg("0 0 0", _FREE_BITS)}</body>'
        return peg + super().bodies()

    def tool(self) -> str:
        return ""

    @property
    def ranges(self) -> Mapping[str, Range]:
        slide, tilt = (-self.range_slide, self.range_slide), (-self.range_tilt, self.range_tilt)
        return {**super().ranges, "slide_x": slide, "slide_z": slide, "tilt": tilt}

    def bind(self, model: mujoco.MjModel) -> Hole:
        return super().bind(model)._replace(peg=BodySpec.find(model, "peg"))

    def reset(self, at: Hole, draw: Mapping[str, Array], qpos: Array, extra: Array) -> None:
        super().reset(at, draw, qpos, extra)
        frame = forward(qpos[:, : PANDA.dof])
        x, y, z = frame.axes.transpose(1, 2, 0)  # [3 M] each
        cos, sin = np.cos(draw["tilt"]), np.sin(draw["tilt"])
        x, z = cos * x - sin * z, cos * z + sin * x
        # The peg points up, the hand down.
        pos = frame.pos.T + (self.reach - self.peg_length / 2 + draw["slide_z"]) * z + draw["slide_x"] * x
        qpos[:, at.peg.q : at.peg.q + 3] = pos.T
        quat = np.empty(4)
        for i, matrix in enumerate(np.stack([x, -y, -z], axis=-1).transpose(1, 0, 2)):
            mujoco.mju_mat2Quat(quat, matrix.ravel())
            qpos[i, at.peg.q + 3 : at.peg.q + 7] = quat

    def _axis(self, at: Hole, scene: Scene) -> Array:
        """Return [M 3] the peg's own z axis, away from the tip."""
        w, x, y, z = at.peg.quat(scene).T
        return np.stack([2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)], axis=1)

    def tip(self, at: Hole, scene: Scene) -> Tip:
        pos = at.peg.pos(scene) - self.peg_length / 2 * self._axis(at, scene)
        return Tip(pos, at.peg.yaw(scene))

    def observe(self, at: Hole, scene: Scene) -> Mapping[str, Array]:
        seen = super().observe(at, scene)
        return {
            **seen,
            "mouth_fine": np.clip(seen["mouth_rel"] / 0.002, -1, 1),  # the last millimetres, where it jams or slides in
            "tilt": self._axis(at, scene)[:, :2],
            "peg_rel": at.peg.pos(scene) - scene.tcp,
            "peg_vel": at.peg.vel(scene),
        }

"""Push-T: slide a T-shaped block onto its target with a ball-ended stick, until it covers 90% of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import mujoco
import numpy as np
from torch import Tensor

from robopolicy.sim.experts.waypoints import Expert, Groups, Phase, Targets
from robopolicy.sim.tasks import register
from robopolicy.sim.tasks.base import Task
from robopolicy.sim.tasks.scene import Array, Bool, Planar, Range, Scene, fold
from robopolicy.sim.tblock_geometry import TBlockGeometry, rotate

_BALL = 0.012  # m, radius of the ball at the stick's end; it pushes at the T's half height, so the T stays flat
_HEIGHT = 0.035  # m, of the T
_TCP_Z = 0.062  # m, kept by the workspace; the fingers' tips stay 18 mm above the T


class PushTExpert(Expert):
    """Greedy planar pushing: take the contact whose best straight push leaves the least error, travel included; go
    around the T to it; push until pushing there helps no more; choose again."""

    task: PushT
    phases = 1
    offset = (0.006, 0.006, 0.0, 0.08)  # m m m rad: where it believes the target to be
    noise = 0.5
    step_cost = 2e-4  # m of remaining error that a control step is worth
    push = 0.022  # m by which the stick's target leads it while pushing
    stop = 0.0015  # m left to push at which a push is over

    def __init__(self, *args: Any, **kw: Any) -> None:
        super().__init__(*args, **kw)
        self.tblock: TBlockGeometry = self.task.tblock
        self.contact = np.full(self.num_envs, -1)

    def reset(self, mask: Tensor | None, *, episode_seed: Tensor) -> None:
        super().reset(mask, episode_seed=episode_seed)
        self.contact[slice(None) if mask is None else mask.numpy()] = -1

    def plan(self, f: Groups, phase: Phase) -> Targets:
        tblock, c = self.tblock, self.tblock.contacts
        left = np.arctan2(f["turn_sin"], f["turn_cos"])  # rad still to turn
        yaw = self.task.goal_yaw - left
        shift, turn = rotate(f["to_goal"] + self.bias[:, :2], -yaw), left + self.bias[:, 3]
        tool, lag = f["tool"], rotate(f["lag"][:, :2], -yaw)
        here, off = tblock.nearest(tool)

        rows = np.arange(self.num_envs)
        held = np.maximum(self.contact, 0)
        ahead = -(lag * c.normal[held]).sum(axis=1)  # m that the stick is yet to move by what is commanded already
        length = tblock.best(shift, turn, held[:, None])[0][:, 0]
        stale = (self.contact < 0) | (length - ahead < self.stop)
        if stale.any():
            r = rows[stale]
            length[r], self.contact[r] = self._choose(shift[r], turn[r], here[r])
        k = self.contact
        normal, gap = c.normal[k], tool - c.point[k]
        height = (gap * normal).sum(axis=1) - tblock.tool  # m between stick and edge
        side = gap[:, 1] * normal[:, 0] - gap[:, 0] * normal[:, 1]
        pushing = (np.abs(side) < 0.014) & (height < tblock.margin + 0.006) & (height > -0.01)
        # Pushing: slide along the contact's normal line, a little ahead of the stick.
        depth = height - np.minimum(height + length, self.push)
        depth = np.where(np.abs(side) > 0.005, np.maximum(depth, 0.003), depth)  # get onto that line before touching
        touch = c.point[k] + (tblock.tool + depth)[:, None] * normal
        # Travelling: follow the ring the shorter way round; from inside it, get out first.
        size = len(tblock.ring)
        way = (c.ring[k] - here + size // 2) % size - size // 2
        reach = np.where(off > 0.006, 3, 12)
        carrot = tblock.ring[(here + np.clip(way, -reach, reach)) % size]
        target = np.where(pushing[:, None], touch, carrot)
        pos = f["tcp"].copy()
        pos[:, :2] += rotate(target - tool, yaw)
        pos[:, 2] = _TCP_Z
        return pos, f["yaw"] + f["lag"][:, 3], np.full(self.num_envs, -0.35)

    def _choose(self, shift: Array, turn: Array, here: Array) -> tuple[Array, Array]:
        """Lengths to push [m] and contacts of the best pushes from ring samples `here` [m]."""
        tblock, size = self.tblock, len(self.tblock.ring)
        length, left = tblock.best(shift, turn)
        way = np.abs((tblock.contacts.ring - here[:, None] + size // 2) % size - size // 2) * 0.005
        cost = left + self.step_cost * (way / 0.015 + length / 0.009 + 6.0)
        cost = np.where(length > self.stop, cost, np.inf)
        best = np.where(np.isinf(cost.min(axis=1)), left.argmin(axis=1), cost.argmin(axis=1))
        return length[np.arange(len(best)), best], best


@register("pusht")
@dataclass(frozen=True)
class PushT(Task):
    horizon: int = 200
    hold: int = 3
    joint_noise: float = 0.003  # rad; the stick's tip must stay off the table
    unit: float = 0.035  # m, width of the T's bar
    mass: float = 0.4  # kg
    drag: float = 20.0  # N·s/m, between T and table
    cover: float = 0.90  # part of the target that must be covered
    goal_x: float = 0.5  # m
    goal_y: float = 0.0
    goal_yaw: float = float(np.pi / 4)
    range_x: float = 0.08  # m, start either side of the goal
    range_y: float = 0.08
    range_yaw: float = float(np.pi)

    name = "pusht"
    instructions = ("push the T onto its target",)
    expert = PushTExpert
    workspace = ((0.28, -0.32, _TCP_Z), (0.72, 0.32, _TCP_Z))  # the stick moves in a plane
    start = (0.0, 0.4852, 0.0, -2.1728, 0.0, 2.6579, 0.7853982)  # rad: TCP at (0.56, 0, 0.062)
    start_opening = 0.012

    @cached_property
    def tblock(self) -> TBlockGeometry:
        return TBlockGeometry(self.unit, tool=_BALL)

    def tool(self) -> str:
        z = 0.1034 + _TCP_Z - _HEIGHT / 2  # m along the hand: the ball meets the T at its centre's height
        return f"""
      <geom name="rod" type="capsule" fromto="0 0 0.06 0 0 {z}" size="0.006" mass="0.03" contype="0" conaffinity="0"
            rgba="0.35 0.37 0.4 1"/>
      <geom name="ball" type="sphere" pos="0 0 {z}" size="{_BALL}" mass="0.02" friction="0.5 0.005 0.0001" priority="1"
            contype="2" conaffinity="1" rgba="0.95 0.6 0.1 1"/>"""

    def bodies(self) -> str:
        boxes = "".join(
            f"""
      <geom name="tee_{k}" type="box" pos="{x} {y} 0" size="{a} {b} {_HEIGHT / 2}" contype="0" conaffinity="2"
            mass="{self.mass * a * b / (1.75 * self.unit**2)}" rgba="0.45 0.5 0.62 1"/>"""
            for k, (x, y, a, b) in enumerate(self.tblock.boxes)
        )
        goal = "".join(
            f'<geom type="box" pos="{x} {y} 0" size="{a} {b} 0.0005" contype="0" conaffinity="0" rgba="0.5 0.8 0.5 1"/>'
            for x, y, a, b in self.tblock.boxes
        )
        return f"""
    <body name="goal" pos="{self.goal_x} {self.goal_y} 0.0005" euler="0 0 {self.goal_yaw}">{goal}</body>
    <body name="tee" pos="0 0 {_HEIGHT / 2}">
      <joint name="tee_x" type="slide" axis="1 0 0" damping="{self.drag}"/>
      <joint name="tee_y" type="slide" axis="0 1 0" damping="{self.drag}"/>
      <joint name="tee_yaw" type="hinge" axis="0 0 1" damping="{self.drag * self.tblock.radius**2}"/>{boxes}
    </body>"""

    @property
    def ranges(self) -> Mapping[str, Range]:
        return {
            "tee_x": (self.goal_x - self.range_x, self.goal_x + self.range_x),
            "tee_y": (self.goal_y - self.range_y, self.goal_y + self.range_y),
            "tee_yaw": (self.goal_yaw - self.range_yaw, self.goal_yaw + self.range_yaw),
            "side": (-1.0, 1.0),  # where the arm starts: right or left of the T, by up to 0.1 rad more
        }

    def bind(self, model: mujoco.MjModel) -> Planar:
        return Planar.find(model, "tee")

    def reset(self, at: Planar, draw: Mapping[str, Array], qpos: Array, extra: Array) -> None:
        at.place(qpos, draw["tee_x"], draw["tee_y"], draw["tee_yaw"])
        angle = np.sign(draw["side"]) * (0.45 + 0.1 * np.abs(draw["side"]))
        qpos[:, 0] += angle
        qpos[:, 6] += angle  # keeps the tool's yaw

    def _error(self, at: Planar, scene: Scene) -> tuple[Array, Array]:
        """Return [M 2] m from the T to the target, and [M] rad that it must turn."""
        shift = np.array([self.goal_x, self.goal_y]) - at.pos(scene)
        return shift, fold(self.goal_yaw - at.yaw.pos(scene), 2 * np.pi)

    def coverage(self, at: Planar, scene: Scene) -> Array:
        """Return [M] in [0, 1]: covered part of the target."""
        shift, turn = self._error(at, scene)
        return self.tblock.coverage(rotate(-shift, np.full_like(turn, -self.goal_yaw)), -turn)

    def observe(self, at: Planar, scene: Scene) -> Mapping[str, Array]:
        shift, turn = self._error(at, scene)
        block = at.pos(scene) - scene.tcp[:, :2]
        return {
            "to_goal": shift,
            "turn_sin": np.sin(turn),
            "turn_cos": np.cos(turn),
            "block_rel": block,
            "tool": rotate(-block, -at.yaw.pos(scene)),  # the stick as the T sees it
            "block_vel": at.vel(scene),
            "block_spin": at.yaw.vel(scene),
            "coverage": self.coverage(at, scene),
        }

    def success(self, at: Planar, scene: Scene) -> Bool:
        return self.coverage(at, scene) >= self.cover

    def dense(self, at: Planar, scene: Scene) -> Array:
        shift, turn = self._error(at, scene)
        error = np.sqrt((shift**2).sum(axis=1)) + self.tblock.turn_length * np.abs(turn)
        return 0.5 * (1 - np.tanh(8 * error)) + 0.5 * self.coverage(at, scene)

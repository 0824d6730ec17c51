"""Stack: put the red cube on the blue one, let go and move away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import mujoco
import numpy as np

from robopolicy.sim.experts.waypoints import Expert, Groups, Phase, Targets, Until
from robopolicy.sim.tasks import register
from robopolicy.sim.tasks.base import Task
from robopolicy.sim.tasks.scene import Array, BodySpec, Bool, Range, Scene, fold, free_box


class StackExpert(Expert):
    """Above the cube, descend, close, lift, over the goal, lower, open, retreat upwards."""

    phases = 8
    ends = (
        Until(0.02, turn=0.1, late=25), Until(0.006, late=12), Until(wait=4), Until(late=12),
        Until(0.015, turn=0.1, late=25), Until(0.004, late=12), Until(wait=4),
    )  # fmt: skip
    offset = (0.012, 0.012, 0.006, 0.25)  # m m m rad; it shifts the grasp and, again, the place where it lets go

    def plan(self, f: Groups, phase: Phase) -> Targets:
        tcp, cube = f["tcp"], f["tcp"] + f["cube_rel"]
        up = np.array([0.0, 0.0, 1.0])
        grasp = cube + self.bias[:, :3]
        # Where the TCP must go for the held cube to reach the top of the other one: measured, so slips are mended.
        over = tcp + f["goal_rel"] + self.bias[:, :3]
        level = tcp * [1, 1, 0]
        targets = [
            grasp + 0.08 * up,
            grasp,
            grasp,
            level + 0.14 * up,
            over * [1, 1, 0] + 0.14 * up,
            over,
            tcp + f["lag"][:, :3],
            level + 0.16 * up,
        ]
        pos = np.select([(phase == k)[:, None] for k in range(7)], targets[:7], targets[7])
        still = f["yaw"] + f["lag"][:, 3]
        yaw = np.select(
            [phase <= 1, (phase >= 3) & (phase <= 5)],
            [f["yaw"] + f["turn"] + self.bias[:, 3], f["yaw"] + f["goal_turn"] + self.bias[:, 3]],
            still,
        )
        grip = np.where((phase <= 1) | (phase >= 6), 1.0, -1.0)
        return pos, yaw, grip

    def done(self, f: Groups, phase: Phase, gap: Array, turn: Array, clock: Array) -> Bool:
        return super().done(f, phase, gap, turn, clock) | (phase == 3) & (f["tcp"][:, 2] > 0.10)


class Cubes(NamedTuple):
    upper: BodySpec
    lower: BodySpec


@register("stack")
@dataclass(frozen=True)
class Stack(Task):
    horizon: int = 100
    hold: int = 5
    cube_half: float = 0.02  # m
    cube_mass: float = 0.06  # kg
    centre_x: float = 0.04  # m, range of the cubes' midpoint either side of 0.5
    centre_y: float = 0.06
    gap_low: float = 0.09  # m between the cubes' centres: fingers (outer width 0.104 m) fit between them
    gap_high: float = 0.16
    range_yaw: float = float(np.pi / 4)
    clear: float = 0.04  # m from TCP to the cube's centre: no finger can touch it from there

    name = "stack"
    capacity = (48, 256)
    instructions = ("put the red cube on the blue cube",)
    periods: ClassVar[Mapping[str, float]] = {"turn": np.pi / 2, "goal_turn": np.pi / 2}
    expert = StackExpert

    def bodies(self) -> str:
        size = (self.cube_half,) * 3
        return free_box("red", size, mass=self.cube_mass, rgba="0.8 0.2 0.2 1") + free_box(
            "blue", size, mass=self.cube_mass, rgba="0.2 0.35 0.8 1"
        )

    @property
    def ranges(self) -> Mapping[str, Range]:
        return {
            "centre_x": (0.5 - self.centre_x, 0.5 + self.centre_x),
            "centre_y": (-self.centre_y, self.centre_y),
            "direction": (-np.pi, np.pi),
            "gap": (self.gap_low, self.gap_high),
            "red_yaw": (-self.range_yaw, self.range_yaw),
            "blue_yaw": (-self.range_yaw, self.range_yaw),
        }

    def bind(self, model: mujoco.MjModel) -> Cubes:
        return Cubes(upper=BodySpec.find(model, "red"), lower=BodySpec.find(model, "blue"))

    def reset(self, at: Cubes, draw: Mapping[str, Array], qpos: Array, extra: Array) -> None:
        dx, dy = (0.5 * draw["gap"] * f(draw["direction"]) for f in (np.cos, np.sin))
        x, y = draw["centre_x"], draw["centre_y"]
        at.upper.place(qpos, x + dx, y + dy, self.cube_half, draw["red_yaw"])
        at.lower.place(qpos, x - dx, y - dy, self.cube_half, draw["blue_yaw"])

    def _to_goal(self, at: Cubes, scene: Scene) -> Array:
        """Return [M 3] m from the upper cube's centre to where it belongs."""
        return at.lower.pos(scene) + np.array([0.0, 0.0, 2 * self.cube_half]) - at.upper.pos(scene)

    def observe(self, at: Cubes, scene: Scene) -> Mapping[str, Array]:
        return {
            "cube_rel": at.upper.pos(scene) - scene.tcp,
            "goal_rel": self._to_goal(at, scene),
            "turn": fold(at.upper.yaw(scene) - scene.yaw, self.periods["turn"]),  # to the nearest face
            # From the red cube, which turns in the grasp, to the blue one's nearest face.
            "goal_turn": fold(at.lower.yaw(scene) - at.upper.yaw(scene), self.periods["goal_turn"]),
            "cube_vel": at.upper.vel(scene),
            "cube_up": at.upper.up(scene),
            "goal_vel": at.lower.vel(scene),
        }

    def success(self, at: Cubes, scene: Scene) -> Bool:
        rel = self._to_goal(at, scene)
        on_top = (np.abs(rel[:, 2]) < 0.005) & ((rel[:, :2] ** 2).sum(axis=1) < self.cube_half**2)
        based = np.abs(at.lower.pos(scene)[:, 2] - self.cube_half) < 0.005
        away = ((at.upper.pos(scene) - scene.tcp) ** 2).sum(axis=1) > self.clear**2
        still = (at.upper.vel(scene) ** 2).sum(axis=1) < 0.02**2
        return on_top & based & away & still

    def dense(self, at: Cubes, scene: Scene) -> Array:
        cube = at.upper.pos(scene)
        reach = 1 - np.tanh(8 * np.sqrt(((cube - scene.tcp) ** 2).sum(axis=1)))
        near = 1 - np.tanh(8 * np.sqrt((self._to_goal(at, scene) ** 2).sum(axis=1)))
        # Once stacked, the hand's distance no longer counts, so that leaving costs nothing.
        return np.where(self.success(at, scene), 1.0, 0.25 * reach + 0.5 * near)

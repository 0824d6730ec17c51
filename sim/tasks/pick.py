"""Pick: lift a cube 10 cm off the table and keep it there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import mujoco
import numpy as np

from robopolicy.sim.experts.waypoints import Expert, Groups, Phase, Targets, Until
from robopolicy.sim.tasks import register
from robopolicy.sim.tasks.base import Task
from robopolicy.sim.tasks.scene import Array, BodySpec, Bool, Range, Scene, fold, free_box


class PickExpert(Expert):
    """Go above the cube, descend, close, lift."""

    phases = 4
    ends = (Until(0.02, turn=0.1, late=25), Until(0.006, late=12), Until(wait=5))
    noise = 1.9  # of the limits: zero-mean, yet enough to spoil seven grasps of eight at expert noise 1

    def plan(self, f: Groups, phase: Phase) -> Targets:
        grasp = f["cube"] + self.bias[:, :3]
        above = grasp + np.array([0, 0, 0.08])
        lift = f["tcp"] * [1, 1, 0] + np.array([0, 0, 0.20])
        pos = np.select([(phase == 0)[:, None], (phase <= 2)[:, None]], [above, grasp], lift)
        yaw = np.where(phase <= 1, f["yaw"] + f["turn"] + self.bias[:, 3], f["yaw"] + f["lag"][:, 3])
        grip = np.where(phase <= 1, 1.0, -1.0)
        return pos, yaw, grip


@register("pick")
@dataclass(frozen=True)
class Pick(Task):
    hold: int = 5
    cube_half: float = 0.02  # m
    cube_mass: float = 0.06  # kg
    lift: float = 0.10  # m above the table to count
    range_x: float = 0.08  # m, either side of the middle of the table, for a Panda
    range_y: float = 0.12
    range_yaw: float = float(np.pi / 4)

    name = "pick"
    arms = ("panda", "ur5e", "so101")
    instructions = ("pick up the red cube",)
    periods: ClassVar[Mapping[str, float]] = {"turn": np.pi / 2}
    expert = PickExpert

    def bodies(self) -> str:
        return free_box("cube", (self.cube_half,) * 3, mass=self.cube_mass, rgba="0.8 0.2 0.2 1")

    @property
    def ranges(self) -> Mapping[str, Range]:
        x, y = self.model.layout.around(self.range_x, self.range_y)
        return {"cube_x": x, "cube_y": y, "cube_yaw": (-self.range_yaw, self.range_yaw)}

    def bind(self, model: mujoco.MjModel) -> BodySpec:
        return BodySpec.find(model, "cube")

    def reset(self, at: BodySpec, draw: Mapping[str, Array], qpos: Array, extra: Array) -> None:
        at.place(qpos, draw["cube_x"], draw["cube_y"], self.cube_half, draw["cube_yaw"])

    def observe(self, at: BodySpec, scene: Scene) -> Mapping[str, Array]:
        cube = at.pos(scene)
        return {
            "cube": cube,
            "cube_rel": cube - scene.tcp,
            "turn": fold(at.yaw(scene) - scene.yaw, self.periods["turn"]),  # to the nearest face
            "cube_vel": at.vel(scene),
            "cube_up": at.up(scene),
        }

    def success(self, at: BodySpec, scene: Scene) -> Bool:
        return at.pos(scene)[:, 2] - self.cube_half > self.lift

    def dense(self, at: BodySpec, scene: Scene) -> Array:
        cube = at.pos(scene)
        reach = 1 - np.tanh(8 * np.sqrt(((cube - scene.tcp) ** 2).sum(axis=1)))
        lift = np.clip((cube[:, 2] - self.cube_half) / self.lift, 0, 1)
        return 0.4 * reach + 0.6 * lift

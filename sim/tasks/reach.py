"""Reach: bring the tool centre to a point in the air and keep it there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mujoco
import numpy as np

from robopolicy.sim.experts.waypoints import Expert, Groups, Phase, Targets
from robopolicy.sim.tasks import register
from robopolicy.sim.tasks.base import Task
from robopolicy.sim.tasks.scene import Array, Bool, Range, Scene


class ReachExpert(Expert):
    """Straight to the target."""

    offset = (0.01, 0.01, 0.01, 0.0)
    noise = 1.0

    def plan(self, f: Groups, phase: Phase) -> Targets:
        return f["target"] + self.bias[:, :3], f["yaw"] + f["lag"][:, 3], np.ones(self.num_envs)


@register("reach")
@dataclass(frozen=True)
class Reach(Task):
    horizon: int = 40
    hold: int = 3
    radius: float = 0.01  # m
    range_x: float = 0.12  # m, either side of the middle of the table, for a Panda
    range_y: float = 0.2
    low_z: float = 0.05  # m above the table
    high_z: float = 0.35

    name = "reach"
    arms = ("panda", "ur5e", "so101")
    instructions = ("move the gripper to the green ball",)
    extra_size = 3
    expert = ReachExpert

    def bodies(self) -> str:
        return (
            f'<geom name="target" type="sphere" size="{self.radius}" contype="0" conaffinity="0" '
            'rgba="0.2 0.7 0.3 0.8"/>'
        )

    @property
    def ranges(self) -> Mapping[str, Range]:
        layout = self.model.layout
        x, y = layout.around(self.range_x, self.range_y)
        return {"target_x": x, "target_y": y, "target_z": (layout.height * self.low_z, layout.height * self.high_z)}

    def bind(self, model: mujoco.MjModel) -> int:
        return int(model.geom("target").id)

    def reset(self, at: int, draw: Mapping[str, Array], qpos: Array, extra: Array) -> None:
        for i, axis in enumerate("xyz"):
            extra[:, i] = draw[f"target_{axis}"]

    def observe(self, at: int, scene: Scene) -> Mapping[str, Array]:
        return {"target": scene.extra, "target_rel": scene.extra - scene.tcp}

    def success(self, at: int, scene: Scene) -> Bool:
        return ((scene.extra - scene.tcp) ** 2).sum(axis=1) < self.radius**2

    def dense(self, at: int, scene: Scene) -> Array:
        return 1 - np.tanh(5 * np.sqrt(((scene.extra - scene.tcp) ** 2).sum(axis=1)))

    def decorate(self, at: int, model: mujoco.MjModel, data: mujoco.MjData, extra: Array) -> None:
        model.geom_pos[at] = extra

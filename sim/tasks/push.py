"""Push: slide a block across the table onto a mark."""

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


class PushExpert(Expert):
    """Close the gripper, go behind the block as seen from the mark, go down, push along the line."""

    phases = 3
    ends = (Until(0.02, late=25), Until(0.01, late=25))
    offset = (0.02, 0.02, 0.0, 0.35)
    noise = 1.1
    hurry = 5.0

    def plan(self, f: Groups, phase: Phase) -> Targets:
        along, left = self._line(f)
        pos = np.empty((self.num_envs, 3))
        start = f["block"][:, :2] - along * 0.08
        # While pushing, aim a little beyond contact (0.04 m): slowly, or the block tips over its far edge.
        push = f["block"][:, :2] + along * (np.minimum(left, 0.016)[:, None] - 0.04)
        pos[:, :2] = np.where((phase <= 1)[:, None], start, push) + self.bias[:, :2]
        pos[:, 2] = np.where(phase == 0, 0.1, 0.02)
        # The finger pair's flat side faces the block where the line allows it.
        yaw = np.clip(np.arctan2(along[:, 1], along[:, 0]), -1.2, 1.2) + self.bias[:, 3]
        return pos, yaw, -np.ones(self.num_envs)

    def retry(self, f: Groups, phase: Phase) -> Bool:
        """Return whether the block slipped to the side, or lies behind the gripper."""
        along, left = self._line(f)
        ahead = along[:, 0] * f["block_rel"][:, 0] + along[:, 1] * f["block_rel"][:, 1]
        aside = np.abs(along[:, 0] * f["block_rel"][:, 1] - along[:, 1] * f["block_rel"][:, 0])
        return (phase == 2) & (left > 0.01) & ((ahead < 0.02) | (aside > 0.025))

    @staticmethod
    def _line(f: Groups) -> tuple[Array, Array]:
        """Unit vector from block to mark [N 2], and the way left [N] m."""
        left = np.sqrt((f["goal_rel"] ** 2).sum(axis=1))
        return f["goal_rel"] / np.maximum(left, 1e-6)[:, None], left


@register("push")
@dataclass(frozen=True)
class Push(Task):
    horizon: int = 100
    hold: int = 3
    block_half: tuple[float, float, float] = (0.03, 0.03, 0.02)  # m
    block_mass: float = 0.1  # kg
    radius: float = 0.02  # m, between block and mark
    range_y: float = 0.12  # m
    range_yaw: float = 0.4  # rad

    name = "push"
    instructions = ("push the blue block onto the green mark",)
    extra_size = 2
    start_opening = 0.0
    periods: ClassVar[Mapping[str, float]] = {"turn": np.pi / 2}
    expert = PushExpert

    def bodies(self) -> str:
        mark = (
            f'<geom name="mark" type="cylinder" size="{self.radius} 0.001" contype="0" conaffinity="0" '
            'rgba="0.2 0.7 0.3 1"/>'
        )
        return mark + free_box("block", self.block_half, mass=self.block_mass, rgba="0.2 0.35 0.8 1")

    @property
    def ranges(self) -> Mapping[str, Range]:
        return {
            "block_x": (0.42, 0.50),
            "block_y": (-self.range_y, self.range_y),
            "block_yaw": (-self.range_yaw, self.range_yaw),
            "mark_x": (0.58, 0.66),
            "mark_y": (-self.range_y, self.range_y),
        }

    def bind(self, model: mujoco.MjModel) -> tuple[BodySpec, int]:
        return BodySpec.find(model, "block"), int(model.geom("mark").id)

    def reset(self, at: tuple[BodySpec, int], draw: Mapping[str, Array], qpos: Array, extra: Array) -> None:
        at[0].place(qpos, draw["block_x"], draw["block_y"], self.block_half[2], draw["block_yaw"])
        extra[:, 0], extra[:, 1] = draw["mark_x"], draw["mark_y"]

    def observe(self, at: tuple[BodySpec, int], scene: Scene) -> Mapping[str, Array]:
        block = at[0].pos(scene)
        return {
            "block": block,
            "block_rel": block - scene.tcp,
            "goal_rel": scene.extra - block[:, :2],
            "turn": fold(at[0].yaw(scene) - scene.yaw, self.periods["turn"]),
            "block_vel": at[0].vel(scene),
            "block_yaw_rate": at[0].yaw_rate(scene),
        }

    def success(self, at: tuple[BodySpec, int], scene: Scene) -> Bool:
        return self._gap2(at, scene) < self.radius**2

    def dense(self, at: tuple[BodySpec, int], scene: Scene) -> Array:
        reach = np.sqrt(((at[0].pos(scene) - scene.tcp) ** 2).sum(axis=1))
        return 0.3 * (1 - np.tanh(5 * reach)) + 0.7 * (1 - np.tanh(8 * np.sqrt(self._gap2(at, scene))))

    def decorate(self, at: tuple[BodySpec, int], model: mujoco.MjModel, data: mujoco.MjData, extra: Array) -> None:
        model.geom_pos[at[1], :2] = extra

    def _gap2(self, at: tuple[BodySpec, int], scene: Scene) -> Array:
        return ((scene.extra - at[0].pos(scene)[:, :2]) ** 2).sum(axis=1)

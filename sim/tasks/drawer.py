"""Drawer: pull a drawer open by its handle, 12 cm or more, and keep it there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import mujoco
import numpy as np

from robopolicy.sim.experts.waypoints import Expert, Groups, Phase, Targets, Until
from robopolicy.sim.tasks import register
from robopolicy.sim.tasks.base import Task
from robopolicy.sim.tasks.scene import Array, Bool, Joint, Planar, Range, Scene, fold, planar_fixture

# Cabinet frame: origin on the table below the middle of the closed drawer's front face, +y into the cabinet, so the
# drawer opens along -y and the fingers, which open along y at home, straddle the handle bar from above.
_BAR_Z = 0.10  # m, height of the bar; the hand's underside is 4.3 cm above the TCP and must clear the cabinet's top
_STAND = 0.062  # m from the front face to the bar: an open finger (outer face 5.2 cm from the TCP) fits in between
_WOOD, _DARK_WOOD, _METAL = "0.72 0.56 0.38 1", "0.55 0.41 0.27 1", "0.35 0.37 0.4 1"


class DrawerExpert(Expert):
    """Above the handle, descend, close, pull."""

    task: Drawer
    phases = 4
    ends = (Until(0.015, turn=0.1, late=30), Until(0.01, late=12), Until(wait=5))
    offset = (0.03, 0.03, 0.015, 0.4)
    noise = 1.2

    def plan(self, f: Groups, phase: Phase) -> Targets:
        tcp, yaw = f["tcp"], f["yaw"] + f["turn"]
        handle = tcp + f["handle_rel"]
        grasp = handle + self.bias[:, :3]
        beyond = self.task.goal + 0.03 - f["drawer"]  # m still to pull
        pull = handle + beyond[:, None] * np.stack([np.sin(yaw), -np.cos(yaw), 0 * yaw], axis=1)
        first, grasping = (phase == 0)[:, None], (phase <= 2)[:, None]
        pos = np.select([first, grasping], [grasp + np.array([0, 0, 0.08]), grasp], pull)
        turn = np.where(phase <= 1, yaw + self.bias[:, 3], f["yaw"] + f["lag"][:, 3])
        return pos, turn, np.where(phase <= 1, 1.0, -1.0)


class Cabinet(NamedTuple):
    base: Planar
    slide: Joint


@register("drawer")
@dataclass(frozen=True)
class Drawer(Task):
    horizon: int = 80
    hold: int = 5
    goal: float = 0.12  # m open to count
    travel: float = 0.20  # m, the drawer's stop
    friction: float = 1.5  # N, dry
    damping: float = 8.0  # N·s/m
    centre_x: float = 0.5  # m, closed front face
    centre_y: float = 0.17
    range_x: float = 0.05  # m, either side
    range_y: float = 0.03
    range_yaw: float = 0.35  # rad

    name = "drawer"
    instructions = ("open the drawer",)
    periods: ClassVar[Mapping[str, float]] = {"turn": np.pi}
    expert = DrawerExpert

    def bodies(self) -> str:
        hidden = 'contype="0" conaffinity="0"'
        # Collisions: the cabinet's block, the drawer's front with the box behind it as one block, bar and posts.
        # The drawer's block is inside the cabinet's; parent and child do not collide.
        drawer = f"""
      <body name="drawer" gravcomp="1">
        <inertial mass="0.6" pos="0 0.06 0.06" diaginertia="2e-3 2e-3 3e-3"/>
        <joint name="drawer" type="slide" axis="0 -1 0" range="0 {self.travel}" damping="{self.damping}"
               frictionloss="{self.friction}"/>
        <geom name="front" type="box" size="0.1 0.006 0.05" pos="0 0.006 0.065" rgba="{_WOOD}"/>
        <geom name="box" type="box" size="0.085 0.1 0.02" pos="0 0.112 0.04" rgba="{_DARK_WOOD}"/>
        <geom name="bar" type="capsule" fromto="-0.05 {-_STAND} {_BAR_Z} 0.05 {-_STAND} {_BAR_Z}" size="0.007"
              solref="0.01 1" rgba="{_METAL}"/>
        <geom name="post_left" type="capsule" fromto="-0.05 0 {_BAR_Z} -0.05 {-_STAND} {_BAR_Z}" size="0.006"
              rgba="{_METAL}"/>
        <geom name="post_right" type="capsule" fromto="0.05 0 {_BAR_Z} 0.05 {-_STAND} {_BAR_Z}" size="0.006"
              rgba="{_METAL}"/>
      </body>"""
        walls = "".join(
            f'<geom type="box" size="{size}" pos="{pos}" rgba="{_WOOD}" {hidden}/>'
            for size, pos in (
                ("0.1 0.11 0.005", "0 0.122 0.115"),
                ("0.1 0.11 0.005", "0 0.122 0.005"),
                ("0.006 0.11 0.05", "-0.094 0.122 0.06"),
                ("0.006 0.11 0.05", "0.094 0.122 0.06"),
                ("0.088 0.005 0.05", "0 0.227 0.06"),
            )
        )
        solid = '<geom name="cabinet" type="box" size="0.1 0.11 0.06" pos="0 0.122 0.06" group="3" rgba="0 0 0 0"/>'
        return planar_fixture("cabinet", solid + walls + drawer)

    @property
    def ranges(self) -> Mapping[str, Range]:
        return {
            "cabinet_x": (self.centre_x - self.range_x, self.centre_x + self.range_x),
            "cabinet_y": (self.centre_y - self.range_y, self.centre_y + self.range_y),
            "cabinet_yaw": (-self.range_yaw, self.range_yaw),
        }

    def bind(self, model: mujoco.MjModel) -> Cabinet:
        return Cabinet(Planar.find(model, "cabinet"), Joint.find(model, "drawer"))

    def reset(self, at: Cabinet, draw: Mapping[str, Array], qpos: Array, extra: Array) -> None:
        at.base.place(qpos, draw["cabinet_x"], draw["cabinet_y"], draw["cabinet_yaw"])
        at.slide.place(qpos, 0.0)

    def _handle(self, at: Cabinet, scene: Scene) -> Array:
        """Return [M 3] m, middle of the bar."""
        yaw, out = at.base.yaw.pos(scene), _STAND + at.slide.pos(scene)
        x = at.base.x.pos(scene) + out * np.sin(yaw)
        y = at.base.y.pos(scene) - out * np.cos(yaw)
        return np.stack([x, y, np.full_like(x, _BAR_Z)], axis=1)

    def observe(self, at: Cabinet, scene: Scene) -> Mapping[str, Array]:
        return {
            "handle_rel": self._handle(at, scene) - scene.tcp,
            # Until the fingers close along the pull.
            "turn": fold(at.base.yaw.pos(scene) - scene.yaw, self.periods["turn"]),
            "drawer": at.slide.pos(scene),
            "drawer_vel": at.slide.vel(scene),
        }

    def success(self, at: Cabinet, scene: Scene) -> Bool:
        return at.slide.pos(scene) > self.goal

    def dense(self, at: Cabinet, scene: Scene) -> Array:
        gap = self._handle(at, scene) - scene.tcp
        reach = 1 - np.tanh(8 * np.sqrt((gap**2).sum(axis=1)))
        return 0.3 * reach + 0.7 * np.clip(at.slide.pos(scene) / self.goal, 0, 1)

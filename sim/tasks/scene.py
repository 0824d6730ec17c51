"""Scenes as tasks read and build them: state of the arm, bodies, joints, their MJCF, and named parts of the state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Bool = NDArray[np.bool_]
Range = tuple[float, float]


@dataclass(slots=True)
class Scene:
    """The physical state of M envs as tasks read it (M = N at a step, fewer at a reset)."""

    qpos: Array  # [M nq]
    qvel: Array  # [M nv]
    extra: Array  # [M E] task state that is not physical (a target); written by `Task.reset`
    tcp: Array  # [M 3] m
    yaw: Array  # [M] rad, of a gripper pointing down
    tcp_vel: Array  # [M 3] m/s
    yaw_rate: Array  # [M] rad/s
    opening: Array  # [M] m between the pads, 0 to 0.08
    lag: Array  # [M 4] commanded minus measured: x, y, z [m], yaw [rad]
    gripper: Array  # [M] commanded, -1 closed to +1 open


@dataclass(frozen=True)
class BodySpec:
    """Where a free body lives in qpos and qvel."""

    q: int
    v: int

    @classmethod
    def find(cls, model: mujoco.MjModel, name: str) -> BodySpec:
        joint = model.body(name).jntadr[0]
        return cls(q=int(model.jnt_qposadr[joint]), v=int(model.jnt_dofadr[joint]))

    def pos(self, scene: Scene) -> Array:
        """Return [M 3] m."""
        return scene.qpos[:, self.q : self.q + 3]

    def quat(self, scene: Scene) -> Array:
        """Return [M 4] w x y z."""
        return scene.qpos[:, self.q + 3 : self.q + 7]

    def yaw(self, scene: Scene) -> Array:
        """Return [M] rad: rotation about the vertical."""
        w, x, y, z = self.quat(scene).T
        return np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))

    def up(self, scene: Scene) -> Array:
        """Return [M], vertical component of the body's own z axis; 1 is upright."""
        _, x, y, _ = self.quat(scene).T
        return 1 - 2 * (x * x + y * y)

    def vel(self, scene: Scene) -> Array:
        """Return [M 3] m/s."""
        return scene.qvel[:, self.v : self.v + 3]

    def yaw_rate(self, scene: Scene) -> Array:
        """Return [M] rad/s about the body's z axis."""
        return scene.qvel[:, self.v + 5]

    def place(self, qpos: Array, x: Array, y: Array, z: Array | float, yaw: Array | float = 0.0) -> None:
        """Write an upright pose into `qpos` [M nq]."""
        q, half = self.q, np.asarray(yaw) / 2
        qpos[:, q], qpos[:, q + 1], qpos[:, q + 2] = x, y, z
        qpos[:, q + 3], qpos[:, q + 4], qpos[:, q + 5], qpos[:, q + 6] = np.cos(half), 0, 0, np.sin(half)


@dataclass(frozen=True)
class Joint:
    """Where a hinge or slide joint lives."""

    q: int
    v: int

    @classmethod
    def find(cls, model: mujoco.MjModel, name: str) -> Joint:
        joint = model.joint(name)
        return cls(q=int(joint.qposadr[0]), v=int(joint.dofadr[0]))

    def pos(self, scene: Scene) -> Array:
        """Return [M] m or rad."""
        return scene.qpos[:, self.q]

    def vel(self, scene: Scene) -> Array:
        return scene.qvel[:, self.v]

    def place(self, qpos: Array, value: Array | float) -> None:
        qpos[:, self.q] = value


class Planar(NamedTuple):
    """Joints of a body that moves in the plane: of a `planar_fixture`, or of a block on the table."""

    x: Joint
    y: Joint
    yaw: Joint

    @classmethod
    def find(cls, model: mujoco.MjModel, name: str) -> Planar:
        return cls(*(Joint.find(model, f"{name}_{k}") for k in cls._fields))

    def pos(self, scene: Scene) -> Array:
        """Return [M 2] m."""
        return np.stack([self.x.pos(scene), self.y.pos(scene)], axis=1)

    def vel(self, scene: Scene) -> Array:
        """Return [M 2] m/s."""
        return np.stack([self.x.vel(scene), self.y.vel(scene)], axis=1)

    def place(self, qpos: Array, x: Array, y: Array, yaw: Array | float = 0.0) -> None:
        """Write a pose into `qpos` [M nq]."""
        for joint, value in zip(self, (x, y, yaw), strict=True):
            joint.place(qpos, value)


def free_box(name: str, size: tuple[float, float, float], *, mass: float, rgba: str) -> str:
    """MJCF of a free box; `size`: half lengths in m, `mass` in kg."""
    sx, sy, sz = size
    return f"""
    <body name="{name}" pos="0.5 0 {sz}">
      <freejoint name="{name}"/>
      <geom name="{name}" type="box" size="{sx} {sy} {sz}" mass="{mass}" friction="1.0 0.005 0.0001"
            condim="3" solref="0.01 1" rgba="{rgba}"/>
    </body>"""


def planar_fixture(name: str, inner: str) -> str:
    """MJCF of a heavy fixture whose pose (x, y, yaw) differs per episode and never moves in one.

    Its pose lives in qpos (joints `<name>_x`, `<name>_y`, `<name>_yaw`), so one model serves all envs. An armature of
    1e8 kg makes it immovable: 100 N for 10 s moves it 50 µm.
    """
    return f"""
    <body name="{name}" pos="0 0 0.0" gravcomp="1">
      <joint name="{name}_x" type="slide" axis="1 0 0" armature="1e8"/>
      <joint name="{name}_y" type="slide" axis="0 1 0" armature="1e8"/>
      <joint name="{name}_yaw" type="hinge" axis="0 0 1" armature="1e8"/>{inner}
    </body>"""


def fold(angle: Array, period: float | Array) -> Array:
    """Fold `angle` into [-period/2, period/2), e.g. the yaw of a square with a period of π/2."""
    return (angle + period / 2) % period - period / 2


def turn_between(start: Array, end: Array) -> Array:
    """Return the turn [N] rad from `start` [N] to `end` [N], the shorter way round."""
    turn = end - start
    return np.where(np.abs(turn) > np.pi, fold(turn, 2 * np.pi), turn)


def arm_features(scene: Scene) -> dict[str, Array]:
    """Return the arm's part of `observation.state`, the same in every task (14 numbers)."""
    return {
        "tcp": scene.tcp,
        "yaw": scene.yaw,
        "tcp_vel": scene.tcp_vel,
        "yaw_rate": scene.yaw_rate,
        "opening": scene.opening,
        "gripper": scene.gripper,
        "lag": scene.lag,
    }


_AXES = {1: ("",), 2: ("_x", "_y"), 3: ("_x", "_y", "_z"), 4: ("_x", "_y", "_z", "_yaw")}


@dataclass(frozen=True)
class StateLayout:
    """Which slice of `observation.state` holds which named group."""

    slices: dict[str, slice] = field(default_factory=dict)
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, groups: Mapping[str, Array]) -> StateLayout:
        slices, names = dict[str, slice](), list[str]()
        for key, value in groups.items():
            width = 1 if value.ndim == 1 else value.shape[1]
            slices[key] = slice(len(names), len(names) + width)
            axes = _AXES.get(width, tuple(f"_{i}" for i in range(width)))
            names += [key + a for a in axes]
        return cls(slices=slices, names=tuple(names))

    @property
    def size(self) -> int:
        return len(self.names)

    def pack(self, groups: Mapping[str, Array], out: NDArray[np.float32]) -> None:
        """Write `groups` into `out` [M Ds]."""
        for key, where in self.slices.items():
            value = groups[key]
            out[:, where] = value if value.ndim == 2 else value[:, None]

    def unpack(self, state: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Views of `state` [B Ds] by name: [B] for single numbers, [B k] else."""
        return {k: state[:, w.start] if w.stop - w.start == 1 else state[:, w] for k, w in self.slices.items()}

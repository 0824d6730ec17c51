"""What a task is: a scene, a reset, a success test, an instruction, an expert. All vectorised over N.

A task is a frozen dataclass; its fields are its parameters and enter the env's digest. Fixed for all episodes: the
MJCF of `bodies()` (and `tool()`, `extra_xml()`). Drawn per episode: one uniform number per entry of `ranges`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import mujoco
import numpy as np
from numpy.typing import NDArray

from robopolicy.sim.arm import FINGER_STROKE, HOME, actuator_xml, arm_xml

if TYPE_CHECKING:
    from robopolicy.sim.experts.waypoints import Expert

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
        """[M 3] m."""
        return scene.qpos[:, self.q : self.q + 3]

    def quat(self, scene: Scene) -> Array:
        """[M 4] w x y z."""
        return scene.qpos[:, self.q + 3 : self.q + 7]

    def yaw(self, scene: Scene) -> Array:
        """[M] rad: rotation about the vertical."""
        w, x, y, z = self.quat(scene).T
        return np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))

    def up(self, scene: Scene) -> Array:
        """[M]: vertical component of the body's own z axis; 1 is upright."""
        _, x, y, _ = self.quat(scene).T
        return 1 - 2 * (x * x + y * y)

    def vel(self, scene: Scene) -> Array:
        """[M 3] m/s."""
        return scene.qvel[:, self.v : self.v + 3]

    def yaw_rate(self, scene: Scene) -> Array:
        """[M] rad/s about the body's z axis."""
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
        """[M] m or rad."""
        return scene.qpos[:, self.q]

    def vel(self, scene: Scene) -> Array:
        return scene.qvel[:, self.v]

    def place(self, qpos: Array, value: Array | float) -> None:
        qpos[:, self.q] = value


def free_box(
    name: str, size: tuple[float, float, float], *, mass: float, rgba: str, friction: float = 1.0, condim: int = 3
) -> str:
    """MJCF of a free box; `size`: half lengths in m, `mass` in kg."""
    sx, sy, sz = size
    return f"""
    <body name="{name}" pos="0.5 0 {sz}">
      <freejoint name="{name}"/>
      <geom name="{name}" type="box" size="{sx} {sy} {sz}" mass="{mass}" friction="{friction} 0.005 0.0001"
            condim="{condim}" solref="0.01 1" rgba="{rgba}"/>
    </body>"""


def planar_fixture(name: str, inner: str, *, z: float = 0.0) -> str:
    """MJCF of a heavy fixture whose pose (x, y, yaw) differs per episode and never moves in one.

    Its pose lives in qpos (joints `<name>_x`, `<name>_y`, `<name>_yaw`), so one model serves all envs. An armature of
    1e8 kg makes it immovable: 100 N for 10 s moves it 50 µm.
    """
    return f"""
    <body name="{name}" pos="0 0 {z}" gravcomp="1">
      <joint name="{name}_x" type="slide" axis="1 0 0" armature="1e8"/>
      <joint name="{name}_y" type="slide" axis="0 1 0" armature="1e8"/>
      <joint name="{name}_yaw" type="hinge" axis="0 0 1" armature="1e8"/>{inner}
    </body>"""


def fold(angle: Array, period: float) -> Array:
    """`angle` folded into [-period/2, period/2): a square's yaw differs by less than a quarter turn from any other."""
    return (angle + period / 2) % period - period / 2


@dataclass(frozen=True)
class Task:
    """Base class. Fields are parameters; class variables are what the subclass is."""

    horizon: int = 80  # control steps to truncation
    timestep: float = 0.01  # s, physics
    substeps: int = 5  # per control step: 20 Hz
    hold: int = 1  # consecutive control steps that `success` must last
    joint_noise: float = 0.02  # rad, start configuration around `start`

    name: ClassVar[str]
    instructions: ClassVar[tuple[str, ...]]
    extra_size: ClassVar[int] = 0  # E
    workspace: ClassVar[tuple[tuple[float, float, float], tuple[float, float, float]]] = (
        (0.28, -0.3, 0.015),
        (0.72, 0.3, 0.45),
    )  # m, box for the commanded TCP
    speed: ClassVar[float] = 1.0  # fraction of the full action step of control="delta_pose" (sim/control.py)
    start: ClassVar[tuple[float, ...]] = tuple(HOME.tolist())  # rad
    start_opening: ClassVar[float] = 2 * FINGER_STROKE  # m between the pads
    cone: ClassVar[str] = "pyramidal"
    impratio: ClassVar[float] = 1.0
    expert: ClassVar[type[Expert]]

    # -- scene ------------------------------------------------------------------------------------------------------
    def bodies(self) -> str:
        """MJCF inside `<worldbody>`, after the arm and the table (z = 0 is the table's top)."""
        return ""

    def tool(self) -> str:
        """MJCF inside the hand's body."""
        return ""

    def extra_xml(self) -> str:
        """MJCF beside `<worldbody>`: `<equality>`, `<contact>`, `<default>` …"""
        return ""

    def xml(self) -> str:
        """The whole scene.

        MuJoCo scales the solver's tolerance by the mean inertia of a constraint island. The 1e8 kg of a
        `planar_fixture` in contact would stop the solver eight digits early (grasps leak), so that scale is fixed. The
        solver's warm start is off: it costs an evaluation more than it saves on problems this small.
        """
        return f"""
<mujoco model="{self.name}">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="{self.timestep}" integrator="implicitfast" cone="{self.cone}" impratio="{self.impratio}">
    <flag island="disable" warmstart="disable"/>
  </option>
  <statistic meaninertia="0.35"/>
  <size memory="4M"/>
  <visual>
    <headlight ambient="0.35 0.35 0.35" diffuse="0.5 0.5 0.5" specular="0.1 0.1 0.1"/>
    <global offwidth="1280" offheight="960"/>
    <map znear="0.02" zfar="10"/>
  </visual>
  <asset>
    <texture name="sky" type="skybox" builtin="gradient" rgb1="0.75 0.82 0.9" rgb2="0.95 0.96 0.98" width="64"
             height="64"/>
    <texture name="table" type="2d" builtin="checker" rgb1="0.62 0.57 0.5" rgb2="0.66 0.61 0.54" width="128"
             height="128"/>
    <material name="table" texture="table" texrepeat="8 8" reflectance="0"/>
  </asset>
  <worldbody>
    <light pos="0.3 -0.6 1.8" dir="0.1 0.35 -1" diffuse="0.6 0.6 0.6" castshadow="true"/>
    <camera name="front" pos="1.2 0 0.5" xyaxes="0 1 0 -0.467 0 0.884" fovy="38"/>
    <camera name="side" pos="0.48 -0.85 0.45" xyaxes="1 0 0 0 0.39 0.92" fovy="40"/>
    <geom name="table" type="plane" size="1 1 0.05" pos="0.4 0 0" friction="1 0.005 0.0001" material="table"/>
    {arm_xml(tool=self.tool())}
    {self.bodies()}
  </worldbody>
  <actuator>
    {actuator_xml()}
  </actuator>
  {self.extra_xml()}
</mujoco>"""

    # -- episodes ---------------------------------------------------------------------------------------------------
    @property
    def ranges(self) -> Mapping[str, Range]:
        """Name -> (low, high) of every uniform number drawn per episode, in SI units."""
        raise NotImplementedError

    def bind(self, model: mujoco.MjModel) -> Any:
        """Addresses in the model (`Body.find`, `Joint.find`), handed back to every method below as `at`."""
        raise NotImplementedError

    def reset(self, at: Any, draw: Mapping[str, Array], qpos: Array, extra: Array) -> None:
        """Fill `qpos` [M nq] (arm already placed) and `extra` [M E] from the episode's numbers `draw[name]` [M]."""
        raise NotImplementedError

    def observe(self, at: Any, scene: Scene) -> Mapping[str, Array]:
        """Name -> [M] or [M k]: the task's part of `observation.state`; the arm's part is there already."""
        raise NotImplementedError

    def task_index(self, scene: Scene) -> NDArray[np.int64]:
        """[M] which of `instructions` the episode was told."""
        return np.zeros(len(scene.qpos), dtype=np.int64)

    def success(self, at: Any, scene: Scene) -> Bool:
        """[M] bool: the goal condition holds now (the env counts how long)."""
        raise NotImplementedError

    def failure(self, at: Any, scene: Scene) -> Bool | None:
        """[M] bool: nothing can mend the episode any more; it terminates without success. None: never."""
        return None

    def dense(self, at: Any, scene: Scene) -> Array:
        """[M] reward in [0, 1] per step, for `reward="dense"`; for "shaped" the potential Φ."""
        raise NotImplementedError

    def decorate(self, at: Any, model: mujoco.MjModel, data: mujoco.MjData, extra: Array) -> None:
        """Show non-physical task state (`extra` [E]) in pictures, e.g. move a target's geom in `model` [a copy]."""

    def parameters(self) -> dict[str, Any]:
        """Everything beside the MJCF that defines the task; hashed into the digest."""
        return {
            **asdict(self),
            "ranges": {k: list(v) for k, v in self.ranges.items()},
            "workspace": self.workspace,
            "speed": self.speed,
            "start": self.start,
            "start_opening": self.start_opening,
            "instructions": self.instructions,
        }


def arm_features(scene: Scene) -> dict[str, Array]:
    """The arm's part of `observation.state`, the same in every task (14 numbers)."""
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
        slices, names = {}, []
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

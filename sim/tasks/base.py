"""Base class of tasks: scene, reset, success test, instruction and expert, all vectorised over N.

A task is a frozen dataclass; its fields are its parameters and enter the env's digest. Fixed for all episodes: the
MJCF of `bodies()` (and `tool()`, `extra_xml()`). Drawn per episode: one uniform number per entry of `ranges`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import mujoco
import numpy as np
from numpy.typing import NDArray

from robopolicy.core.errors import ConfigError
from robopolicy.sim.arm import FINGER_STROKE, actuator_xml, arm_xml
from robopolicy.sim.arm_model import ArmLayout, ArmModel
from robopolicy.sim.arms import arm_model
from robopolicy.sim.engine import compile_model
from robopolicy.sim.tasks.scene import Array, Bool, Range, Scene

if TYPE_CHECKING:
    from robopolicy.sim.experts.waypoints import Expert


@dataclass(frozen=True)
class Task:
    """Base class. Fields are parameters; class variables define the subclass."""

    horizon: int = 80  # control steps to truncation
    timestep: float = 0.01  # s, physics
    substeps: int = 5  # per control step: 20 Hz
    hold: int = 1  # consecutive control steps that `success` must last
    joint_noise: float = 0.02  # rad, start configuration around `start`
    arm: str = "panda"  # or another one of `arms`

    name: ClassVar[str]
    instructions: ClassVar[tuple[str, ...]]
    extra_size: ClassVar[int] = 0  # E
    workspace: ClassVar[tuple[tuple[float, float, float], tuple[float, float, float]]] = (
        (0.28, -0.3, 0.015),
        (0.72, 0.3, 0.45),
    )  # m, box for the commanded TCP
    periods: ClassVar[Mapping[str, float]] = {}  # rad, of groups of angles that are folded: seen up to half a period
    speed: ClassVar[float] = 1.0  # fraction of the full action step of control="delta_pose" (sim/control.py)
    arms: ClassVar[tuple[str, ...]] = ("panda",)  # simulated arms that can do it (sim/arms.py)
    start_opening: ClassVar[float] = 2 * FINGER_STROKE  # m between the pads
    capacity: ClassVar[tuple[int, int]] = (32, 160)  # contacts, constraint rows of an env (physics="warp")
    cone: ClassVar[str] = "pyramidal"
    impratio: ClassVar[float] = 1.0
    expert: ClassVar[type[Expert] | None] = None

    @property
    def model(self) -> ArmModel:
        """The simulated arm.

        Raises:
            ConfigError: there is none of this name, or the task was not made for it.
        """
        found = arm_model(self.arm)
        if self.arm not in self.arms:
            can = ", ".join(sorted(task.name for task in Task.__subclasses__() if self.arm in task.arms))
            raise ConfigError(
                f"task.arm={self.arm!r}: {self.name!r} is done by {', '.join(self.arms)} alone. {self.arm} does: {can}"
            )
        return found

    @property
    def start(self) -> tuple[float, ...]:
        """Joint angles [n] rad at which an episode begins, but for its noise."""
        return tuple(self.model.home.tolist())

    @property
    def box(self) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
        """Box for the commanded TCP, m."""
        return self.model.layout.workspace or self.workspace

    def check(self, reward: str) -> None:
        """Check what holds for every task, and that it has this reward.

        Raises:
            ConfigError: names the parameter.
        """
        own = {field.name for field in fields(self)}
        for cls in type(self).__mro__:  # a dataclass takes what is annotated alone
            typed = inspect.get_annotations(cls).keys() if "__dataclass_params__" in vars(cls) else set()
            if lost := sorted(own & vars(cls).keys() - typed):
                raise ConfigError(
                    f"{self.name}: {cls.__name__}.{lost[0]} has no effect. Give it a type, as in `horizon: int = 60`, "
                    "and decorate the class: @dataclass(frozen=True)"
                )
        said: Any = self.instructions
        if not (isinstance(said, tuple) and said and all(isinstance(text, str) and text for text in said)):
            raise ConfigError(
                f"{self.name}: instructions: expected a tuple of texts, one or more, found {said!r}. One alone has a "
                'comma behind it: ("press the button",)'
            )
        for key in ("horizon", "substeps", "hold"):
            if getattr(self, key) < 1:
                raise ConfigError(f"task.{key}: expected at least 1, found {getattr(self, key)}")
        if not 0 < self.timestep < np.inf:
            raise ConfigError(f"task.timestep: expected seconds above 0, found {self.timestep}")
        if reward not in ("sparse", "dense", "shaped"):
            raise ConfigError(f"task.reward: expected sparse, dense or shaped, found {reward!r}")
        if reward != "sparse" and type(self).dense is Task.dense:
            raise ConfigError(f"task.reward: expected sparse, found {reward}: {self.name} has no method dense()")

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
        """Return the MJCF of the scene.

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
    {self._views()}
    <geom name="table" type="plane" size="1 1 0.05" pos="0.4 0 0" friction="1 0.005 0.0001" material="table"/>
    {arm_xml(self.model, tool=self.tool())}
    {self.bodies()}
  </worldbody>
  <actuator>
    {actuator_xml(self.model)}
  </actuator>
  {self.extra_xml()}
</mujoco>"""

    def compile(self) -> mujoco.MjModel:
        """Compile the MJCF of the scene.

        Raises:
            ConfigError: MuJoCo cannot build it.
        """
        try:
            return compile_model(self.xml())
        except ValueError as error:
            values = {f.name: (repr(getattr(self, f.name)), f) for f in fields(self)}
            changed = {key: value for key, (value, f) in values.items() if value != repr(f.default)}
            given = ", ".join(f"task.{key}={value}" for key, value in changed.items()) or "the defaults"
            message = " ".join(str(error).split())
            raise ConfigError(f"task={self.name}: MuJoCo cannot build the scene with {given}. {message}") from error

    def _views(self) -> str:
        """MJCF of the light and of the fixed cameras, turned and moved as the arm's layout is."""
        layout = self.model.layout
        views = """<light pos="0.3 -0.6 1.8" dir="0.1 0.35 -1" diffuse="0.6 0.6 0.6" castshadow="true"/>
    <camera name="front" pos="1.2 0 0.5" xyaxes="0 1 0 -0.467 0 0.884" fovy="38"/>
    <camera name="side" pos="0.48 -0.85 0.45" xyaxes="1 0 0 0 0.39 0.92" fovy="40"/>"""
        if layout == ArmLayout():
            return views
        turn, (x, y) = layout.turn * np.pi / 2, layout.centre
        x, y = x - 0.5 * np.cos(turn), y - 0.5 * np.sin(turn)
        return f'<frame pos="{x:.12g} {y:.12g} 0" euler="0 0 {turn:.12g}">{views}</frame>'

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
        """Return the indices [M] of the episodes' instructions in `instructions`."""
        return np.zeros(len(scene.qpos), dtype=np.int64)

    def success(self, at: Any, scene: Scene) -> Bool:
        """Return whether [M] the goal condition holds now (the env counts the steps)."""
        raise NotImplementedError

    def failure(self, at: Any, scene: Scene) -> Bool | None:
        """Return whether [M] the episode has failed and terminates without success. None: never."""
        return None

    def dense(self, at: Any, scene: Scene) -> Array:
        """Return [M] reward in [0, 1] per step, for `reward="dense"`; for "shaped" the potential Φ."""
        raise NotImplementedError

    def decorate(self, at: Any, model: mujoco.MjModel, data: mujoco.MjData, extra: Array) -> None:
        """Show non-physical task state (`extra` [E]) in pictures, e.g. move a target's geom in `model` [a copy]."""

    def parameters(self) -> dict[str, Any]:
        """Everything beside the MJCF that defines the task; hashed into the digest."""
        own = asdict(self)
        if self.arm == "panda":  # envs from before there was another arm keep their digests
            del own["arm"]
        if (layout := self.model.layout) != ArmLayout():
            own["layout"] = asdict(layout)
        return {
            **own,
            "ranges": {k: list(v) for k, v in self.ranges.items()},
            **{k: getattr(self, k) for k in ("speed", "start", "start_opening", "instructions")},
            "workspace": self.box,
        }

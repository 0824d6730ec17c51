"""Observations of a policy, built from the arm's state, features and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robopolicy.config.instantiate import build
from robopolicy.core.errors import ConfigError, SpecError, closest
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import BASE_ACTION, POINTS, STATE, TASK, Obs
from robopolicy.core.untrusted import refusing
from robopolicy.real.control.depth_cameras import DepthCamera, Moment
from robopolicy.real.control.joint_order import JointOrder
from robopolicy.real.control.robots import State
from robopolicy.real.control.state_forecast import ForecastState
from robopolicy.real.ros2.wiring import Wiring
from robopolicy.real.safety import SafetyError
from robopolicy.real.safety.array_ops import Array
from robopolicy.sim.env import SimEnv
from robopolicy.sim.tasks.scene import fold
from robopolicy.utils.point_clouds import PointCloud, Points

ARM = ("tcp", "yaw", "tcp_vel", "yaw_rate", "opening", "gripper", "lag")  # groups that follow from the arm's state


def one_env(task: dict[str, Any]) -> SimEnv:
    """Build the task's env, with one env.

    Raises:
        ConfigError: it is not a task of the native suite, or its values, which a run may have brought, cannot be used.
    """
    with refusing("task", ConfigError):
        env = build(task, "task", num_envs=1, seed=0)
    if not isinstance(env, SimEnv):
        raise ConfigError("task: the simulated arm needs a task of the native suite")
    return env


def feature_names(env: SimEnv) -> tuple[str, ...]:
    """Elements of the observed state that do not follow from the arm's own state, in the spec's order."""
    arm = {i for group in ARM for i in range(*env.layout.slices[group].indices(env.layout.size))}
    return tuple(name for i, name in enumerate(env.layout.names) if i not in arm)


def feature_values(env: SimEnv, obs: Obs) -> Array:
    """Return the values of `feature_names` in an observation of one arm."""
    index = [env.layout.names.index(name) for name in feature_names(env)]
    return obs[STATE][0].double().numpy()[index]


class Arrivals:
    """Keep the newest named values and pictures that a policy needs beside the arm's state.

    Args:
        names: of the values. cameras: features whose pictures the policy sees.
    """

    def __init__(self, names: tuple[str, ...], cameras: tuple[str, ...]) -> None:
        self.names, self.cameras, self._order = names, cameras, JointOrder(names, what="features")
        self.forget()

    def forget(self) -> None:
        """Drop all values and pictures."""
        self.features: Array | None = None  # in the order of `names`
        self.moment: Moment | None = None  # at which they were seen, where that is known
        self.pictures: Obs = {}  # [1 3 H W], and clouds [1 P 3]

    def take(self, names: Sequence[str], values: Sequence[float], moment: Moment | None = None) -> None:
        """Take named values, seen at `moment`; None: with the arm's newest state.

        Raises:
            SafetyError: one is missing, doubled or foreign. SpecError: one is not finite.
        """
        found = self._order.arrange(names, values)
        if not np.isfinite(found).all():
            raise SpecError(f"features: {self.names[int(np.argmax(~np.isfinite(found)))]!r} is not finite")
        self.features, self.moment = found, moment

    def take_image(self, key: str, picture: NDArray[np.uint8]) -> None:
        """Take a camera's newest picture [3 H W]."""
        self.pictures[key] = torch.from_numpy(picture)[None]

    def take_cloud(self, key: str, cloud: Points) -> None:
        """Take a depth camera's newest cloud [P 3] m."""
        self.pictures[key] = torch.from_numpy(cloud)[None]

    def check(self) -> None:
        """Raise SpecError where something has not come."""
        if self.features is None and self.names:
            raise SpecError(f"features: nothing has come; the policy needs {list(self.names)}")
        if missing := [key for key in self.cameras if key not in self.pictures]:
            raise SpecError(f"{missing[0]}: no picture has come; the policy needs {list(self.cameras)}")


class Observer(Arrivals):
    """Observations as in the simulator, by its own code: the arm's part from joints, the rest as it came.

    For a forecast of the arm, the rest changes from when it was seen as it does with the arm in the simulator, and goes
    on at its speed.

    Args:
        env: of the task; its controller decodes the actions too, since commanded poses are observed.
        cameras: features whose pictures the policy sees.
    """

    def __init__(self, env: SimEnv, cameras: tuple[str, ...] = ()) -> None:
        super().__init__(feature_names(env), cameras)
        self.env = env
        self._index = torch.tensor([env.layout.names.index(n) for n in self.names], dtype=torch.int64)
        self._moves, self._speeds = moving_elements(env)
        self._angles, self._periods = folded_elements(env)
        self._qpos, self._qvel = env.physics.qpos.copy(), np.zeros_like(env.physics.qvel)

    def __call__(self, state: State) -> Obs:
        """Single frames [1 …]; raises SpecError where something has not come."""
        self.check()
        obs = self._sense(state)
        if self.features is not None:
            values = torch.from_numpy(self.features).float()
            if isinstance(state, ForecastState):
                then, since = self._state_when_seen(state.measured)
                values += (obs[STATE] - self._sense(then)[STATE])[0, self._index]
                obs[STATE][0, self._index] = values
                moved = obs[STATE][0].index_add(0, self._moves, (state.ahead + since) * obs[STATE][0, self._speeds])
                angles = fold(moved[self._angles].double().numpy(), self._periods)
                moved[self._angles] = torch.from_numpy(angles).float()
                values = moved[self._index]
            obs[STATE][0, self._index] = values
        return {**obs, **self.pictures}

    def _state_when_seen(self, measured: State) -> tuple[State, float]:
        """Return the arm's state of when the features were seen, and s from then to `measured`."""
        if self.moment is None or measured.stamp is None:
            return measured, 0.0
        try:
            q = self.moment.log.at(self.moment.stamp)
        except SafetyError:  # no states are as old, or none as new has come yet
            return measured, 0.0
        return replace(measured, q=q), measured.stamp - self.moment.stamp

    def _sense(self, state: State) -> Obs:
        """Return the simulator's observation with the arm in `state`, and all else as at the start."""
        n = len(state.q)
        self._qpos[0, :n], self._qvel[0, :n] = state.q, state.qd
        self._qpos[0, n : n + 2] = state.opening / 2
        return self.env.sense(self._qpos, self._qvel)[0]


def moving_elements(env: SimEnv) -> tuple[Tensor, Tensor]:
    """Return the elements [M] of the observed state that move by themselves, and those [M] that are their velocities.

    A group `<name>_vel` is the velocity of the groups `<name>` and `<name>_rel`, where they exist in its size.
    """
    moves, speeds, slices = list[int](), list[int](), env.layout.slices
    for name, where in slices.items():
        velocity = slices.get(f"{name.removesuffix('_rel')}_vel")
        if name not in ARM and velocity is not None and velocity.stop - velocity.start == where.stop - where.start:
            moves += range(where.start, where.stop)
            speeds += range(velocity.start, velocity.stop)
    return torch.tensor(moves, dtype=torch.int64), torch.tensor(speeds, dtype=torch.int64)


def folded_elements(env: SimEnv) -> tuple[Tensor, Array]:
    """Return the elements [M] of the observed state that are folded angles, and their periods [M] rad.

    Raises:
        SpecError: the task gives a period for a group that it does not observe.
    """
    size, slices = env.layout.size, env.layout.slices
    if foreign := sorted(env.task.periods.keys() - slices.keys()):
        raise SpecError(f"{env.task.name}.periods: {foreign[0]!r} is not observed. {closest(foreign[0], slices)}")
    periods = {i: p for name, p in env.task.periods.items() for i in range(*slices[name].indices(size))}
    return torch.tensor(list(periods), dtype=torch.int64), np.array(list(periods.values()))


def check_robot(spec: PolicySpec, wiring: Wiring) -> None:
    """Whether a policy fits a robot.

    Raises:
        SpecError: all the ways in which it does not.
    """
    found = []
    for key, mine in (("base", spec.action.frame), ("tcp", spec.action.tcp)):
        if mine not in (wiring.frames[key], "joint"):
            found.append(f"frames.{key}: the policy acts in {mine!r}, the robot's wiring says {wiring.frames[key]!r}")
    given = {**wiring.cameras, **wiring.depth_cameras}
    for key in (k for k in spec.observation if k not in (STATE, TASK, BASE_ACTION, *given)):
        part = "depth_cameras" if key.startswith(POINTS) else "cameras"
        found.append(f"{key}: the policy sees it, the wiring's `{part}` lack it. {closest(key, given)}")
    if spec.dt < 2 * wiring.tick_s:
        found.append(f"dt: the policy acts every {spec.dt} s, the robot every {wiring.tick_s} s")
    if found:
        raise SpecError("policy and robot do not fit:\n  - " + "\n  - ".join(found))


def depth_cameras(specs: Sequence[PolicySpec], wiring: Wiring, task: PointCloud | None) -> dict[str, DepthCamera]:
    """Return the depth cameras whose clouds a policy, or one that it corrects, sees, by feature.

    Args:
        specs: of these policies. task: how the task makes its clouds; None: there is no task, and the wiring says it.

    Raises:
        SpecError: nothing says how to make the clouds, or not as the policy was trained.
        WiringError: a calibration is of another camera, of another arm, or older than the arm's last change.
    """
    seen = {k: f for spec in specs for k, f in spec.observation.items() if k in wiring.depth_cameras}
    found, profile = {}, wiring.profile()
    for key, feature in seen.items():
        source, where = wiring.depth_cameras[key], f"depth_cameras.{key}.cloud"
        if (cloud := task or source.cloud) is None:
            raise SpecError(
                f"{where}: there is no task that says how clouds are made. Give box, count, frame and sampling"
            )
        if source.cloud not in (None, cloud):
            raise SpecError(f"{where}: expected that of the policy's task, {cloud}. Leave it out")
        if feature.shape != (cloud.count, 3) or feature.names not in (None, cloud.names):
            raise SpecError(
                f"{where}: the policy sees {list(feature.shape)} with coordinates {feature.names}, this gives "
                f"{[cloud.count, 3]} with {cloud.names}. Correct count and frame"
            )
        found[key] = DepthCamera(key, source, wiring.calibration(key), profile, cloud)
    return found


def check_features(names: Sequence[str], wiring: Wiring) -> None:
    """Raise SpecError where a policy needs named values and the robot has no topic for them."""
    if names and wiring.topics["features"] is None:
        raise SpecError(f"features: the policy sees {list(names[:5])} beside the arm, and topics.features is null")

"""Action to joint commands: the control modes, vectorised over N, with one hook for joint-space limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robopolicy.core.errors import CheckpointError, ConfigError, closest
from robopolicy.core.types import ActionSpec
from robopolicy.sim.arm import FINGER_STROKE
from robopolicy.sim.kinematics import PANDA, Frame, SerialArm, ik_step, yaw_of

Array = NDArray[np.float64]
JointFilter = Callable[[Array], Array]  # joint targets [N n] rad -> permitted joint targets [N n] rad

GRIPPER_MEANING = "absolute target opening: -1 closed, +1 open (0.08 m between the pads), linear between"
STEP_M, STEP_RAD = 0.02, 0.12  # a full action's translation per axis and yaw, per control step
YAW_LIMIT = 1.7  # rad, of the commanded pose, either way
LAG_M, LAG_RAD = 0.05, 0.3  # the commanded pose stays this close to the measured one, so it cannot wind up


class Controller:
    """Base class: commanded state of N arms. `pos`, `yaw`, `grip` and `q` are arrays over N that resume restores."""

    spec: ActionSpec
    redirected: NDArray[np.bool_]  # [N] the last command differs from the requested one
    intervened: NDArray[np.bool_]  # [N] the filter says that it had to step in; without a say, as `redirected`

    def __init__(self, num_envs: int, *, dt: float, joint_filter: JointFilter | None, arm: SerialArm = PANDA) -> None:
        self.dt, self.joint_filter, self.arm = dt, joint_filter, arm
        self.pos: Array = np.zeros((num_envs, 3))  # m, commanded TCP
        self.yaw: Array = np.zeros(num_envs)  # rad
        self.grip: Array = np.ones(num_envs)  # in [-1, 1]
        self.q = np.tile(arm.home, (num_envs, 1))  # [N n] rad, commanded joints
        self.redirected, self.intervened = np.zeros((2, num_envs), dtype=bool)
        self.frame: Frame | None = None  # of the commanded joints
        self._ctrl = np.empty((num_envs, arm.dof + 2))

    def reset(self, rows: NDArray[np.int64], qpos: Array, frame: Frame) -> None:
        """Start `rows` [M] from where the arm is: `qpos` [M nq], `frame` its tool frame."""
        self.q = self.q.copy()
        n = self.arm.dof
        self.q[rows] = qpos[:, :n]
        self.pos[rows], self.yaw[rows] = frame.pos, yaw_of(frame)
        if self.frame is not None:
            for whole, part in zip(self.frame, frame, strict=True):
                whole[rows] = part
        self.grip[rows] = qpos[:, n : n + 2].mean(axis=1) / FINGER_STROKE * 2 - 1
        self.redirected[rows] = self.intervened[rows] = False
        if (restart := getattr(self.joint_filter, "reset", None)) is not None:  # it remembers what was commanded
            restart(rows, qpos[:, :n])

    def follow(self, frame: Frame) -> None:
        """Take `forward(self.q, self.arm)` of all N, which the env computes together with the measured frames.

        Where the joint filter changed the last command, the commanded pose is that of the filtered joints. So the
        observed lag stays true, and the commanded pose does not wind up.
        """
        self.frame = frame
        if self.redirected.any():
            rows = self.redirected
            self.pos[rows], self.yaw[rows] = frame.pos[rows], yaw_of(frame)[rows]

    def command(self, action: Array, tcp: Array, yaw: Array) -> Array:
        """Return servo targets [N n + 2] for clamped `action` [N Da], measured `tcp` [N 3] m and `yaw` [N] rad."""
        raise NotImplementedError

    def _joints(self, wanted: Array) -> Array:
        """Pass joint targets through the filter; [N n + 2] servo targets."""
        if self.joint_filter is not None:
            allowed = self.joint_filter(wanted)
            self.redirected = (allowed != wanted).any(axis=1)
            self.intervened = getattr(self.joint_filter, "intervened", self.redirected)
            wanted = allowed
        self.q = wanted
        self._ctrl[:, :-2] = wanted
        self._ctrl[:, -2:] = ((self.grip + 1) * (0.5 * FINGER_STROKE))[:, None]
        return self._ctrl

    def state_dict(self) -> dict[str, Any]:
        own = {k: getattr(self, k).copy() for k in ("pos", "yaw", "grip", "q")}
        if (save := getattr(self.joint_filter, "state_dict", None)) is not None:  # it remembers what was commanded
            own |= {f"filter.{k}": v.copy() for k, v in save().items()}
        return own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for k in ("pos", "yaw", "grip", "q"):
            setattr(self, k, np.array(state[k], dtype=np.float64))
        self.redirected = np.zeros(len(self.q), dtype=bool)  # `pos` has it already
        kept = {k.removeprefix("filter."): v for k, v in state.items() if k.startswith("filter.")}
        load = getattr(self.joint_filter, "load_state_dict", None)
        if (load is None) != (not kept):
            saved, here = ("one", "none") if kept else ("none", "one")
            raise CheckpointError(
                f"joint_filter: the env was saved with {saved} that has a memory, this one has {here}. "
                "Resume with the config it was saved under."
            )
        if load is not None:
            load(kept)


class DeltaPose(Controller):
    """[dx, dy, dz, dyaw, gripper]: increments of the *commanded* pose of a gripper that points down.

    The commanded pose stays inside the task's workspace box and within LAG_M, LAG_RAD of the measured pose. `speed`:
    the task's fraction of the full step, and of that lag too, so that a slow task's arm cannot press hard either.
    """

    def __init__(
        self,
        num_envs: int,
        *,
        dt: float,
        joint_filter: JointFilter | None = None,
        arm: SerialArm = PANDA,
        workspace: tuple[tuple[float, float, float], tuple[float, float, float]],
        speed: float = 1.0,
    ) -> None:
        super().__init__(num_envs, dt=dt, joint_filter=joint_filter, arm=arm)
        scale = speed * dt / 0.05  # the same speed limits at any control rate
        self.lag_m, self.lag_rad = speed * LAG_M, speed * LAG_RAD
        self.low, self.high = (np.array(b, dtype=np.float64) for b in workspace)
        limit = (*(STEP_M * scale,) * 3, STEP_RAD * scale, 1.0)
        self.spec = ActionSpec(
            names=("dx", "dy", "dz", "dyaw", "gripper"),
            units=("m", "m", "m", "rad", "1"),
            low=tuple(-v for v in limit),
            high=limit,
            frame="base",
            tcp="tcp",
            rotation="yaw",
            reference="commanded",
            gripper=4,
            gripper_meaning=GRIPPER_MEANING,
        )

    def command(self, action: Array, tcp: Array, yaw: Array) -> Array:
        pos = np.clip(self.pos + action[:, :3], tcp - self.lag_m, tcp + self.lag_m)
        self.pos = np.clip(pos, self.low, self.high)
        angle = np.clip(self.yaw + action[:, 3], yaw - self.lag_rad, yaw + self.lag_rad)
        self.yaw = np.clip(angle, -YAW_LIMIT, YAW_LIMIT)
        self.grip = action[:, 4].copy()
        assert self.frame is not None
        return self._joints(ik_step(self.q, self.frame, self.pos, self.yaw, dt=self.dt, arm=self.arm))


class JointPosition(Controller):
    """[q1..qn, gripper]: absolute joint targets in rad."""

    def __init__(
        self, num_envs: int, *, dt: float, joint_filter: JointFilter | None = None, arm: SerialArm = PANDA, **_: Any
    ) -> None:
        super().__init__(num_envs, dt=dt, joint_filter=joint_filter, arm=arm)
        n = arm.dof
        self.spec = ActionSpec(
            names=(*(f"q{i + 1}" for i in range(n)), "gripper"),
            units=(*("rad",) * n, "1"),
            low=(*arm.low.tolist(), -1.0),
            high=(*arm.high.tolist(), 1.0),
            frame="joint",
            tcp="tcp",
            rotation="joint",
            reference="absolute",
            gripper=n,
            gripper_meaning=GRIPPER_MEANING,
        )

    def command(self, action: Array, tcp: Array, yaw: Array) -> Array:
        self.grip = action[:, -1].copy()
        return self._joints(action[:, :-1].copy())

    def follow(self, frame: Frame) -> None:
        super().follow(frame)
        # The commanded pose, so that the observed lag means the same in both modes.
        self.pos, self.yaw = frame.pos.copy(), yaw_of(frame)


CONTROLLERS: dict[str, Callable[..., Controller]] = {"delta_pose": DeltaPose, "joint_position": JointPosition}


def make_controller(name: str, num_envs: int, **kw: Any) -> Controller:
    if name not in CONTROLLERS:
        raise ConfigError(f"control={name!r} is not a control mode. {closest(name, CONTROLLERS)}")
    return CONTROLLERS[name](num_envs, **kw)

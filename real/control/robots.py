"""The interface of an arm to the control loop, and a simulated arm as strict as the maker's controller.

The arm gets three control points ahead of the newest it plays: the spline between ticks is its own business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import mujoco
import numpy as np

from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.motion import upsample
from robopolicy.real.safety.profile import Profile
from robopolicy.sim.arm import FINGER_STROKE, SERVO_LAG
from robopolicy.sim.tasks.base import Task

RATES = ("velocity", "acceleration", "jerk")
LOST_IN_A_ROW = 20  # packets, after which the maker's arm stops (libfranka: communication_constraints_violation)
ROUNDING = 32 * np.finfo(float).eps  # of an angle of 1 rad, by which a difference may be wrong


@dataclass(frozen=True, eq=False)
class State:
    """One reading."""

    q: Array  # [n] rad
    qd: Array  # [n] rad/s
    opening: float  # m between the pads
    torque: Array | None = None  # [n] N·m, external
    played: Array | None = None  # [n] rad, the newest control point that reached the arm, where it says so
    stamp: float | None = None  # s of the arm's clock, where it says so


class Robot(Protocol):
    """An arm that plays control points at the tick rate."""

    joints: tuple[str, ...]

    def read(self) -> State | None:
        """Return the newest state since the last call, None if there is none."""
        ...

    def write(self, command: Array, opening: float, stop: Array) -> None:
        """Play control point `command` [n] rad next and `stop` [S n] after it, unless another comes first."""
        ...


@dataclass
class Trouble:
    """How the simulated arm misbehaves."""

    drop: float = 0.0  # fraction of commands lost
    delay: int = 0  # ticks until a state is seen
    frozen: bool = False  # no states come
    nan: bool = False  # states hold a NaN
    packet_loss: float = 0.0  # fraction of the 1 kHz packets that do not reach the arm


class MujocoArm:
    """Simulate a task's arm under a 1 kHz controller with the maker's conditions of abortion.

    Its servos are the simulator's, with velocity feed-forward as a maker's: no lag at constant speed.
    It judges position, velocity, acceleration and jerk of commands, NaN, and packets lost in a row;
    torque is bounded by its motors, and no reason to abort. `aborted` names the first reason; an aborted arm holds its
    last target and takes no more. A lost command is replaced by the next point of the last stop that came; a lost
    packet, between the driver and the arm, by motion at the same acceleration.

    Args:
        task: scene and physics; time step 1 ms whatever the task says.
        profile: of which the maker's own limits are enforced.
        dt: s between ticks.
        trouble: how it misbehaves; `seed` draws which commands are lost.
    """

    RATE = 1000.0

    def __init__(
        self, task: Task, profile: Profile, *, dt: float = 0.004, trouble: Trouble | None = None, seed: int = 0
    ) -> None:
        self.joints, self.task, self.profile, self.dof = profile.joints, task, profile, len(profile.joints)
        self.model = task.compile()
        self.model.opt.timestep = 1 / self.RATE
        self.data = mujoco.MjData(self.model)
        self.at = task.bind(self.model)
        self.trouble, self.rng = trouble or Trouble(), np.random.default_rng(seed)
        self.dt, self.times = dt, round(dt * self.RATE)
        self._units: Array = (1 / self.RATE) ** np.array([[1], [2], [3]])  # s, s², s³
        self._most: Array = np.array([profile.maker[name] for name in RATES]) * (1 + 1e-6)
        self.extra: Array = np.zeros((1, task.extra_size))
        self.aborted = ""
        self.stop_points: Array = np.zeros((0, self.dof))
        start = self.model.qpos0.copy()
        start[: self.dof], start[self.dof : self.dof + 2] = task.start, task.start_opening / 2
        self.place(start, self.extra)

    def place(self, qpos: Array, extra: Array) -> None:
        """Start over at rest in `qpos` [nq] with task state `extra` [1 E]."""
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:] = qpos
        self.extra = extra.copy()
        q, fingers = qpos[: self.dof], qpos[self.dof : self.dof + 2]
        self.data.ctrl[: self.dof] = q
        self.data.ctrl[self.dof :] = fingers
        self.points: Array = np.tile(q, (4, 1))  # control points, oldest first
        self.played: Array = np.tile(q, (4, 1))  # 1 kHz samples, oldest first
        self.aborted, self.stop_points, self.opening = "", q[None].copy(), float(fingers.sum())
        self._lost = 0  # packets, in a row
        mujoco.mj_forward(self.model, self.data)
        self.states = [self._state()] * (self.trouble.delay + 1)

    def read(self) -> State | None:
        if self.trouble.frozen:
            return None
        state = self.states[0]
        if self.trouble.nan:
            return State(np.full(self.dof, np.nan), state.qd, state.opening, state.torque, state.played)
        return state

    def write(self, command: Array, opening: float, stop: Array) -> None:
        if self.rng.random() < self.trouble.drop:
            return
        self._next, self.stop_points, self.opening = command.copy(), stop.copy(), opening

    _next: Array | None = None

    def advance(self) -> None:
        """Advance the physics by a tick. Without a new command the last one's stop is played."""
        if self._next is None:
            self._next, self.stop_points = self.stop_points[0], self.stop_points[1:]
            if not len(self.stop_points):
                self.stop_points = self._next[None]
        self.points = np.concatenate([self.points[1:], self._next[None]])
        self._next = None
        half = float(np.clip(self.opening / 2, 0.0, FINGER_STROKE)) if np.isfinite(self.opening) else None
        for point in upsample(self.points, self.times):
            q = self._received(point)
            self.played = np.concatenate([self.played[1:], q[None]])
            if not self.aborted:
                self.held, self.aborted = self.played[-2], self._judge()
            if not self.aborted:
                self.data.ctrl[: self.dof] = q + SERVO_LAG * (q - self.played[-2]) * self.RATE
                if half is not None:
                    self.data.ctrl[self.dof :] = half
            else:
                self.data.ctrl[: self.dof] = self.held
            mujoco.mj_step(self.model, self.data)
        self.states = [*self.states[1:], self._state()]

    def _received(self, point: Array) -> Array:
        """Return the point that is played for a packet that may be lost."""
        if not self.trouble.packet_loss or self.rng.random() >= self.trouble.packet_loss:
            self._lost = 0
            return point
        self._lost += 1
        before, last, now = self.played[1:]
        return now + 2 * (now - last) - (last - before)

    def _judge(self) -> str:
        """Return the maker's abort conditions on the played samples."""
        m, q = self.profile.maker, self.played
        if self._lost >= LOST_IN_A_ROW:
            return "communication"
        if not np.isfinite(q).all():
            return "not finite"
        if ((q[-1] < m["low"]) | (q[-1] > m["high"])).any():
            return "position"
        first = q[1:] - q[:-1]
        if self.profile.edge is not None and self._too_fast_there(first[-1] * self.RATE, 0.5 * (q[-1] + q[-2])):
            return "velocity"
        second = first[1:] - first[:-1]
        value = np.abs(np.array([first[-1], second[-1], second[-1] - second[-2]])) / self._units
        bad = (value > self._most + ROUNDING * np.abs(q[-1]) / self._units).any(axis=1)
        return RATES[int(bad.argmax())] if bad.any() else ""

    def _too_fast_there(self, v: Array, q: Array) -> bool:
        """Whether `v` [n] rad/s is beyond the maker's limit at `q` [n] rad, near the ends of the joints."""
        assert self.profile.edge is not None
        offset, deceleration, low, high = self.profile.edge
        up, down = (np.sqrt(np.maximum(0.0, 2 * deceleration * room)) - offset for room in (high - q, q - low))
        return bool(((v > np.maximum(0.0, up) + 1e-6) | (-v > np.maximum(0.0, down) + 1e-6)).any())

    def _state(self) -> State:
        q, n = self.data.qpos, self.dof
        return State(
            q[:n].copy(), self.data.qvel[:n].copy(), float(q[n : n + 2].sum()), self.data.qfrc_constraint[:n].copy(),
            self.points[-1].copy(),
        )  # fmt: skip

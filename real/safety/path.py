"""What a certificate looks at: a command, the stop after it, and the pose from which it starts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from real.safety import motion
from real.safety.body import Body
from real.safety.kinematics import Frames, jacobian

Array = NDArray[np.float64]
Bool = NDArray[np.bool_]

SAMPLE = 0.01  # s, at most, between sampled knots; what happens in between is bounded, not hoped for


@dataclass(frozen=True, eq=False)
class Path:
    """History, the newest command and the stop after it, for N arms.

    Sampled knots start at the one where the newest command begins to matter and end at rest. Flattened poses are
    ordered [N·S].
    """

    c: Array  # [N K n] control points: HISTORY old ones, the command, its stop, at rest at the end
    body: Body
    dt: float

    @classmethod
    def of(cls, history: Array, command: Array, body: Body, dt: float) -> Path:
        """`history` [N HISTORY n] and `command` [N n], which must differ by a finite velocity."""
        c = np.concatenate([history[:, 1:], command[:, None]], axis=1)
        acc, jerk = body.profile.acceleration, body.profile.jerk
        time = motion.stop_time(motion.velocity(c, dt), motion.acceleration(c, dt), acc, jerk)
        stride = cls.stride_at(dt)
        # No state inside the limits needs longer; one outside fails for that, whatever its stop.
        longest = (body.profile.velocity / acc + 2.5 * acc / jerk).max()
        ticks = int(np.ceil(min(float(time.max()), longest) / dt)) + 3
        ticks += -(ticks + 1) % stride  # so that the last sampled knot is at rest
        return cls(np.concatenate([history, command[:, None], motion.stop(c, acc, jerk, dt, ticks)], axis=1), body, dt)

    @staticmethod
    def stride_at(dt: float) -> int:
        """Ticks between sampled knots."""
        return max(1, int(SAMPLE / dt + 1e-9))

    @property
    def stop(self) -> Array:
        """[N ticks n] control points after the command."""
        return self.c[:, motion.HISTORY + 1 :]

    @cached_property
    def stride(self) -> int:
        return self.stride_at(self.dt)

    @cached_property
    def v(self) -> Array:
        """[N K−1 n] rad/s: first differences."""
        return (self.c[:, 1:] - self.c[:, :-1]) / self.dt

    @cached_property
    def a(self) -> Array:
        """[N K−2 n] rad/s²: second differences."""
        return (self.v[:, 1:] - self.v[:, :-1]) / self.dt

    @cached_property
    def j(self) -> Array:
        """[N K−3 n] rad/s³: third differences."""
        return (self.a[:, 1:] - self.a[:, :-1]) / self.dt

    @cached_property
    def _knots(self) -> tuple[Array, Array, Array]:
        """Control points before, at and after each sampled knot: [N S n] each."""
        first, last = motion.HISTORY - 2, self.c.shape[1] - 2
        before, here, after = (self.c[:, first + i : last + 1 + i : self.stride] for i in (-1, 0, 1))
        return before, here, after

    @cached_property
    def q(self) -> Array:
        """[N S n] rad at sampled knots."""
        before, here, after = self._knots
        return (before + 4 * here + after) / 6

    @cached_property
    def qd(self) -> Array:
        """[N S n] rad/s at sampled knots."""
        before, _, after = self._knots
        return (after - before) / (2 * self.dt)

    def _window(self, value: Array, first: int, width: int) -> Array:
        """Largest |value| [N · n] over the differences that shape each interval between sampled knots: [N S−1 n]."""
        size, step = self.q.shape[1] - 1, self.stride
        value = np.abs(value)
        out = value[:, first::step][:, :size]
        for i in range(1, width):
            out = np.maximum(out, value[:, first + i :: step][:, :size])
        return out

    @cached_property
    def speed(self) -> Array:
        """[N S−1 n] rad/s: bound on each joint's speed between sampled knots."""
        return self._window(self.v, motion.HISTORY - 3, self.stride + 2)

    @cached_property
    def accel(self) -> Array:
        """[N S−1 n] rad/s²: the same for acceleration."""
        return self._window(self.a, motion.HISTORY - 3, self.stride + 1)

    @cached_property
    def jerk(self) -> Array:
        """[N S−1 n] rad/s³: the same for jerk."""
        return self._window(self.j, motion.HISTORY - 3, self.stride)

    @cached_property
    def travel(self) -> Array:
        """[N S−1 n] rad: bound on how far each joint moves between sampled knots."""
        return self.speed * (self.stride * self.dt)

    @cached_property
    def frames(self) -> Frames:
        """At all N·S sampled knots."""
        return self.body.profile.chain.forward(self.q.reshape(-1, self.q.shape[2]))

    @cached_property
    def points(self) -> Array:
        """[R 3 N·S] m: the body's points at all sampled knots."""
        return self.body.points.at(self.frames)

    @cached_property
    def tcp_jacobian(self) -> Array:
        """[n 3 N·S] m/rad at all sampled knots."""
        return jacobian(self.frames, self.points[self.body.tcp], self.q.shape[2])

    def between(self, distance: Array, reach: Array) -> Array:
        """Least value that a distance can take on the whole path, [R N] m.

        Args:
            distance: [R N·S] m at sampled knots.
            reach: [R n] m: how much it changes per radian of each joint, at most.
        """
        n, s = self.q.shape[:2]
        d = distance.reshape(-1, n, s)
        change = (self.travel.reshape(n * (s - 1), -1) @ reach.T).reshape(n, s - 1, -1)
        return (0.5 * (d[:, :, :-1] + d[:, :, 1:] - change.transpose(2, 0, 1))).min(axis=2)


@dataclass(frozen=True, eq=False)
class Here:
    """One arm now, where a limit linearises itself."""

    q: Array  # [n] rad, newest command
    v: Array  # [n] rad/s
    stop_time: Array  # [n] s, roughly that each joint needs to stop
    dt: float
    frames: Frames  # at q
    points: Array  # [R 3 1] m at q

    @classmethod
    def of(cls, history: Array, body: Body, dt: float) -> Here:
        """From `history` [HISTORY n]."""
        profile, q, v = body.profile, history[-1], (history[-1] - history[-2]) / dt
        frames = profile.chain.forward(q[None])
        lag = profile.acceleration / profile.jerk
        return cls(q, v, np.abs(v) / profile.acceleration + lag, dt, frames, body.points.at(frames))

    def brake(self, gradient: Array, room: Array) -> tuple[Array, Array]:
        """Rows G [m n], h [m] with G·v ≤ h for the next velocity v, that keep `room` [m] positive at the stop's end.

        `gradient` [m n]: of the room by joint angles. The stop's end is linear in v to first order.
        """
        weight = self.dt + self.stop_time
        return -gradient * weight, room - gradient @ (0.5 * self.stop_time * self.v)

"""What a certificate looks at: a command, the stop after it, and the pose from which it starts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from real.safety.body import Body
from real.safety.kinematics import jacobian
from real.safety.motion import HISTORY, with_stop

Array = NDArray[np.float64]
Bool = NDArray[np.bool_]
Ints = NDArray[np.int64]

SAMPLE = 0.01  # s, at most, between sampled knots; what happens in between is bounded, not hoped for


class Samples(NamedTuple):
    """Sampled knots of N arms one after another, M in all, and bounds on the way from each to its arm's next.

    Of an arm's last knot, where it is at rest, the bounds are zero.
    """

    first: Ints  # [N + 1] where each arm's knots begin
    q: Array  # [M n] rad
    qd: Array  # [M n] rad/s
    speed: Array  # [M n] rad/s
    accel: Array  # [M n] rad/s²
    jerk: Array  # [M n] rad/s³


@dataclass(frozen=True, eq=False)
class Path:
    """History, the newest command and the stop after it, for N arms.

    Sampled knots start at the one where the newest command begins to matter and end at rest. An arm has as many as
    its own stop needs, so that its numbers do not depend on its neighbours.
    """

    c: Array  # [N K n] control points: HISTORY old ones, the command, its stop, at rest at the end
    ticks: Ints  # [N] of the stop; beyond them it rests
    body: Body
    dt: float

    @classmethod
    def of(cls, history: Array, command: Array, body: Body, dt: float) -> Path:
        """`history` [N HISTORY n] and `command` [N n], which must differ by a finite velocity."""
        acc, jerk = body.profile.acceleration, body.profile.jerk
        # No state inside the limits needs longer; one outside fails for that, whatever its stop.
        longest = body.profile.longest_stop
        c, ticks = with_stop(history, command, acc, jerk, dt, longest=longest, stride=cls.stride_at(dt))
        return cls(c, ticks, body, dt)

    @staticmethod
    def stride_at(dt: float) -> int:
        """Ticks between sampled knots."""
        return max(1, int(SAMPLE / dt + 1e-9))

    @property
    def stop(self) -> Array:
        """[N ticks n] control points after the command."""
        return self.c[:, HISTORY + 1 :]

    @property
    def stride(self) -> int:
        return self.stride_at(self.dt)

    @cached_property
    def samples(self) -> Samples:
        first = _first(self.ticks, self.stride)
        found = Samples(first, *np.empty((5, int(first[-1]), self.c.shape[2])))
        _sample(self.c, self.dt, self.stride, *found)
        return found

    @cached_property
    def travel(self) -> Array:
        """[M n] rad: bound on how far each joint moves from a sampled knot to the next."""
        return self.samples.speed * (self.stride * self.dt)

    @cached_property
    def frames(self) -> Array:
        """[M L 4 3] of the links at sampled knots."""
        return self.body.profile.chain.forward(self.samples.q)

    @cached_property
    def points(self) -> Array:
        """[M R 3] m: the body's points at sampled knots."""
        return self.body.at(self.frames)

    @cached_property
    def tcp_jacobian(self) -> Array:
        """[M n 6] at sampled knots."""
        tcp = np.ascontiguousarray(self.points[:, self.body.tcp])
        return jacobian(self.frames, tcp, np.full(len(tcp), self.c.shape[2]))

    def between(self, distance: Array, reach: Array) -> Array:
        """Least value that any of R distances can take on the whole path, [N] m.

        Args:
            distance: [M R] m at sampled knots.
            reach: [R n] m: how much it changes per radian of each joint, at most.
        """
        least = np.empty(len(self.c))
        _between(distance, self.travel, reach, self.samples.first, least)
        return least


@njit(cache=True, nogil=True)
def _first(ticks: Ints, stride: int) -> Ints:
    first = np.zeros(len(ticks) + 1, dtype=np.int64)
    for arm in range(len(ticks)):
        first[arm + 1] = first[arm] + (ticks[arm] + 1) // stride + 1
    return first


@njit(cache=True, nogil=True)
def _sample(
    c: Array, dt: float, stride: int, first: Ints, q: Array, qd: Array, speed: Array, accel: Array, jerk: Array
) -> None:
    for arm in range(c.shape[0]):
        for m in range(first[arm], first[arm + 1]):
            k = HISTORY - 2 + stride * (m - first[arm])
            for i in range(c.shape[2]):
                before, here, after = c[arm, k - 1, i], c[arm, k, i], c[arm, k + 1, i]
                q[m, i] = (before + 4 * here + after) / 6
                qd[m, i] = (after - before) / (2 * dt)
                fastest = strongest = hardest = 0.0
                if m + 1 < first[arm + 1]:  # all differences that shape the spline up to the next sampled knot
                    v = (here - before) / dt
                    fastest, a = abs(v), 0.0
                    for step in range(stride + 1):
                        v_next = (c[arm, k + step + 1, i] - c[arm, k + step, i]) / dt
                        a_next = (v_next - v) / dt
                        fastest, strongest = _most(fastest, v_next), _most(strongest, a_next)
                        if step:
                            hardest = _most(hardest, (a_next - a) / dt)
                        v, a = v_next, a_next
                speed[m, i], accel[m, i], jerk[m, i] = fastest, strongest, hardest


@njit(cache=True, nogil=True)
def _most(value: float, other: float) -> float:
    """The larger size; a number that is none wins, as in NumPy."""
    other = abs(other)
    return value if value >= other or value != value else other


@njit(cache=True, nogil=True)
def _between(distance: Array, travel: Array, reach: Array, first: Ints, least: Array) -> None:
    for arm in range(least.shape[0]):
        least[arm] = np.inf
        for m in range(first[arm], first[arm + 1] - 1):
            for r in range(reach.shape[0]):
                change = 0.0
                for i in range(reach.shape[1]):
                    change += travel[m, i] * reach[r, i]
                value = 0.5 * (distance[m, r] + distance[m + 1, r] - change)
                if not value >= least[arm] and least[arm] == least[arm]:  # what is no number stays
                    least[arm] = value


@dataclass(frozen=True, eq=False)
class Here:
    """One arm now, where a limit linearises itself."""

    q: Array  # [n] rad, newest command
    v: Array  # [n] rad/s
    stop_time: Array  # [n] s, roughly that each joint needs to stop
    dt: float
    frames: Array  # [L 4 3] at q
    points: Array  # [R 3] m at q

    @classmethod
    def of(cls, history: Array, body: Body, dt: float) -> Here:
        """From `history` [HISTORY n]."""
        profile, q, v = body.profile, history[-1], (history[-1] - history[-2]) / dt
        frames = profile.chain.forward(q[None])
        lag = profile.acceleration / profile.jerk
        return cls(q, v, np.abs(v) / profile.acceleration + lag, dt, frames[0], body.at(frames)[0])

    def brake(self, gradient: Array, room: Array) -> tuple[Array, Array]:
        """Rows G [m n], h [m] with G·v ≤ h for the next velocity v, that keep `room` [m] positive at the stop's end.

        `gradient` [m n]: of the room by joint angles. The stop's end is linear in v to first order.
        """
        weight = self.dt + self.stop_time
        return -gradient * weight, room - gradient @ (0.5 * self.stop_time * self.v)

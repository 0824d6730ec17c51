"""The path that a certificate checks: a command, the stop after it, and the pose at its start."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numba import njit

from robopolicy.real.safety.array_ops import Array, Ints
from robopolicy.real.safety.body import Body
from robopolicy.real.safety.kinematics import Pose
from robopolicy.real.safety.motion import HISTORY, with_stop

EXTRA = 1e-3  # m: rows stop this much earlier than the certificate
SAMPLE = 0.01  # s, at most, between sampled knots; the motion in between is bounded


class PathSamples(NamedTuple):
    """Sampled knots of N arms one after another, M in all, and bounds on the way from each to its arm's next.

    Of an arm's last knot, where it is at rest, the bounds are zero.
    """

    first: Ints  # [N + 1] where each arm's knots begin
    # [3 N K n] rad/s, rad/s², rad/s³ between a control point and those before it, to the end of each arm's stop; of the
    # i-th kind from the i-th control point on, the first being the 0th, and undefined before
    differences: Array
    q: Array  # [M n] rad
    qd: Array  # [M n] rad/s
    speed: Array  # [M n] rad/s
    accel: Array  # [M n] rad/s²
    jerk: Array  # [M n] rad/s³
    travel: Array  # [M n] rad: how far each joint moves, at most


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
    memo: dict[object, Array] = field(default_factory=dict)  # measurements of the limits on it

    @classmethod
    def of(cls, history: Array, command: Array, body: Body, dt: float) -> Path:
        """Build the path of `history` [N HISTORY n] and `command` [N n], which must differ by a finite velocity."""
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

    @cached_property
    def samples(self) -> PathSamples:
        stride, (arms, k, n) = self.stride_at(self.dt), self.c.shape
        first, differences = np.empty(arms + 1, dtype=np.int64), np.empty((3, arms, k, n))
        most = arms * ((k - HISTORY) // stride + 1)
        found = np.empty((6, most, n))
        size = _sample(self.c, self.ticks, self.dt, stride, first, differences, found)
        return PathSamples(first, differences, *found[:, :size])

    @cached_property
    def pose(self) -> Pose:
        """The arms at sampled knots."""
        return self.body.at(self.samples.q)

    def between(self, distance: Array, reach: Array) -> Array:
        """Least value that any of R distances can take on the whole path, [N] m.

        Args:
            distance: [M R] m at sampled knots.
            reach: [R n] m: how much it changes per radian of each joint, at most.
        """
        least, s = np.empty(len(self.c)), self.samples
        _between(distance, s.travel, reach, s.first, least)
        return least


@njit(cache=True, nogil=True)
def _sample(c: Array, ticks: Ints, dt: float, stride: int, first: Ints, differences: Array, found: Array) -> int:
    """M."""
    v, a, j = differences[0], differences[1], differences[2]
    q, qd, speed, accel, jerk, travel = found[0], found[1], found[2], found[3], found[4], found[5]
    first[0] = 0
    for arm in range(c.shape[0]):
        first[arm + 1] = first[arm] + (ticks[arm] + 1) // stride + 1
        for k in range(1, HISTORY + 1 + ticks[arm]):
            for i in range(c.shape[2]):
                v[arm, k, i] = (c[arm, k, i] - c[arm, k - 1, i]) / dt
                if k > 1:
                    a[arm, k, i] = (v[arm, k, i] - v[arm, k - 1, i]) / dt
                if k > 2:
                    j[arm, k, i] = (a[arm, k, i] - a[arm, k - 1, i]) / dt
        for m in range(first[arm], first[arm + 1]):
            k = HISTORY - 2 + stride * (m - first[arm])
            for i in range(c.shape[2]):
                before, here, after = c[arm, k - 1, i], c[arm, k, i], c[arm, k + 1, i]
                q[m, i] = (before + 4 * here + after) / 6
                qd[m, i] = (after - before) / (2 * dt)
                fastest = strongest = hardest = 0.0
                if m + 1 < first[arm + 1]:  # all differences that shape the spline up to the next sampled knot
                    fastest = abs(v[arm, k, i])
                    for step in range(k + 1, k + stride + 2):
                        fastest, strongest = _most(fastest, v[arm, step, i]), _most(strongest, a[arm, step, i])
                        if step > k + 1:
                            hardest = _most(hardest, j[arm, step, i])
                speed[m, i], accel[m, i], jerk[m, i] = fastest, strongest, hardest
                travel[m, i] = fastest * (stride * dt)
    return first[c.shape[0]]


@njit(cache=True, nogil=True)
def _most(value: float, other: float) -> float:
    """Return the larger size; a number that is none wins, as in NumPy."""
    other = abs(other)
    return value if value >= other or value != value else other


@njit(cache=True, nogil=True)
def _between(distance: Array, travel: Array, reach: Array, first: Ints, least: Array) -> None:
    farthest = np.zeros(reach.shape[1])
    for r in range(reach.shape[0]):
        for i in range(reach.shape[1]):
            farthest[i] = max(farthest[i], reach[r, i])
    for arm in range(least.shape[0]):
        least[arm] = np.inf
        for m in range(first[arm], first[arm + 1] - 1):
            most = _along(travel[m], farthest)
            for r in range(reach.shape[0]):
                both = distance[m, r] + distance[m + 1, r]
                if 0.5 * (both - most) > least[arm]:  # so is the value: rounding is monotone
                    continue
                value = 0.5 * (both - _along(travel[m], reach[r]))
                if not value >= least[arm] and least[arm] == least[arm]:  # NaN stays
                    least[arm] = value


@njit(cache=True, nogil=True)
def _along(travel: Array, reach: Array) -> float:
    """m: how much a distance changes by `travel` [n] rad, at most `reach` [n] m per radian."""
    change = 0.0
    for i in range(len(travel)):
        change += travel[i] * reach[i]
    return change


class Inequalities(NamedTuple):
    """G·v ≤ h for the next joint velocity v [n] rad/s."""

    g: Array  # [m n]
    h: Array  # [m]


class Here(NamedTuple):
    """One arm now, where a limit linearises itself."""

    q: Array  # [n] rad, newest command
    v: Array  # [n] rad/s
    stop_time: Array  # [n] s, roughly that each joint needs to stop
    weight: Array  # [n] s, by which the next velocity moves the stop's end
    ahead: Array  # [n] rad, from q to the stop's end at the present velocity
    dt: float
    frames: Array  # [L 4 3] at q
    points: Array  # [R 3] m at q
    jacobian: Array  # [n 6] of the tool's point at q

    @classmethod
    def of(cls, history: Array, body: Body, dt: float) -> Here:
        """Build it from `history` [HISTORY n]."""
        pose, found = body.at(history[-1:]), np.empty((4, history.shape[1]))
        _here(history, body.profile.acceleration, body.profile.jerk, dt, found)
        v, stop_time, weight, ahead = found
        return cls(history[-1], v, stop_time, weight, ahead, dt, pose.frames[0], pose.points[0], pose.jacobian[0])

    def room(self, rows: int) -> tuple[Array, Array]:
        """Uninitialised [rows n] and [rows], for limits to fill."""
        return np.empty((rows, len(self.q))), np.empty(rows)

    def brake(self, gradient: Array, room: Array, count: int, *, extra: float = EXTRA) -> Inequalities | None:
        """Inequalities for the next velocity v that keep rooms positive at the stop's end; None for a `count` of 0.

        The first `count` of `gradient` [R n], by joint angles, and of `room` [R], less `extra`, become them, in place.
        The stop's end is linear in v to first order.
        """
        if not count:
            return None
        _brake(gradient, room, self.weight, self.ahead, count, extra)
        return Inequalities(gradient[:count], room[:count])


@njit(cache=True, nogil=True)
def _here(history: Array, acceleration: Array, jerk: Array, dt: float, found: Array) -> None:
    last, v, stop_time, weight, ahead = history.shape[0] - 1, found[0], found[1], found[2], found[3]
    for i in range(history.shape[1]):
        v[i] = (history[last, i] - history[last - 1, i]) / dt
        stop_time[i] = abs(v[i]) / acceleration[i] + acceleration[i] / jerk[i]
        weight[i], ahead[i] = dt + stop_time[i], 0.5 * stop_time[i] * v[i]


@njit(cache=True, nogil=True)
def _brake(gradient: Array, room: Array, weight: Array, ahead: Array, count: int, extra: float) -> None:
    for r in range(count):
        room[r] = room[r] - extra - _along(ahead, gradient[r])
        for i in range(len(weight)):
            gradient[r, i] *= -weight[i]

"""Joint-space limits: size, position, velocity, acceleration, jerk, and FR3's velocity near the ends of its joints."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import njit

from robopolicy.real.safety.array_ops import Array, Ints
from robopolicy.real.safety.limits import Limit
from robopolicy.real.safety.motion import HISTORY
from robopolicy.real.safety.path import Here, Inequalities, Path
from robopolicy.real.safety.profile import EdgeBounds, JointBounds, Profile

EPSILON = float(np.finfo(float).eps)
SLACK = 1e-9  # relative: rounding of differences, far below the meaning of a limit


@dataclass(frozen=True, eq=False)
class JointSpace:
    """Measure the margins to ends and rates of the joints, all at once, once for a path."""

    bounds: JointBounds

    def rooms(self, path: Path) -> Array:
        """Return [5 N] of size, position, velocity, acceleration and jerk, each ≥ 0 where it is kept."""
        if self not in path.memo:
            path.memo[self] = out = np.empty((5, len(path.c)))
            _rooms(path.c, path.samples.differences, path.ticks, path.dt, self.bounds, out)
        return path.memo[self]


@njit(cache=True, nogil=True)
def _rooms(c: Array, differences: Array, ticks: Ints, dt: float, bounds: JointBounds, out: Array) -> None:
    low, high, velocity, acceleration, jerk = bounds
    for arm in range(c.shape[0]):
        size = position = np.inf
        for k in range(c.shape[1]):
            for i in range(c.shape[2]):
                size = _least(size, 1e6 - abs(c[arm, k, i]))
                if k >= HISTORY:
                    position = _least(position, min(c[arm, k, i] - low[i], high[i] - c[arm, k, i]))
        out[0, arm], out[1, arm] = size, position
    _difference(c, differences[0], ticks, 1, dt, velocity, out[2])
    _difference(c, differences[1], ticks, 2, dt, acceleration, out[3])
    _difference(c, differences[2], ticks, 3, dt, jerk, out[4])


@njit(cache=True, nogil=True)
def _least(value: float, other: float) -> float:
    """Return the smaller number; NaN stays."""
    return value if other >= value or value != value else other


@njit(cache=True, nogil=True)
def _difference(c: Array, difference: Array, ticks: Ints, order: int, dt: float, limit: Array, out: Array) -> None:
    for arm in range(c.shape[0]):
        end, largest, least = HISTORY + 1 + ticks[arm], 0.0, np.inf
        for k in range(HISTORY - order, end):
            for i in range(c.shape[2]):
                largest = max(largest, abs(c[arm, k, i]))
        rounding = 8 * EPSILON * largest / dt**order
        for k in range(HISTORY, end):
            for i in range(c.shape[2]):
                least = _least(least, limit[i] * (1 + SLACK) + rounding - abs(difference[arm, k, i]))
        out[arm] = least


@dataclass(frozen=True, eq=False)
class JointRoom:
    """Keep one room of `JointSpace` ≥ 0, from the newest command on: size of numbers, ends of joints, or a rate."""

    space: JointSpace
    kind: int  # row of `JointSpace.rooms`
    name: str

    def margin(self, path: Path) -> Array:
        return self.space.rooms(path)[self.kind]

    def rows(self, here: Here) -> Inequalities | None:
        return None


class JointPositionLimit(JointRoom):
    """low ≤ q ≤ high. Control points inside the box keep the spline inside (convex hull)."""

    def rows(self, here: Here) -> Inequalities | None:
        g, h = here.room(2 * len(here.q))
        count = _ends(here.q, self.space.bounds.low, self.space.bounds.high, here.weight, here.ahead, g, h)
        return Inequalities(g[:count], h[:count]) if count else None


@njit(cache=True, nogil=True)
def _ends(q: Array, low: Array, high: Array, weight: Array, ahead: Array, g: Array, h: Array) -> int:
    """Rows for joints that are in the outer quarters of the widest range, and how many these are."""
    near, count = 0.0, 0
    for i in range(len(q)):
        near = max(near, 0.5 * (high[i] - low[i]))
    for sign in (-1.0, 1.0):
        for i in range(len(q)):
            room = (q[i] - low[i] if sign < 0 else high[i] - q[i]) + sign * ahead[i]
            if room < near:
                g[count] = 0.0
                g[count, i], h[count] = sign * weight[i], room
                count += 1
    return count


@dataclass(frozen=True, eq=False)
class EdgeVelocity:
    """FR3's velocity bound near the ends of its joints, which needs more deceleration than the arm may use.

    No matter: only states whose stop meets the bound all along are entered. The spline's velocity at a time and its
    position at that time stem from control points at most `WINDOW` apart, so each difference is held against the
    worst bound among those.
    """

    bounds: EdgeBounds
    name: str = "edge_velocity"

    WINDOW = 3

    def margin(self, path: Path) -> Array:
        out = np.empty(len(path.c))
        _edge(path.c, path.ticks, path.dt, self.bounds, self.WINDOW, out)
        return out

    def rows(self, here: Here) -> Inequalities | None:
        g, h = here.room(2 * len(here.q))
        _edge_rows(here.q, here.v, here.stop_time, self.bounds, g, h)
        return Inequalities(g, h)


@njit(cache=True, nogil=True)
def _bound(room: float, deceleration: float, offset: float) -> float:
    """Highest speed, rad/s, at `room` rad from the end of a joint."""
    return max(math.sqrt(max(2 * deceleration * room, 0.0)) - offset, 0.0)


@njit(cache=True, nogil=True)
def _edge_rows(q: Array, v: Array, stop_time: Array, bounds: EdgeBounds, g: Array, h: Array) -> None:
    n, (offset, deceleration, low, high) = len(q), bounds
    g[:] = 0.0
    for i in range(n):
        there = q[i] + stop_time[i] * v[i] / 2
        g[i, i], h[i] = 1.0, _bound(high[i] - there, deceleration[i], offset[i])
        g[n + i, i], h[n + i] = -1.0, _bound(there - low[i], deceleration[i], offset[i])


@njit(cache=True, nogil=True)
def _edge(c: Array, ticks: Ints, dt: float, bounds: EdgeBounds, window: int, out: Array) -> None:
    offset, deceleration, low, high = bounds
    for arm in range(c.shape[0]):
        end = HISTORY + 1 + ticks[arm]
        out[arm] = np.inf
        for k in range(HISTORY - 2, end):  # from the first difference whose window holds the command
            for i in range(c.shape[2]):
                v = (c[arm, k, i] - c[arm, k - 1, i]) / dt
                highest = lowest = c[arm, k, i]
                for near in range(k - window, min(k + window, end)):
                    highest, lowest = max(highest, c[arm, near, i]), min(lowest, c[arm, near, i])
                up = _bound(high[i] - highest, deceleration[i], offset[i])
                down = _bound(lowest - low[i], deceleration[i], offset[i])
                room = min(up - v, v + down) + SLACK * max(abs(v), 1.0)
                if not room >= out[arm] and out[arm] == out[arm]:
                    out[arm] = room


def joint_limits(profile: Profile) -> tuple[Limit, ...]:
    """Every joint-space limit of a profile."""
    space = JointSpace(profile.bounds)
    names = ("finite", "joint_position", "joint_velocity", "joint_acceleration", "joint_jerk")
    found: list[Limit] = [JointRoom(space, kind, name) for kind, name in enumerate(names)]
    found[1] = JointPositionLimit(space, 1, names[1])
    return (*found, EdgeVelocity(profile.edge)) if profile.edge is not None else tuple(found)

"""Joint-space limits. Each returns linear inequalities to propose by and a verdict on a path to decide by.

mink's habit (small values that return inequalities), with one difference: inequalities only propose. A limit holds
when its margin over the whole path, stop included, is not negative.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numba import njit

from real.safety.motion import HISTORY
from real.safety.path import Array, Bool, Here, Ints, Path
from real.safety.profile import Profile

NEAR = 0.08  # m: from here on a distance is worth a row
EXTRA = 1e-3  # m: rows stop this much earlier than the certificate
EPSILON = float(np.finfo(float).eps)
SLACK = 1e-9  # relative: rounding of differences, far below what a limit means


class Rows(NamedTuple):
    """G·v ≤ h for the next joint velocity v [n] rad/s."""

    g: Array  # [m n]
    h: Array  # [m]


class Limit(Protocol):
    """A limit of one kind."""

    @property
    def name(self) -> str: ...

    def margin(self, path: Path) -> Array:
        """[N] in the limit's unit: ≥ 0 where it is certainly kept from the newest command to the end of its stop."""
        ...

    def rows(self, here: Here) -> Rows | None:
        """Linear inequalities near `here`, or None where it is far away or a box."""
        ...


def broken(limits: Sequence[Limit], path: Path) -> Bool:
    """[N L]: which limits are not certain to be kept on `path`. One reason an arm is enough."""
    failed = np.zeros((len(path.c), len(limits)), dtype=bool)
    for i, limit in enumerate(limits):
        margin = limit.margin(path)
        if len(margin) == 1:  # the one arm of a fast loop; comparisons of floats are cheap
            if not margin[0] >= 0:  # NaN fails
                failed[0, i] = True
                break  # one reason is enough
            continue
        failed[:, i] = ~(margin >= 0)
        if failed[:, i].all():
            break
    return failed


@dataclass(frozen=True)
class Finite:
    """Numbers are numbers, and of a size that an arm can mean."""

    name: str = "finite"

    def margin(self, path: Path) -> Array:
        out = np.empty(len(path.c))
        _size(path.c, 1e6, out)
        return out

    def rows(self, here: Here) -> Rows | None:
        return None


@njit(cache=True, nogil=True)
def _size(c: Array, most: float, out: Array) -> None:
    for arm in range(c.shape[0]):
        out[arm] = np.inf
        for k in range(c.shape[1]):
            for i in range(c.shape[2]):
                room = most - abs(c[arm, k, i])
                if not room >= out[arm] and out[arm] == out[arm]:  # what is no number stays
                    out[arm] = room


@dataclass(frozen=True, eq=False)
class JointPosition:
    """low ≤ q ≤ high [n] rad. Control points inside the box keep the spline inside (convex hull)."""

    low: Array
    high: Array
    name: str = "joint_position"

    def margin(self, path: Path) -> Array:
        out = np.empty(len(path.c))
        _room(path.c, self.low, self.high, out)
        return out

    def rows(self, here: Here) -> Rows | None:
        g, h = here.room(2 * len(self.low))
        count = _ends(here.q, self.low, self.high, here.weight, here.ahead, g, h)
        return Rows(g[:count], h[:count]) if count else None


@njit(cache=True, nogil=True)
def _room(c: Array, low: Array, high: Array, out: Array) -> None:
    """[N] least distance of control points `c` [N K n], from the newest command on, from the ends of their range."""
    for arm in range(c.shape[0]):
        out[arm] = np.inf
        for k in range(HISTORY, c.shape[1]):
            for i in range(c.shape[2]):
                room = min(c[arm, k, i] - low[i], high[i] - c[arm, k, i])
                if not room >= out[arm] and out[arm] == out[arm]:
                    out[arm] = room


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
class _Difference:
    """|n-th difference / dtⁿ| ≤ limit [n], of every control point from the newest command on."""

    limit: Array
    order: int
    name: str

    def margin(self, path: Path) -> Array:
        out = np.empty(len(path.c))
        _difference(path.c, path.differences[self.order - 1], path.ticks, self.order, path.dt, self.limit, out)
        return out

    def rows(self, here: Here) -> Rows | None:
        return None


@njit(cache=True, nogil=True)
def _difference(c: Array, difference: Array, ticks: Ints, order: int, dt: float, limit: Array, out: Array) -> None:
    for arm in range(c.shape[0]):
        end, largest = HISTORY + 1 + ticks[arm], 0.0
        for k in range(HISTORY - order, end):
            for i in range(c.shape[2]):
                largest = max(largest, abs(c[arm, k, i]))
        rounding = 8 * EPSILON * largest / dt**order
        out[arm] = np.inf
        for k in range(HISTORY, end):
            for i in range(c.shape[2]):
                room = limit[i] * (1 + SLACK) + rounding - abs(difference[arm, k, i])
                if not room >= out[arm] and out[arm] == out[arm]:
                    out[arm] = room


@dataclass(frozen=True, eq=False)
class EdgeVelocity:
    """FR3's velocity bound near the ends of its joints, which needs more deceleration than the arm may use.

    No matter: only states whose stop meets the bound all along are entered. The spline's velocity at a time and its
    position at that time stem from control points at most `WINDOW` apart, so each difference is held against the
    worst bound among those.
    """

    offset: Array  # [n] rad/s
    deceleration: Array  # [n] rad/s²
    low: Array  # [n] rad
    high: Array  # [n] rad
    name: str = "edge_velocity"

    WINDOW = 3

    def margin(self, path: Path) -> Array:
        out = np.empty(len(path.c))
        _edge(path.c, path.ticks, path.dt, self.offset, self.deceleration, self.low, self.high, self.WINDOW, out)
        return out

    def rows(self, here: Here) -> Rows | None:
        g, h = here.room(2 * len(self.low))
        _edge_rows(here.q, here.v, here.stop_time, self.offset, self.deceleration, self.low, self.high, g, h)
        return Rows(g, h)


@njit(cache=True, nogil=True)
def _bound(room: float, deceleration: float, offset: float) -> float:
    """Highest speed, rad/s, at `room` rad from the end of a joint."""
    return max(math.sqrt(max(2 * deceleration * room, 0.0)) - offset, 0.0)


@njit(cache=True, nogil=True)
def _edge_rows(
    q: Array,
    v: Array,
    stop_time: Array,
    offset: Array,
    deceleration: Array,
    low: Array,
    high: Array,
    g: Array,
    h: Array,
) -> None:
    n = len(q)
    g[:] = 0.0
    for i in range(n):
        there = q[i] + stop_time[i] * v[i] / 2
        g[i, i], h[i] = 1.0, _bound(high[i] - there, deceleration[i], offset[i])
        g[n + i, i], h[n + i] = -1.0, _bound(there - low[i], deceleration[i], offset[i])


@njit(cache=True, nogil=True)
def _edge(
    c: Array,
    ticks: Ints,
    dt: float,
    offset: Array,
    deceleration: Array,
    low: Array,
    high: Array,
    window: int,
    out: Array,
) -> None:
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
    found: list[Limit] = [
        Finite(),
        JointPosition(profile.low, profile.high),
        _Difference(profile.velocity, 1, "joint_velocity"),
        _Difference(profile.acceleration, 2, "joint_acceleration"),
        _Difference(profile.jerk, 3, "joint_jerk"),
    ]
    return (*found, EdgeVelocity(*profile.edge)) if profile.edge is not None else tuple(found)

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
    """[N L]: which limits are not certain to be kept on `path`."""
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
        size = path.c.shape[2]
        return _room(path.c, np.full(size, -1e6), np.full(size, 1e6))

    def rows(self, here: Here) -> Rows | None:
        return None


@dataclass(frozen=True, eq=False)
class JointPosition:
    """low ≤ q ≤ high [n] rad. Control points inside the box keep the spline inside (convex hull)."""

    low: Array
    high: Array
    name: str = "joint_position"

    def margin(self, path: Path) -> Array:
        return _room(path.c[:, HISTORY:], self.low, self.high)

    def rows(self, here: Here) -> Rows | None:
        weight, ahead = here.dt + here.stop_time, 0.5 * here.stop_time * here.v
        h = np.concatenate([here.q - self.low - ahead, self.high - here.q + ahead])
        near = np.flatnonzero(h < 0.5 * (self.high - self.low).max())
        g = np.zeros((len(near), len(weight)))
        joint = near % len(weight)
        g[np.arange(len(near)), joint] = np.where(near < len(weight), -weight[joint], weight[joint])
        return Rows(g, h[near]) if len(near) else None


@njit(cache=True, nogil=True)
def _room(c: Array, low: Array, high: Array) -> Array:
    """[N] least distance of control points `c` [N K n] from the ends of their range."""
    out = np.full(c.shape[0], np.inf)
    for arm in range(c.shape[0]):
        for k in range(c.shape[1]):
            for i in range(c.shape[2]):
                room = min(c[arm, k, i] - low[i], high[i] - c[arm, k, i])
                if not room >= out[arm] and out[arm] == out[arm]:  # what is no number stays
                    out[arm] = room
    return out


@dataclass(frozen=True, eq=False)
class _Difference:
    """|n-th difference / dtⁿ| ≤ limit [n], of every control point from the newest command on."""

    limit: Array
    order: int
    name: str

    def margin(self, path: Path) -> Array:
        out = np.empty(len(path.c))
        _difference(path.c, path.ticks, self.order, path.dt, self.limit, out)
        return out

    def rows(self, here: Here) -> Rows | None:
        return None


@njit(cache=True, nogil=True)
def _difference(c: Array, ticks: Ints, order: int, dt: float, limit: Array, out: Array) -> None:
    for arm in range(c.shape[0]):
        end, largest = HISTORY + 1 + ticks[arm], 0.0
        for k in range(HISTORY - order, end):
            for i in range(c.shape[2]):
                largest = max(largest, abs(c[arm, k, i]))
        rounding = 8 * EPSILON * largest / dt**order
        out[arm] = np.inf
        for k in range(HISTORY, end):
            for i in range(c.shape[2]):
                v = (c[arm, k, i] - c[arm, k - 1, i]) / dt
                if order > 1:
                    v1 = (c[arm, k - 1, i] - c[arm, k - 2, i]) / dt
                    a = (v - v1) / dt
                    if order > 2:
                        a1 = (v1 - (c[arm, k - 2, i] - c[arm, k - 3, i]) / dt) / dt
                        v = (a - a1) / dt
                    else:
                        v = a
                room = limit[i] * (1 + SLACK) + rounding - abs(v)
                if not room >= out[arm] and out[arm] == out[arm]:  # what is no number stays
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

    def bounds(self, q: Array) -> tuple[Array, Array]:
        """Lowest and highest velocity [… n] rad/s at `q` [… n] rad."""
        up = np.sqrt(np.maximum(2 * self.deceleration * (self.high - q), 0.0)) - self.offset
        down = np.sqrt(np.maximum(2 * self.deceleration * (q - self.low), 0.0)) - self.offset
        return -np.maximum(down, 0.0), np.maximum(up, 0.0)

    def margin(self, path: Path) -> Array:
        out = np.empty(len(path.c))
        _edge(path.c, path.ticks, path.dt, self.offset, self.deceleration, self.low, self.high, self.WINDOW, out)
        return out

    def rows(self, here: Here) -> Rows | None:
        low, high = self.bounds(here.q + here.stop_time * here.v / 2)
        eye = np.eye(len(here.q))
        return Rows(np.concatenate([eye, -eye]), np.concatenate([high, -low]))


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
                up = math.sqrt(max(2 * deceleration[i] * (high[i] - highest), 0.0)) - offset[i]
                down = math.sqrt(max(2 * deceleration[i] * (lowest - low[i]), 0.0)) - offset[i]
                room = min(max(up, 0.0) - v, v + max(down, 0.0)) + SLACK * max(abs(v), 1.0)
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

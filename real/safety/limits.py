"""Joint-space limits. Each returns linear inequalities to propose by and a verdict on a path to decide by.

mink's habit (small values that return inequalities), with one difference: inequalities only propose. A limit holds
when `holds` says so of the whole path, stop included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from real.safety.motion import HISTORY
from real.safety.path import Array, Bool, Here, Path
from real.safety.profile import Profile

NEAR = 0.08  # m: from here on a distance is worth a row
EXTRA = 1e-3  # m: rows stop this much earlier than the certificate
SLACK = 1e-9  # relative: rounding of differences, far below what a limit means


class Rows(NamedTuple):
    """G·v ≤ h for the next joint velocity v [n] rad/s."""

    g: Array  # [m n]
    h: Array  # [m]


class Limit(Protocol):
    """A limit of one kind."""

    @property
    def name(self) -> str: ...

    def holds(self, path: Path) -> Bool:
        """[N] bool: certainly kept from the newest command to the end of its stop."""
        ...

    def rows(self, here: Here) -> Rows | None:
        """Linear inequalities near `here`, or None where it is far away or a box."""
        ...


def broken(limits: Sequence[Limit], path: Path) -> Bool:
    """[N L]: which limits are not certain to be kept on `path`."""
    failed = np.zeros((len(path.c), len(limits)), dtype=bool)
    for i, limit in enumerate(limits):
        failed[:, i] = ~limit.holds(path)
        if failed[:, i].all():
            break  # one reason is enough
    return failed


@dataclass(frozen=True)
class Finite:
    """Numbers are numbers, and of a size that an arm can mean."""

    name: str = "finite"

    def holds(self, path: Path) -> Bool:
        return np.asarray((np.abs(path.c) < 1e6).all(axis=(1, 2)))  # NaN compares false

    def rows(self, here: Here) -> Rows | None:
        return None


@dataclass(frozen=True, eq=False)
class JointPosition:
    """low ≤ q ≤ high [n] rad. Control points inside the box keep the spline inside (convex hull)."""

    low: Array
    high: Array
    name: str = "joint_position"

    def holds(self, path: Path) -> Bool:
        c = path.c[:, HISTORY:]
        return np.asarray(((c >= self.low) & (c <= self.high)).all(axis=(1, 2)))

    def rows(self, here: Here) -> Rows | None:
        eye = np.eye(len(here.q))
        g, h = here.brake(np.concatenate([eye, -eye]), np.concatenate([here.q - self.low, self.high - here.q]))
        near = h < 0.5 * (self.high - self.low).max()
        return Rows(g[near], h[near]) if near.any() else None


@dataclass(frozen=True, eq=False)
class _Difference:
    """|n-th difference / dtⁿ| ≤ limit [n], of every control point from the newest command on."""

    limit: Array
    order: int
    name: str

    def holds(self, path: Path) -> Bool:
        c = path.c[:, HISTORY - self.order :]
        rounding = 8 * np.finfo(float).eps * np.abs(c).max(axis=(1, 2)) / path.dt**self.order
        value = (path.v, path.a, path.j)[self.order - 1][:, HISTORY - self.order :]
        return (np.abs(value) <= self.limit * (1 + SLACK) + rounding[:, None, None]).all(axis=(1, 2))

    def rows(self, here: Here) -> Rows | None:
        return None


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

    def holds(self, path: Path) -> Bool:
        first, size = HISTORY - 3, path.v.shape[1]  # the first difference whose window holds the command
        v = path.v[:, first:]  # v[k] = (c[k+1] − c[k]) / dt
        highest = lowest = path.c[:, first + 1 : size + 1]
        for shift in range(-self.WINDOW, self.WINDOW):
            start, stop = max(first + 1 + shift, 0), min(size + 1 + shift, size + 1)
            part = path.c[:, start:stop]
            if part.shape[1] < v.shape[1]:
                part = np.concatenate([part, path.c[:, -1:].repeat(v.shape[1] - part.shape[1], axis=1)], axis=1)
            highest, lowest = np.maximum(highest, part), np.minimum(lowest, part)
        slack = SLACK * np.maximum(np.abs(v), 1.0)
        return ((v <= self.bounds(highest)[1] + slack) & (v >= self.bounds(lowest)[0] - slack)).all(axis=(1, 2))

    def rows(self, here: Here) -> Rows | None:
        low, high = self.bounds(here.q + here.stop_time * here.v / 2)
        eye = np.eye(len(here.q))
        return Rows(np.concatenate([eye, -eye]), np.concatenate([high, -low]))


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

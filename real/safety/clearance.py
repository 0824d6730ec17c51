"""Distances that links keep: from planes and boxes of the scene, and from one another, by capsules and spheres."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numba import njit

from real.safety.body import Body
from real.safety.geometry import above, nearest, outside
from real.safety.kinematics import turn
from real.safety.limits import EXTRA, NEAR, Rows
from real.safety.path import Array, Here, Ints, Path, along, between, brake
from real.safety.profile import Box, Plane


@dataclass(frozen=True, eq=False)
class Planes:
    """Capsules stay `distance` [m] off half-spaces."""

    body: Body
    planes: tuple[Plane, ...]
    distance: float
    name: str = "planes"

    @cached_property
    def _rows(self) -> Ints:
        """[2C] both ends of each capsule."""
        return np.concatenate([self.body.scene, self.body.scene + len(self.body.radius)])

    @cached_property
    def _normals(self) -> Array:
        return np.array([p.normal for p in self.planes], dtype=np.float64)

    @cached_property
    def _offsets(self) -> Array:
        return np.array([p.offset for p in self.planes], dtype=np.float64)

    @cached_property
    def _least(self) -> Array:
        """[2C] m of an axis' ends from a plane."""
        return self.body.radius[self._rows % len(self.body.radius)] + self.distance

    @cached_property
    def _reach(self) -> Array:
        return np.tile(self.body.reach[self._rows], (len(self.planes), 1))

    def margin(self, path: Path) -> Array:
        out, s, points = np.empty(len(path.c)), path.samples, path.pose.points
        _over(points, self._rows, self._normals, self._offsets, self._least, s.travel, self._reach, s.first, out)
        return out

    def rows(self, here: Here) -> Rows | None:
        g, h = here.room(len(self._reach))
        count = _from_planes(
            here.frames, here.points, self._rows, self.body.links, self._normals, self._offsets, self._least,
            here.weight, here.ahead, g, h,
        )  # fmt: skip
        return Rows(g[:count], h[:count]) if count else None


@njit(cache=True, nogil=True)
def _over(
    points: Array,
    rows: Ints,
    normals: Array,
    offsets: Array,
    least: Array,
    travel: Array,
    reach: Array,
    first: Ints,
    out: Array,
) -> None:
    room = np.empty((points.shape[0], len(reach)))
    for m in range(points.shape[0]):
        for p in range(len(normals)):
            for r in range(len(rows)):
                room[m, p * len(rows) + r] = above(points[m, rows[r]], normals[p], offsets[p]) - least[r]
    between(room, travel, reach, first, out)


@njit(cache=True, nogil=True)
def _from_planes(
    frames: Array,
    points: Array,
    rows: Ints,
    links: Ints,
    normals: Array,
    offsets: Array,
    least: Array,
    weight: Array,
    ahead: Array,
    g: Array,
    h: Array,
) -> int:
    """Rows for points that are near planes, and how many these are."""
    count = 0
    for p in range(len(normals)):
        for r in range(len(rows)):
            point = points[rows[r]]
            room = above(point, normals[p], offsets[p]) - least[r]
            if room < NEAR:
                g[count] = 0.0
                turn(frames, point, links[rows[r]], normals[p], 1.0, g[count])
                h[count] = brake(g[count], room - EXTRA, weight, ahead)
                count += 1
    return count


@dataclass(frozen=True, eq=False)
class KeepOut:
    """Links stay `distance` [m] off boxes; spheres that cover the capsules stand for them."""

    body: Body
    boxes: tuple[Box, ...]
    distance: float
    name: str = "keep_out"

    @cached_property
    def _bounds(self) -> list[tuple[Array, Array]]:
        return [(np.array(b.low, dtype=np.float64), np.array(b.high, dtype=np.float64)) for b in self.boxes]

    @cached_property
    def _least(self) -> Array:
        """[spheres] m of a centre from a box."""
        return self.body.sphere_radius + self.distance

    @cached_property
    def _reach(self) -> Array:
        return self.body.reach[self.body.spheres]

    def margin(self, path: Path) -> Array:
        out, s, points = np.empty((len(self._bounds), len(path.c))), path.samples, path.pose.points
        for k, (low, high) in enumerate(self._bounds):
            _off(points, self.body.spheres.start, low, high, self._least, s.travel, self._reach, s.first, out[k])
        return out[0] if len(out) == 1 else np.min(out, axis=0)

    def rows(self, here: Here) -> Rows | None:
        g, h = here.room(len(self._bounds) * len(self._least))
        count = 0
        for low, high in self._bounds:
            count = _from_box(
                here.frames, here.points, self.body.spheres.start, self.body.links, low, high, self._least,
                here.weight, here.ahead, g, h, count,
            )  # fmt: skip
        return Rows(g[:count], h[:count]) if count else None


@njit(cache=True, nogil=True)
def _off(
    points: Array,
    start: int,
    low: Array,
    high: Array,
    least: Array,
    travel: Array,
    reach: Array,
    first: Ints,
    out: Array,
) -> None:
    room = np.empty((points.shape[0], len(least)))
    for m in range(points.shape[0]):
        for r in range(len(least)):
            room[m, r] = outside(points[m, start + r], low, high) - least[r]
    between(room, travel, reach, first, out)


@njit(cache=True, nogil=True)
def _from_box(
    frames: Array,
    points: Array,
    start: int,
    links: Ints,
    low: Array,
    high: Array,
    least: Array,
    weight: Array,
    ahead: Array,
    g: Array,
    h: Array,
    count: int,
) -> int:
    """Rows, from row `count` on, for points that are near a box, and how many there are then."""
    way = np.empty(3)
    for r in range(len(least)):
        point = points[start + r]
        room = outside(point, low, high) - least[r]
        if room < NEAR:
            for k in range(3):
                way[k] = point[k] - min(max(point[k], low[k]), high[k])
            size = math.sqrt(way[0] ** 2 + way[1] ** 2 + way[2] ** 2)
            if size > 1e-9:  # from within there is no telling which way
                g[count] = 0.0
                turn(frames, point, links[start + r], way / size, 1.0, g[count])
                h[count] = brake(g[count], room - EXTRA, weight, ahead)
                count += 1
    return count


@dataclass(frozen=True, eq=False)
class SelfCollision:
    """Capsules of links that are not neighbours stay `distance` [m] apart."""

    body: Body
    distance: float
    name: str = "self_collision"

    @cached_property
    def _least(self) -> Array:
        """[P] m between axes."""
        i, j = self.body.pairs
        return self.body.radius[i] + self.body.radius[j] + self.distance

    def margin(self, path: Path) -> Array:
        out, s, b = np.empty(len(path.c)), path.samples, self.body
        _apart(path.pose.points, b.pairs, len(b.radius), self._least, s.travel, b.pair_reach, s.first, out)
        return out

    def rows(self, here: Here) -> Rows | None:
        b, (g, h) = self.body, here.room(len(self._least))
        count = _from_each_other(
            here.frames, here.points, b.pairs, len(b.radius), b.links, self._least, here.weight, here.ahead, g, h
        )
        return Rows(g[:count], h[:count]) if count else None


@njit(cache=True, nogil=True)
def _apart(
    points: Array, pairs: Ints, ends: int, least: Array, travel: Array, reach: Array, first: Ints, out: Array
) -> None:
    """What `between` gives, to the bit. Distances that cannot matter, by the travel since the last, are left out.

    With a distance of at least d before a sampled knot and a change of at most x to the next, the value there is at
    least d − x, and so is the next distance.
    """
    for arm in range(len(out)):
        out[arm] = np.inf
        for p in range(pairs.shape[1]):
            i, j = pairs[0, p], pairs[1, p]
            known, at = nearest(points[first[arm]], i, j, ends)[0] - least[p], first[arm]  # at the knot `at`
            lowest = known  # at the knot m, at least
            for m in range(first[arm], first[arm + 1] - 1):
                change = along(travel[m], reach[p])
                lowest -= change
                if lowest > out[arm] + 1e-3:  # m, far more than `nearest` errs where axes are almost parallel
                    continue
                before = known if at == m else nearest(points[m], i, j, ends)[0] - least[p]
                known, at = nearest(points[m + 1], i, j, ends)[0] - least[p], m + 1
                lowest = known
                value = 0.5 * (before + known - change)
                if not value >= out[arm] and out[arm] == out[arm]:  # what is no number stays
                    out[arm] = value


@njit(cache=True, nogil=True)
def _from_each_other(
    frames: Array,
    points: Array,
    pairs: Ints,
    ends: int,
    links: Ints,
    least: Array,
    weight: Array,
    ahead: Array,
    g: Array,
    h: Array,
) -> int:
    """Rows for pairs that are near each other, and how many these are."""
    count, first, second = 0, np.empty(3), np.empty(3)
    for p in range(pairs.shape[1]):
        i, j = pairs[0, p], pairs[1, p]
        distance, s, t = nearest(points, i, j, ends)
        room = distance - least[p]
        if room < NEAR:
            for k in range(3):
                first[k] = points[i, k] + s * (points[i + ends, k] - points[i, k])
                second[k] = points[j, k] + t * (points[j + ends, k] - points[j, k])
            normal = (second - first) / max(distance, 1e-9)
            g[count] = 0.0
            turn(frames, second, links[j], normal, 1.0, g[count])
            turn(frames, first, links[i], normal, -1.0, g[count])
            h[count] = brake(g[count], room - EXTRA, weight, ahead)
            count += 1
    return count

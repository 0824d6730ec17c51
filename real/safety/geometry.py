"""Distances of an arm from planes, boxes and itself, compiled. Layout [M R 3]: R points on links at each of M poses.

`near_…` give the parts of inequalities at one pose: distances below NEAR, less the required distance, in `h` [R] m,
how they change by joint angles in `g` [R n] m/rad, and how many there are.
Functions that call each other are in one file: numba's cache does not notice changes of a callee in another file.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from robopolicy.real.safety.array_ops import Array, Ints

NEAR = 0.08  # m: from here on a distance is worth a row


@njit(cache=True, nogil=True)
def nearest(points: Array, i: int, j: int, ends: int) -> tuple[float, float, float]:
    """Distance [m] of segments i and j, and where on each, as fractions, the closest points are.

    Ericson, Real-Time Collision Detection, 5.1.9. Segment s runs from row s of `points` [R 3] m to row s + `ends`.
    """
    tiny = 1e-12
    a = b = c = e = f = 0.0
    for k in range(3):
        d1, d2 = points[i + ends, k] - points[i, k], points[j + ends, k] - points[j, k]
        r = points[i, k] - points[j, k]
        a += d1 * d1
        b += d1 * d2
        c += d1 * r
        e += d2 * d2
        f += d2 * r
    s = min(max((b * f - c * e) / max(a * e - b * b, tiny), 0.0), 1.0)
    free = (b * s + f) / max(e, tiny)
    t = min(max(free, 0.0), 1.0)
    if t != free:
        s = min(max((b * t - c) / max(a, tiny), 0.0), 1.0)
    square = 0.0
    for k in range(3):
        u = points[i, k] + s * (points[i + ends, k] - points[i, k])
        w = points[j, k] + t * (points[j + ends, k] - points[j, k])
        square += (u - w) * (u - w)
    return math.sqrt(square), s, t


@njit(cache=True, nogil=True)
def outside(point: Array, box: Array) -> float:
    """m: signed distance of `point` [3] from `box` [2 3], its lowest and its highest corner; negative inside."""
    square, deepest = 0.0, -np.inf
    for k in range(3):
        beyond = max(box[0, k] - point[k], point[k] - box[1, k])
        deepest = max(deepest, beyond)
        beyond = max(beyond, 0.0)
        square += beyond * beyond
    return math.sqrt(square) + min(deepest, 0.0)


@njit(cache=True, nogil=True)
def above(point: Array, plane: Array) -> float:
    """m: height of `point` [3] over `plane` [4]: all x with normal [3] · x = offset [m]."""
    return plane[0] * point[0] + plane[1] * point[1] + plane[2] * point[2] - plane[3]


@njit(cache=True, nogil=True)
def turn(frames: Array, point: Array, link: int, normal: Array, sign: float, out: Array) -> None:
    """Add to `out` [n] `sign` times how `point` [3] m on `link` moves along `normal` [3] by joint, m/rad."""
    for i in range(link):
        origin, axis, along = frames[i + 1, 0], frames[i + 1, 3], 0.0
        for k in range(3):
            j, l = (k + 1) % 3, (k + 2) % 3
            along += normal[k] * (axis[j] * (point[l] - origin[l]) - axis[l] * (point[j] - origin[j]))
        out[i] += sign * along


@njit(cache=True, nogil=True)
def above_planes(points: Array, rows: Ints, planes: Array, least: Array, room: Array) -> None:
    """Write to `room` [M P·R] the m over `planes` [P 4], less `least` [R], of `rows` [R] of `points`."""
    for m in range(points.shape[0]):
        for p in range(len(planes)):
            for r in range(len(rows)):
                room[m, p * len(rows) + r] = above(points[m, rows[r]], planes[p]) - least[r]


@njit(cache=True, nogil=True)
def near_planes(
    frames: Array, points: Array, rows: Ints, links: Ints, planes: Array, least: Array, g: Array, h: Array
) -> int:
    """At one pose: frames [L 4 3], points [R 3] on links [R]."""
    count = 0
    for p in range(len(planes)):
        for r in range(len(rows)):
            point = points[rows[r]]
            distance = above(point, planes[p]) - least[r]
            if distance < NEAR:
                g[count], h[count] = 0.0, distance
                turn(frames, point, links[rows[r]], planes[p, :3], 1.0, g[count])
                count += 1
    return count


@njit(cache=True, nogil=True)
def off_box(points: Array, start: int, box: Array, least: Array, room: Array) -> None:
    """Write to `room` [M spheres] the m off a box, less `least` [spheres], of the points from row `start` on."""
    for m in range(points.shape[0]):
        for r in range(len(least)):
            room[m, r] = outside(points[m, start + r], box) - least[r]


@njit(cache=True, nogil=True)
def near_box(
    frames: Array, points: Array, start: int, links: Ints, box: Array, least: Array, g: Array, h: Array, count: int
) -> int:
    """At one pose: frames [L 4 3], points [R 3] on links [R]. There are `count` already."""
    way = np.empty(3)
    for r in range(len(least)):
        point = points[start + r]
        distance = outside(point, box) - least[r]
        if distance < NEAR:
            for k in range(3):
                way[k] = point[k] - min(max(point[k], box[0, k]), box[1, k])
            size = math.sqrt(way[0] ** 2 + way[1] ** 2 + way[2] ** 2)
            if size > 1e-9:  # from within there is no telling which way
                g[count], h[count] = 0.0, distance
                turn(frames, point, links[start + r], way / size, 1.0, g[count])
                count += 1
    return count


@njit(cache=True, nogil=True)
def apart(
    points: Array, pairs: Ints, ends: int, least: Array, travel: Array, reach: Array, first: Ints, out: Array
) -> None:
    """Write to `out` [N] m the same as `Path.between` of distances less `least` [P], to the bit.

    Distances that cannot matter are left out: with at least d at one sampled knot and a change of at most x to the
    next, the value there is at least d − x, and so is the next distance.
    """
    known = np.empty(pairs.shape[1])  # m, at an arm's first knot
    for arm in range(len(out)):
        out[arm] = np.inf
        for p in range(pairs.shape[1]):
            known[p] = nearest(points[first[arm]], pairs[0, p], pairs[1, p], ends)[0] - least[p]
        closest = int(known.argmin())  # goes first: it leaves out most
        for step in range(pairs.shape[1]):
            p = (closest + step) % pairs.shape[1]
            i, j = pairs[0, p], pairs[1, p]
            distance, at = known[p], first[arm]  # at the knot `at`
            lowest = distance  # at the knot m, at least
            for m in range(first[arm], first[arm + 1] - 1):
                change = 0.0
                for joint in range(travel.shape[1]):
                    change += travel[m, joint] * reach[p, joint]
                lowest -= change
                if lowest > out[arm] + 1e-3:  # m, far more than `nearest` errs where axes are almost parallel
                    continue
                before = distance if at == m else nearest(points[m], i, j, ends)[0] - least[p]
                distance, at = nearest(points[m + 1], i, j, ends)[0] - least[p], m + 1
                lowest = distance
                value = 0.5 * (before + distance - change)
                if not value >= out[arm] and out[arm] == out[arm]:  # NaN stays
                    out[arm] = value


@njit(cache=True, nogil=True)
def near_pairs(
    frames: Array, points: Array, pairs: Ints, ends: int, links: Ints, least: Array, g: Array, h: Array
) -> int:
    """At one pose: frames [L 4 3], points [R 3] on links [R], pairs [2 P] of segments."""
    count, first, second = 0, np.empty(3), np.empty(3)
    for p in range(pairs.shape[1]):
        i, j = pairs[0, p], pairs[1, p]
        distance, s, t = nearest(points, i, j, ends)
        if distance - least[p] < NEAR:
            for k in range(3):
                first[k] = points[i, k] + s * (points[i + ends, k] - points[i, k])
                second[k] = points[j, k] + t * (points[j + ends, k] - points[j, k])
            normal = (second - first) / max(distance, 1e-9)
            g[count], h[count] = 0.0, distance - least[p]
            turn(frames, second, links[j], normal, 1.0, g[count])
            turn(frames, first, links[i], normal, -1.0, g[count])
            count += 1
    return count

"""Distances between segments, planes and boxes at M poses, compiled. Layout [M R 3]: R points at each pose."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


class Nearest(NamedTuple):
    """Where pairs of segments come closest."""

    distance: Array  # [M P] m, between the axes
    first: Array  # [M P 3] m
    second: Array  # [M P 3] m


def segment_segment(points: Array, pairs: Ints, ends: int) -> Nearest:
    """Closest points of pairs of segments (Ericson, Real-Time Collision Detection, 5.1.9).

    Args:
        points: [M R 3] m; segment s runs from row s to row s + `ends`.
        pairs: [2 P] segments.
    """
    m, p = len(points), pairs.shape[1]
    near = Nearest(np.empty((m, p)), np.empty((m, p, 3)), np.empty((m, p, 3)))
    _segments(points, pairs, ends, *near)
    return near


@njit(cache=True, nogil=True)
def _segments(points: Array, pairs: Ints, ends: int, distance: Array, first: Array, second: Array) -> None:
    for m in range(points.shape[0]):
        for p in range(pairs.shape[1]):
            i, j = pairs[0, p], pairs[1, p]
            distance[m, p], s, t = _nearest(points[m], i, j, ends)
            for k in range(3):
                first[m, p, k] = points[m, i, k] + s * (points[m, i + ends, k] - points[m, i, k])
                second[m, p, k] = points[m, j, k] + t * (points[m, j + ends, k] - points[m, j, k])


def segment_distance(points: Array, pairs: Ints, ends: int) -> Array:
    """[M P] m: the distances of `segment_segment` alone."""
    out = np.empty((len(points), pairs.shape[1]))
    _distances(points, pairs, ends, out)
    return out


@njit(cache=True, nogil=True)
def _distances(points: Array, pairs: Ints, ends: int, out: Array) -> None:
    for m in range(points.shape[0]):
        for p in range(pairs.shape[1]):
            out[m, p] = _nearest(points[m], pairs[0, p], pairs[1, p], ends)[0]


@njit(cache=True, nogil=True)
def _nearest(points: Array, i: int, j: int, ends: int) -> tuple[float, float, float]:
    """Distance of segments i and j, and where on each, as fractions, the closest points are."""
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


def box_distance(points: Array, rows: slice, low: Array, high: Array) -> Array:
    """[M R] m: signed distance of `rows` of `points` [M … 3] to the box `low` [3] … `high` [3], negative inside."""
    out = np.empty((len(points), rows.stop - rows.start))
    _box(points, rows.start, low, high, out)
    return out


@njit(cache=True, nogil=True)
def _box(points: Array, start: int, low: Array, high: Array, out: Array) -> None:
    for m in range(out.shape[0]):
        for r in range(out.shape[1]):
            square, deepest = 0.0, -np.inf
            for k in range(3):
                x = points[m, start + r, k]
                outside = max(low[k] - x, x - high[k])
                deepest = max(deepest, outside)
                beyond = max(outside, 0.0)
                square += beyond * beyond
            out[m, r] = math.sqrt(square) + min(deepest, 0.0)


def plane_distance(points: Array, rows: Ints, normals: Array, offsets: Array) -> Array:
    """[M planes R] m: height of rows [R] of points [M … 3] over planes: normals [planes 3], offsets [planes]."""
    out = np.empty((len(points), len(normals), len(rows)))
    _planes(points, rows, normals, offsets, out)
    return out


@njit(cache=True, nogil=True)
def _planes(points: Array, rows: Ints, normals: Array, offsets: Array, out: Array) -> None:
    for m in range(out.shape[0]):
        for p in range(out.shape[1]):
            for r in range(out.shape[2]):
                point = points[m, rows[r]]
                out[m, p, r] = (
                    normals[p, 0] * point[0] + normals[p, 1] * point[1] + normals[p, 2] * point[2] - offsets[p]
                )

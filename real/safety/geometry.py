"""Distances between segments, planes and boxes, compiled. Layout [M R 3]: R points at each of M poses."""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


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
def outside(point: Array, low: Array, high: Array) -> float:
    """m: signed distance of `point` [3] from the box `low` [3] … `high` [3], negative inside."""
    square, deepest = 0.0, -np.inf
    for k in range(3):
        beyond = max(low[k] - point[k], point[k] - high[k])
        deepest = max(deepest, beyond)
        beyond = max(beyond, 0.0)
        square += beyond * beyond
    return math.sqrt(square) + min(deepest, 0.0)


@njit(cache=True, nogil=True)
def above(point: Array, normal: Array, offset: float) -> float:
    """m: height of `point` [3] over the plane of all x with `normal` [3] · x = `offset` [m]."""
    return normal[0] * point[0] + normal[1] * point[1] + normal[2] * point[2] - offset

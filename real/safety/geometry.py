"""Distances between segments, planes and boxes, vectorised. Layout [R 3 M]: R things at M poses."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Nearest(NamedTuple):
    """Where two segments come closest."""

    distance: Array  # [P M] m, between the axes
    first: Array  # [P 3 M] m
    second: Array  # [P 3 M] m


def _dot(a: Array, b: Array) -> Array:
    return a[:, 0] * b[:, 0] + a[:, 1] * b[:, 1] + a[:, 2] * b[:, 2]


def segment_segment(p1: Array, q1: Array, p2: Array, q2: Array) -> Nearest:
    """Closest points of segments p1–q1 and p2–q2, each [P 3 M] (Ericson, Real-Time Collision Detection, 5.1.9)."""
    d1, d2, r = q1 - p1, q2 - p2, p1 - p2
    a, e, f = _dot(d1, d1), _dot(d2, d2), _dot(d2, r)
    c, b = _dot(d1, r), _dot(d1, d2)
    tiny = 1e-12
    a_safe, e_safe = np.maximum(a, tiny), np.maximum(e, tiny)
    denominator = a * e - b * b
    s = np.clip((b * f - c * e) / np.maximum(denominator, tiny), 0.0, 1.0)
    t = (b * s + f) / e_safe
    clipped = np.clip(t, 0.0, 1.0)
    s = np.where(t == clipped, s, np.clip((b * clipped - c) / a_safe, 0.0, 1.0))
    first, second = p1 + s[:, None] * d1, p2 + clipped[:, None] * d2
    gap = first - second
    return Nearest(np.sqrt(_dot(gap, gap)), first, second)


def box_distance(points: Array, low: Array, high: Array) -> Array:
    """[R M] m: signed distance of `points` [R 3 M] to the box, negative inside."""
    outside = np.maximum(low[:, None] - points, points - high[:, None])
    beyond = np.maximum(outside, 0.0)
    return np.sqrt(_dot(beyond, beyond)) + np.minimum(outside.max(axis=1), 0.0)

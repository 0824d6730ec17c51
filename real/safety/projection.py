"""The nearest velocity that meets all inequalities: one quadratic programme of n unknowns.

daqp reports success on NaN in the cost, quadprog returns NaN without an error: numbers are checked before and after,
and the inequalities again on the result. A flag alone is never trusted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import daqp
import numpy as np
from numba import njit

from robopolicy.real.safety.array_ops import Array

Projection = Callable[[Array, Array, Array, Array, Array], "Array | None"]

_FAR = 1e30
TOLERANCE = 1e-6


def project(wish: Array, low: Array, high: Array, g: Array, h: Array) -> Array | None:
    """argmin |v − wish|² subject to low ≤ v ≤ high and G·v ≤ h; None where there is no such v or anything is odd.

    Args:
        wish, low, high: [n] rad/s.
        g, h: [m n] and [m].
    """
    n, m = len(wish), len(h)
    low_far, high_h = np.empty((2, n + m))
    if not _stack(wish, low, high, g, h, low_far, high_h):
        return None
    if m == 0:
        return np.clip(wish, low, high)
    v, _, flag, _ = daqp.solve(_eye(n), -wish, g, high_h, low_far, np.zeros(n + m, dtype=np.intc))
    return v if flag == 1 and _meets(v, low, high, g, h) else None


@cache
def _eye(n: int) -> Array:
    return np.eye(n)


@njit(cache=True, nogil=True)
def _stack(wish: Array, low: Array, high: Array, g: Array, h: Array, low_far: Array, high_h: Array) -> bool:
    """Both ends of all inequalities, boxes first; False where something is no finite number."""
    n, fine = len(wish), True
    for i in range(n):
        low_far[i], high_h[i] = low[i], high[i]
        fine &= math.isfinite(wish[i]) and math.isfinite(low[i]) and math.isfinite(high[i])
    for r in range(len(h)):
        low_far[n + r], high_h[n + r] = -_FAR, h[r]
        fine &= math.isfinite(h[r])
        for i in range(n):
            fine &= math.isfinite(g[r, i])
    return fine


@njit(cache=True, nogil=True)
def _meets(v: Array, low: Array, high: Array, g: Array, h: Array) -> bool:
    """Whether `v`, clipped to its box in place, meets the inequalities; False for NaN."""
    for i in range(len(v)):
        v[i] = min(max(v[i], low[i]), high[i]) if math.isfinite(v[i]) else math.nan
    for r in range(len(h)):
        value = 0.0
        for i in range(len(v)):
            value += g[r, i] * v[i]
        if not value <= h[r] + TOLERANCE * (1.0 + abs(h[r])):
            return False
    return True

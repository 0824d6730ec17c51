"""Questions about a few numbers, compiled: NumPy's overhead is many times the work, and a tick asks dozens of them."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[np.float64]
Bool = NDArray[np.bool_]
Ints = NDArray[np.int64]


@njit(cache=True, nogil=True)
def any_true(flags: Bool) -> bool:
    """Any of `flags` [N] is set."""
    return bool(flags.any())


@njit(cache=True, nogil=True)
def all_true(flags: Bool) -> bool:
    """Whether all of `flags` [N] are set."""
    return bool(flags.all())


@njit(cache=True, nogil=True)
def within(x: Array, bound: float) -> bool:
    """Whether all of `x` [n] are smaller than `bound` in size; False for NaN."""
    fine = True
    for value in x:
        fine &= abs(value) < bound
    return fine


@njit(cache=True, nogil=True)
def max_abs_diff(x: Array, y: Array) -> float:
    """Largest difference of `x` [n] and `y` [n]; NaN if one is."""
    most = 0.0
    for i in range(len(x)):
        gap = abs(x[i] - y[i])
        if not gap <= most and most == most:
            most = gap
    return most


@njit(cache=True, nogil=True)
def clip(x: Array, middle: Array, reach: float, out: Array) -> bool:
    """Clip `x` [n] to `reach` around `middle` [n] into `out` [n]; returns whether that changes it. NaN stays."""
    changes = False
    for i in range(len(x)):
        out[i] = x[i]
        if x[i] < middle[i] - reach:
            out[i], changes = middle[i] - reach, True
        if x[i] > middle[i] + reach:
            out[i], changes = middle[i] + reach, True
    return changes

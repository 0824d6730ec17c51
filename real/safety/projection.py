"""The nearest velocity that meets all inequalities: one quadratic programme of n unknowns.

daqp reports success on NaN in the cost, quadprog returns NaN without an error: numbers are checked before and after,
and the inequalities again on what comes back. A flag alone is never believed.
"""

from __future__ import annotations

from collections.abc import Callable

import daqp
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
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
    above = np.concatenate([high, h])
    if not np.isfinite(np.concatenate([wish, low, above, g.ravel()])).all():
        return None
    if m == 0:
        return np.clip(wish, low, high)
    v, _, flag, _ = daqp.solve(
        np.eye(n), -wish, np.ascontiguousarray(g), above,
        np.concatenate([low, np.full(m, -_FAR)]), np.zeros(n + m, dtype=np.intc),
    )  # fmt: skip
    if flag != 1 or not np.isfinite(v).all():
        return None
    v = np.clip(v, low, high)
    return v if (g @ v <= h + TOLERANCE * (1.0 + np.abs(h))).all() else None

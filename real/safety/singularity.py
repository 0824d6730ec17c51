"""The distance of the arm from a singularity."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from robopolicy.real.safety.array_ops import Array, Ints
from robopolicy.real.safety.body import Body
from robopolicy.real.safety.path import Here, Inequalities, Path


class Singularity:
    """Condition number of the Jacobian (in radians, and in lengths of the profile) stays below `limit`.

    Singular values change no faster than the Jacobian's norm, which a path's joint travel bounds; so a few samples do.
    """

    name = "singularity"

    def __init__(self, body: Body, limit: float, samples: int = 8) -> None:
        length = body.profile.length
        self._scale = None if length == 1.0 else np.array([1 / length] * 3 + [1.0] * 3)  # of the Jacobian's columns
        self.limit, self.samples, arm = limit, samples, body.tcp_reach / length
        arm[-1] = np.hypot(*body.profile.chain.tcp[:2]) / length
        n, index = len(arm), np.arange(len(arm))
        # [n]: how fast the Jacobian's norm changes per radian of each joint, at most (see `_away`).
        self._rates = np.sqrt([np.square(arm[np.maximum(i, index)]).sum() + (n - 1 - i) for i in range(n)])
        self._rates[0] = 0.0  # the first joint turns everything alike, which leaves singular values as they are

    def margin(self, path: Path) -> Array:
        """Without unit: limit · smallest − largest singular value; ∞ where ≥ 0 is certain without them."""
        out, s = np.empty(len(path.c)), path.samples
        _condition(self._scaled(path.pose.jacobian), s.travel, self._rates, s.first, self.samples, self.limit, out)
        return out

    def rows(self, here: Here) -> Inequalities | None:
        g, h = here.room(1)
        return here.brake(g, h, int(_away(self._scaled(here.jacobian), self.limit, g[0], h)), extra=0.0)

    def _scaled(self, jac: Array) -> Array:
        return jac if self._scale is None else jac * self._scale


@njit(cache=True, nogil=True)
def _condition(jac: Array, travel: Array, rates: Array, first: Ints, samples: int, limit: float, out: Array) -> None:
    for arm in range(out.shape[0]):
        start, size = first[arm], first[arm + 1] - first[arm]
        count = min(samples, size)
        out[arm], last, change = np.inf, -1, 0.0
        for pick in range(count):
            index = int(pick * ((size - 1) / (count - 1))) if pick < count - 1 else size - 1
            if index == last:
                continue
            ahead = 0.0  # how far singular values may move half-way from the last sample to this
            if last >= 0:
                for m in range(start + last, start + index):
                    for i in range(rates.shape[0]):
                        ahead += 0.5 * travel[m, i] * rates[i]
                room = _spread(jac[start + last], max(change, ahead), limit)
                if not room >= out[arm] and out[arm] == out[arm]:  # NaN stays
                    out[arm] = room
            change, last = ahead, index
        room = _spread(jac[start + last], change, limit)
        if not room >= out[arm] and out[arm] == out[arm]:
            out[arm] = room


@njit(cache=True, nogil=True)
def _spread(jac: Array, change: float, limit: float) -> float:
    """limit · smallest − largest singular value of `jac` [n k], changed by up to `change`; ∞ where surely positive.

    An arm of fewer than six joints has as many values as joints: of the tool's motions, it makes those alone.
    """
    tall = jac if jac.shape[0] >= jac.shape[1] else np.ascontiguousarray(jac.T)
    if _surely(tall, change, limit):
        return np.inf
    values = singular_values(tall.copy())
    return limit * (values.min() - change) - (values.max() + change)


@njit(cache=True, nogil=True)
def _surely(jac: Array, change: float, limit: float) -> bool:
    """No singular value can be too small: those of `jac` [n k] are above `floor` if JᵀJ − floor² has a Cholesky factor.

    A tenth of the cost of singular values. The largest is at most the Frobenius norm. The slack is far above rounding.
    """
    n, size = jac.shape
    square = 0.0
    for i in range(n):
        for p in range(size):
            square += jac[i, p] * jac[i, p]
    floor = change + (math.sqrt(square) + change) / limit
    slack = 1e-6 * floor * floor + 1e-12 * square
    lower = np.empty((size, size))
    for p in range(size):
        for q in range(p + 1):
            value = 0.0
            for i in range(n):
                value += jac[i, p] * jac[i, q]
            for k in range(q):
                value -= lower[p, k] * lower[q, k]
            if q < p:
                lower[p, q] = value * lower[q, q]
            elif value > floor * floor + slack:
                lower[p, p] = 1 / math.sqrt(value - floor * floor - slack)  # the reciprocal
            else:  # NaN too
                return False
    return True


@njit(cache=True, nogil=True)
def singular_values(a: Array) -> Array:
    """Return [k] of `a` [n k], n ≥ k, unordered: its columns are turned against each other, in place, until orthogonal.

    One-sided Jacobi (Hestenes, 1958; Golub & Van Loan, Matrix Computations, 8.6.3), precise for small ones too.
    """
    n, size = a.shape
    for _ in range(30):
        turned = False
        for p in range(size - 1):
            for q in range(p + 1, size):
                alpha = beta = gamma = 0.0
                for i in range(n):
                    alpha += a[i, p] * a[i, p]
                    beta += a[i, q] * a[i, q]
                    gamma += a[i, p] * a[i, q]
                if abs(gamma) > 1e-14 * math.sqrt(alpha * beta):
                    turned = True
                    zeta = (beta - alpha) / (2 * gamma)
                    t = math.copysign(1.0, zeta) / (abs(zeta) + math.sqrt(1 + zeta * zeta))
                    c = 1 / math.sqrt(1 + t * t)
                    s = c * t
                    for i in range(n):
                        x, y = a[i, p], a[i, q]
                        a[i, p], a[i, q] = c * x - s * y, s * x + c * y
        if not turned:
            break
    values = np.empty(size)
    for p in range(size):
        square = 0.0
        for i in range(n):
            square += a[i, p] * a[i, p]
        values[p] = math.sqrt(square)
    return values


@njit(cache=True, nogil=True)
def _away(jac: Array, limit: float, gradient: Array, room: Array) -> bool:
    """Measure how far the smallest singular value is above the limit; False where it is far above.

    Its gradient by qᵢ is uᵀ·∂J/∂qᵢ·w, with unit vectors u of the tool's and w of the joints' motion.
    """
    n, size = jac.shape
    turned = jac.copy() if n >= size else np.ascontiguousarray(jac.T)
    values = singular_values(turned)
    least, floor = values.argmin(), values.max() / limit
    smallest = values[least]
    if smallest > 3 * floor:
        return False
    w, u = np.zeros(n), np.zeros(size)
    if n >= size:
        w[:] = turned[:, least] / max(smallest, 1e-12)
        for k in range(size):
            for i in range(n):
                u[k] += jac[i, k] * w[i] / max(smallest, 1e-12)
    else:
        u[:] = turned[:, least] / max(smallest, 1e-12)
        for i in range(n):
            for k in range(size):
                w[i] += jac[i, k] * u[k] / max(smallest, 1e-12)
    gradient[:] = 0.0
    for i in range(n):
        for k in range(n):
            near, far = min(i, k), max(i, k)
            for x in range(3):
                y, z = (x + 1) % 3, (x + 2) % 3
                bend = jac[near, 3 + y] * jac[far, z] - jac[near, 3 + z] * jac[far, y]
                gradient[i] += u[x] * bend * w[k]
                if i < k:
                    swing = jac[i, 3 + y] * jac[k, 3 + z] - jac[i, 3 + z] * jac[k, 3 + y]
                    gradient[i] += u[3 + x] * swing * w[k]
    room[0] = smallest - 1.1 * floor
    return True

"""Limits on the tool: its speed, its workspace, and the distance of the arm from a singularity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numba import njit

from real.safety.body import Body
from real.safety.kinematics import jacobian
from real.safety.limits import EXTRA, NEAR, Rows
from real.safety.path import Array, Here, Ints, Path
from real.safety.profile import Box


def _jacobian_at(here: Here, body: Body) -> Array:
    """[6 n] of the tool's point."""
    return jacobian(here.frames[None], here.points[None, body.tcp], np.array([len(here.q)]))[0].T


@dataclass(frozen=True, eq=False)
class TcpSpeed:
    """|ṗ| ≤ limit [m/s] of the tool's point.

    Between knots a vector function exceeds its linear interpolation by at most h²/8 · |f″| (here f = ṗ); |p⃛| of a
    serial arm is bounded from the joints' speeds, accelerations and jerks.
    """

    body: Body
    limit: float
    name: str = "tcp_speed"

    def margin(self, path: Path) -> Array:
        out, s = np.empty(len(path.c)), path.samples
        _speed(
            path.tcp_jacobian, s.qd, s.speed, s.accel, s.jerk, self.body.tcp_reach, path.stride * path.dt, s.first, out
        )
        return self.limit - out

    def rows(self, here: Here) -> Rows | None:
        jac = _jacobian_at(here, self.body)[:3]
        now = jac @ here.v
        if (speed := float(np.linalg.norm(now))) < 0.5 * self.limit:
            return None
        margin = (Path.stride_at(here.dt) * here.dt) ** 2 / 8 * float(self.body.profile.jerk @ self.body.tcp_reach)
        return Rows(_sides(now / speed) @ jac, _SHARES * max(self.limit - margin, 0.5 * self.limit))


_SHARES = np.array([0.98, 0.2, 0.2, 0.2, 0.2])  # of the speed limit: along the way, and across it


@njit(cache=True, nogil=True)
def _sides(way: Array) -> Array:
    """[5 3]: the unit vector `way`, and both directions along two axes across it (Duff et al., 2017)."""
    x, y, z = way
    out = np.empty((5, 3))
    sign = math.copysign(1.0, z)
    a = -1 / (sign + z)
    b = x * y * a
    out[0] = way
    out[1, 0], out[1, 1], out[1, 2] = 1 + sign * x * x * a, sign * b, -sign * x
    out[2, 0], out[2, 1], out[2, 2] = b, sign + y * y * a, -y
    out[3], out[4] = -out[1], -out[2]
    return out


@njit(cache=True, nogil=True)
def _speed(
    jac: Array, qd: Array, speed: Array, accel: Array, jerk: Array, reach: Array, step: float, first: Ints, out: Array
) -> None:
    """[N] m/s, the highest on each path."""
    for arm in range(out.shape[0]):
        out[arm] = before = third = 0.0
        for m in range(first[arm], first[arm + 1]):
            square = 0.0
            for k in range(3):
                p = 0.0
                for i in range(qd.shape[1]):
                    p += jac[m, i, k] * qd[m, i]
                square += p * p
            now = math.sqrt(square)
            if m > first[arm]:
                peak = max(before, now) + step**2 / 8 * third
                if not peak <= out[arm] and out[arm] == out[arm]:  # what is no number stays
                    out[arm] = peak
            w = alpha = by_jerk = by_accel = by_speed = 0.0
            for i in range(qd.shape[1]):
                w += speed[m, i]
                alpha += accel[m, i]
                by_jerk += jerk[m, i] * reach[i]
                by_accel += accel[m, i] * reach[i]
                by_speed += speed[m, i] * reach[i]
            third, before = by_jerk + 4 * w * by_accel + (2 * alpha + 4 * w**2) * by_speed, now


@dataclass(frozen=True, eq=False)
class Workspace:
    """The tool's point stays inside a box."""

    body: Body
    box: Box
    name: str = "workspace"

    @cached_property
    def _ends(self) -> tuple[Array, Array]:
        return np.array(self.box.low, dtype=np.float64), np.array(self.box.high, dtype=np.float64)

    def margin(self, path: Path) -> Array:
        (low, high), tcp = self._ends, path.points[:, self.body.tcp]
        room = np.minimum(tcp - low, high - tcp).min(axis=1, keepdims=True)
        return path.between(room, self.body.tcp_reach[None])

    def rows(self, here: Here) -> Rows | None:
        (low, high), tcp = self._ends, here.points[self.body.tcp]
        room = np.concatenate([tcp - low, high - tcp])
        near = room < NEAR
        if not near.any():
            return None
        jac = _jacobian_at(here, self.body)[:3]
        return Rows(*here.brake(np.concatenate([jac, -jac])[near], room[near] - EXTRA))


@dataclass(frozen=True, eq=False)
class Singularity:
    """Condition number of the Jacobian (metres and radians as they are) stays below `limit`.

    Singular values change no faster than the Jacobian's norm, which a path's joint travel bounds; so a few samples do.
    """

    body: Body
    limit: float
    samples: int = 8
    name: str = "singularity"

    @cached_property
    def _rates(self) -> Array:
        """[n]: how fast the Jacobian's norm changes per radian of each joint, at most (see `jacobian_derivative`).

        The first joint turns everything alike, which leaves singular values as they are.
        """
        arm = self.body.tcp_reach.copy()
        arm[-1] = np.hypot(*self.body.profile.chain.tcp[:2])
        n = len(arm)
        index = np.arange(n)
        rates = np.sqrt([np.square(arm[np.maximum(i, index)]).sum() + (n - 1 - i) for i in range(n)])
        rates[0] = 0.0
        return rates

    def margin(self, path: Path) -> Array:
        """Without unit: limit · smallest − largest singular value."""
        out = np.empty(len(path.c))
        _condition(path.tcp_jacobian, path.travel, self._rates, path.samples.first, self.samples, self.limit, out)
        return out

    def rows(self, here: Here) -> Rows | None:
        jac = _jacobian_at(here, self.body)
        singular_values(jac.T, found := np.empty(6))
        if found.min() > 3 * found.max() / self.limit:
            return None
        u, value, vt = np.linalg.svd(jac, full_matrices=False)
        floor = value[0] / self.limit
        gradient = jacobian_derivative(np.ascontiguousarray(jac)) @ vt[-1] @ u[:, -1]
        return Rows(*here.brake(gradient[None], np.array([value[-1] - 1.1 * floor])))


@njit(cache=True, nogil=True)
def _condition(jac: Array, travel: Array, rates: Array, first: Ints, samples: int, limit: float, out: Array) -> None:
    values = np.empty(jac.shape[2])
    for arm in range(out.shape[0]):
        start, size = first[arm], first[arm + 1] - first[arm]
        count = min(samples, size)
        out[arm], last = np.inf, -1
        largest = smallest = change = 0.0
        for pick in range(count):
            index = int(pick * ((size - 1) / (count - 1))) if pick < count - 1 else size - 1
            if index == last:
                continue
            ahead = 0.0  # how far singular values may move half-way from the last sample to this
            if last >= 0:
                for m in range(start + last, start + index):
                    for i in range(rates.shape[0]):
                        ahead += 0.5 * travel[m, i] * rates[i]
                room = limit * (smallest - max(change, ahead)) - (largest + max(change, ahead))
                if not room >= out[arm] and out[arm] == out[arm]:  # what is no number stays
                    out[arm] = room
            singular_values(jac[start + index], values)
            largest, smallest, change, last = values.max(), values.min(), ahead, index
        room = limit * (smallest - change) - (largest + change)
        if not room >= out[arm] and out[arm] == out[arm]:
            out[arm] = room


@njit(cache=True, nogil=True)
def singular_values(jac: Array, values: Array) -> None:
    """`values` [k] of `jac` [n k], n ≥ k, unordered: its columns are turned against each other until orthogonal.

    One-sided Jacobi (Hestenes, 1958; Golub & Van Loan, Matrix Computations, 8.6.3), precise for small ones too.
    """
    a = jac.copy()
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
    for p in range(size):
        square = 0.0
        for i in range(n):
            square += a[i, p] * a[i, p]
        values[p] = math.sqrt(square)


def jacobian_derivative(jac: Array) -> Array:
    """[n 6 n]: ∂J/∂qᵢ of a serial arm from its Jacobian [6 n], whose lower half are the joints' axes."""
    out = np.zeros((jac.shape[1], *jac.shape))
    _derivative(jac, out)
    return out


@njit(cache=True, nogil=True)
def _derivative(jac: Array, out: Array) -> None:
    n = jac.shape[1]
    for i in range(n):
        for k in range(n):
            near, far = min(i, k), max(i, k)
            for x in range(3):
                y, z = (x + 1) % 3, (x + 2) % 3
                out[i, x, k] = jac[3 + y, near] * jac[z, far] - jac[3 + z, near] * jac[y, far]
                if i < k:
                    out[i, 3 + x, k] = jac[3 + y, i] * jac[3 + z, k] - jac[3 + z, i] * jac[3 + y, k]

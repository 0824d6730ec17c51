"""Limits on the tool: its speed and its workspace."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.body import Body
from robopolicy.real.safety.geometry import NEAR
from robopolicy.real.safety.path import Here, Inequalities, Path, PathSamples
from robopolicy.real.safety.settings import Box


class TcpSpeed:
    """|ṗ| ≤ limit [m/s] of the tool's point.

    Between knots a vector function exceeds its linear interpolation by at most h²/8 · |f″| (here f = ṗ); |p⃛| of a
    serial arm is bounded from the joints' speeds, accelerations and jerks.
    """

    name = "tcp_speed"

    def __init__(self, body: Body, limit: float) -> None:
        self.body, self.limit = body, limit
        self._third = float(body.profile.jerk @ body.tcp_reach)  # m/s³, for rows

    def margin(self, path: Path) -> Array:
        out, s, jac = np.empty(len(path.c)), path.samples, path.pose.jacobian
        step = path.stride_at(path.dt) * path.dt
        _speed(jac, s, self.body.tcp_reach, step, out)
        return self.limit - out

    def rows(self, here: Here) -> Inequalities | None:
        g, h = here.room(5)
        aim = max(self.limit - (Path.stride_at(here.dt) * here.dt) ** 2 / 8 * self._third, 0.5 * self.limit)
        return Inequalities(g, h) if _ways(here.jacobian, here.v, 0.5 * self.limit, aim, g, h) else None


_SHARES = np.array([0.98, 0.2, 0.2, 0.2, 0.2])  # of the speed limit: along the way, and across it


@njit(cache=True, nogil=True)
def _ways(jac: Array, v: Array, slow: float, aim: float, g: Array, h: Array) -> bool:
    """Rows by the tool's velocity, along its way and across it; False where it is slower than `slow` m/s."""
    now = np.zeros(3)
    for i in range(len(v)):
        for k in range(3):
            now[k] += jac[i, k] * v[i]
    speed = math.sqrt(now[0] ** 2 + now[1] ** 2 + now[2] ** 2)
    if speed < slow:
        return False
    sides = _sides(now / speed)
    for r in range(5):
        h[r] = _SHARES[r] * aim
        for i in range(len(v)):
            g[r, i] = sides[r, 0] * jac[i, 0] + sides[r, 1] * jac[i, 1] + sides[r, 2] * jac[i, 2]
    return True


@njit(cache=True, nogil=True)
def _sides(way: Array) -> Array:
    """Return [5 3]: the unit vector `way`, and both directions along two axes across it (Duff et al., 2017)."""
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
def _speed(jac: Array, samples: PathSamples, reach: Array, step: float, out: Array) -> None:
    """[N] m/s, the highest on each path."""
    first, qd, speed, accel, jerk = samples.first, samples.qd, samples.speed, samples.accel, samples.jerk
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
                if not peak <= out[arm] and out[arm] == out[arm]:  # NaN stays
                    out[arm] = peak
            w = alpha = by_jerk = by_accel = by_speed = 0.0
            for i in range(qd.shape[1]):
                w += speed[m, i]
                alpha += accel[m, i]
                by_jerk += jerk[m, i] * reach[i]
                by_accel += accel[m, i] * reach[i]
                by_speed += speed[m, i] * reach[i]
            third, before = by_jerk + 4 * w * by_accel + (2 * alpha + 4 * w**2) * by_speed, now


class Workspace:
    """Keep the tool's point inside a box."""

    name = "workspace"

    def __init__(self, body: Body, box: Box) -> None:
        self.body, self._box = body, np.array((box.low, box.high), dtype=np.float64)

    def margin(self, path: Path) -> Array:
        points = path.pose.points
        room = np.empty((len(points), 1))
        _inside(points, self._box, room)
        return path.between(room, self.body.tcp_reach[None])

    def rows(self, here: Here) -> Inequalities | None:
        g, h = here.room(6)
        count = _walls(here.points, here.jacobian, self._box, g, h)
        return here.brake(g, h, count)


@njit(cache=True, nogil=True)
def _inside(points: Array, box: Array, room: Array) -> None:
    for m in range(points.shape[0]):
        room[m, 0] = np.inf
        for k in range(3):
            room[m, 0] = min(room[m, 0], points[m, -1, k] - box[0, k], box[1, k] - points[m, -1, k])


@njit(cache=True, nogil=True)
def _walls(points: Array, jac: Array, box: Array, gradient: Array, room: Array) -> int:
    """Rooms to the walls that are near, their gradients, and how many these are."""
    count, tcp = 0, points[-1]
    for sign in (1.0, -1.0):
        for k in range(3):
            distance = tcp[k] - box[0, k] if sign > 0 else box[1, k] - tcp[k]
            if distance < NEAR:
                for i in range(jac.shape[0]):
                    gradient[count, i] = sign * jac[i, k]
                room[count] = distance
                count += 1
    return count

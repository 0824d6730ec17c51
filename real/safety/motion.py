"""Commanded motion as control points of a uniform cubic B-spline, and the jerk-limited stop.

The command of a tick is one vector of joint angles, a control point c. The arm follows the spline, so that
backward differences of the control points bound its derivatives exactly (convex hull property):

    v = (c₀ − c₁) / dt,   a = (c₀ − 2c₁ + c₂) / dt²,   jerk = (c₀ − 3c₁ + 3c₂ − c₃) / dt³,   c₀ the newest.

Whoever keeps these three inside their limits keeps the continuous trajectory inside them, at any upsampling.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Bool = NDArray[np.bool_]

HISTORY = 6  # control points kept: what a check of a new one looks back on


def velocity(c: Array, dt: float) -> Array:
    """[N n] rad/s of the newest of control points `c` [N H n], oldest first."""
    return (c[:, -1] - c[:, -2]) / dt


def acceleration(c: Array, dt: float) -> Array:
    """[N n] rad/s²."""
    return ((c[:, -1] - c[:, -2]) - (c[:, -2] - c[:, -3])) / dt**2


def upsample(c: Array, times: int) -> Array:
    """Points on the spline between knots −1 and 0 of four control points `c` [4 n], oldest first.

    Returns:
        [times n] rad, at fractions 1/times … 1 of the tick.
    """
    u = np.arange(1, times + 1)[:, None] / times
    w = np.concatenate([(1 - u) ** 3, 3 * u**3 - 6 * u**2 + 4, -3 * u**3 + 3 * u**2 + 3 * u + 1, u**3], axis=1) / 6
    # Corrections to the newest-but-one point, not weights of large angles: an arm at rest stays at rest, bit for bit.
    return c[2] + w @ (c - c[2])


def knots(c: Array, dt: float) -> tuple[Array, Array, Array]:
    """Position, velocity and acceleration of the spline at the inner control points of `c` [K n]: each [K−2 n]."""
    before, here, after = c[:-2], c[1:-1], c[2:]
    bend = (after - here) - (here - before)
    return here + bend / 6, (after - before) / (2 * dt), bend / dt**2


def stop_time(v: Array, a: Array, acc: Array, jerk: Array) -> Array:
    """[N n] s that the stop below takes; at most |v|/acc + 2.5·acc/jerk."""
    return _phases(v, a, acc, jerk)[3]


def stop(c: Array, acc: Array, jerk: Array, dt: float, ticks: int) -> Array:
    """Control points [N ticks n] that bring each joint to rest in least time after history `c` [N H n].

    The continuous time-optimal stop of velocity and acceleration (|a| ≤ acc, |jerk| ≤ jerk) is sampled at ticks. Its
    cell averages are what the differences see, so they inherit both bounds, and rest is reached exactly.
    """
    v0, a0 = velocity(c, dt), acceleration(c, dt)
    sign, peak, lead, total = _phases(v0, a0, acc, jerk)
    v, a = sign * v0, sign * a0
    t = (dt * np.arange(1, ticks + 1))[None, :, None]
    left = np.maximum(total[:, None] - t, 0.0)
    tail = (peak / jerk)[:, None]  # s, of the last phase
    first = v[:, None] + t * (a[:, None] - 0.5 * jerk * t)
    middle = 0.5 * jerk * tail**2 + peak[:, None] * (left - tail)
    speed = np.where(left <= tail, 0.5 * jerk * left**2, np.where(t < lead[:, None], first, middle))
    return c[:, -1:] + dt * np.cumsum(sign[:, None] * speed, axis=1)


def stop_reach(v: Array, a: Array, acc: Array, jerk: Array) -> Array:
    """[N n] rad: how far the stop carries each joint, signed (the integral of its velocity)."""
    sign, peak, lead, total = _phases(v, a, acc, jerk)
    tail = peak / jerk
    hold = total - lead - tail
    first = lead * (sign * v + lead * (0.5 * sign * a - jerk * lead / 6))
    return sign * (first + hold * (0.5 * jerk * tail**2 + 0.5 * peak * hold) + jerk * tail**3 / 6)


def _phases(v: Array, a: Array, acc: Array, jerk: Array) -> tuple[Array, Array, Array, Array]:
    """Direction, peak deceleration, end of the first phase, end of all: each [N n].

    In the direction in which the arm would still move after its acceleration had been taken to zero, the stop ramps
    down to −peak, holds, and ramps up to zero; peak² = jerk·v + a²/2 where no hold is needed.
    """
    sign = np.where(v + a * np.abs(a) / (2 * jerk) < 0, -1.0, 1.0)
    v, a = sign * v, sign * a
    square = np.maximum(jerk * v + 0.5 * a**2, 0.0)
    peak = np.minimum(np.sqrt(square), acc)
    hold = np.maximum(square - peak**2, 0.0) / (jerk * acc)
    lead = np.maximum(a + peak, 0.0) / jerk
    return sign, peak, lead, lead + hold + peak / jerk

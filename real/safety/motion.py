"""Commanded motion as control points of a uniform cubic B-spline, and the jerk-limited stop.

The command of a tick is one vector of joint angles, a control point c. The arm follows the spline, so that
backward differences of the control points bound its derivatives exactly (convex hull property):

    v = (c₀ − c₁) / dt,   a = (c₀ − 2c₁ + c₂) / dt²,   jerk = (c₀ − 3c₁ + 3c₂ − c₃) / dt³,   c₀ the newest.

Limits on these three bound the continuous trajectory too, at any upsampling.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from robopolicy.real.safety.array_ops import Array, Ints

HISTORY = 6  # control points that a check of a new one needs


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


def with_stop(
    history: Array, command: Array, acc: Array, jerk: Array, dt: float, *, longest: float, stride: int
) -> tuple[Array, Ints]:
    """Control points [N K n] of `history` [N HISTORY n], `command` [N n] and the stop after it, and ticks [N] of that.

    The stop brings each joint to rest in least time under |a| ≤ acc [n], |jerk| ≤ jerk [n]: the continuous
    time-optimal stop of velocity and acceleration sampled at ticks. The differences see its cell averages, so
    they inherit both bounds, and rest is reached exactly. Shorter stops are filled up with rest.

    Args:
        longest: s, no stop is made longer.
        stride: stops end so many ticks after the control point before the command, or a multiple of it.
    """
    ticks = np.empty(len(command), dtype=np.int64)
    phases = np.empty((*command.shape, 6))
    most = _plan(history, command, acc, jerk, dt, longest, stride, phases, ticks)
    c = np.empty((len(command), HISTORY + 1 + most, command.shape[1]))
    _fill(history, command, jerk, dt, phases, ticks, c)
    return c, ticks


@njit(cache=True, nogil=True)
def _plan(
    history: Array,
    command: Array,
    acc: Array,
    jerk: Array,
    dt: float,
    longest: float,
    stride: int,
    phases: Array,
    ticks: Ints,
) -> int:
    """Return the most ticks of any arm's stop. Into `phases` per joint: direction, then in that direction velocity,
    acceleration, peak deceleration, end of the first phase and of all.

    In the direction in which the arm would still move after its acceleration had been taken to zero, the stop ramps
    down to −peak, holds, and ramps up to zero; peak² = jerk·v + a²/2 where no hold is needed.
    """
    most = 0
    for arm in range(command.shape[0]):
        time = 0.0
        for i in range(command.shape[1]):
            before = history[arm, HISTORY - 1, i]
            v = (command[arm, i] - before) / dt
            a = ((command[arm, i] - before) - (before - history[arm, HISTORY - 2, i])) / dt**2
            sign = -1.0 if v + a * abs(a) / (2 * jerk[i]) < 0 else 1.0
            v, a = sign * v, sign * a
            square = max(jerk[i] * v + 0.5 * a**2, 0.0)
            peak = min(math.sqrt(square), acc[i])
            hold = max(square - peak**2, 0.0) / (jerk[i] * acc[i])
            lead = max(a + peak, 0.0) / jerk[i]
            total = lead + hold + peak / jerk[i]
            row = phases[arm, i]
            row[0], row[1], row[2], row[3], row[4], row[5] = sign, v, a, peak, lead, total
            time = max(time, total)
        if not time < longest:  # a number that is none, too
            time = longest
        size = math.ceil(time / dt) + 3
        ticks[arm] = size + (-(size + 1)) % stride
        most = max(most, ticks[arm])
    return most


@njit(cache=True, nogil=True)
def _fill(history: Array, command: Array, jerk: Array, dt: float, phases: Array, ticks: Ints, c: Array) -> None:
    for arm in range(command.shape[0]):
        c[arm, :HISTORY] = history[arm]
        c[arm, HISTORY] = command[arm]
        for i in range(command.shape[1]):
            row = phases[arm, i]
            sign, v, a, peak, lead, total = row[0], row[1], row[2], row[3], row[4], row[5]
            tail, distance = peak / jerk[i], 0.0  # s, of the last phase; rad/s·ticks
            for k in range(ticks[arm]):
                t = dt * (k + 1)
                left = max(total - t, 0.0)
                if left <= tail:
                    speed = 0.5 * jerk[i] * left**2
                elif t < lead:
                    speed = v + t * (a - 0.5 * jerk[i] * t)
                else:
                    speed = 0.5 * jerk[i] * tail**2 + peak * (left - tail)
                distance += sign * speed
                c[arm, HISTORY + 1 + k, i] = command[arm, i] + dt * distance
            c[arm, HISTORY + 1 + ticks[arm] :, i] = c[arm, HISTORY + ticks[arm], i]

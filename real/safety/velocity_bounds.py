"""Bounds of the next velocity by joint alone, and the way towards a target out of reach of one tick.

They are proposals only: the certificate checks the result.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from robopolicy.real.safety.array_ops import Array, Bool
from robopolicy.real.safety.profile import JointBounds, Profile


class VelocityBounds(NamedTuple):
    """Permitted next joint velocities by joint alone, and the wanted one among them. [N n] rad/s."""

    low: Array
    high: Array
    wish: Array
    inside: Bool  # [N] the target can be reached in this tick: `wish` leads there
    command: Array  # [N n] rad, where it leads: the target itself, bit for bit, where that is inside


def velocity_bounds(
    c: Array, target: Array, before: Array, profile: Profile, dt: float, pace: float = 1.0
) -> VelocityBounds:
    """Bound the next velocities after history `c` [N H n] towards `target` [N n] rad, `before` [N n] a tick ago.

    Velocities are bounded by jerk, acceleration, velocity and the ends of the joints: acceleration must come back to
    zero before the velocity limit, and the arm to rest before the end of a joint. Where both cannot be met, the bound
    of jerk comes first. A target out of reach is followed without lag and come to without overshoot: as fast as half of
    the acceleration limit can brake, linear close by.

    Args:
        pace: fraction of the joints' velocity limits.
    """
    low, high, wish, command = np.empty((4, *target.shape))
    found = VelocityBounds(low, high, wish, np.empty(len(target), dtype=np.bool_), command)
    _velocity_bounds(c, target, before, profile.bounds, dt, pace, found)
    return found


SHRINK = 1 - 1e-8  # rounding must not exclude a velocity on an edge


@njit(cache=True, nogil=True)
def _velocity_bounds(
    c: Array, target: Array, before: Array, bounds: JointBounds, dt: float, pace: float, found: VelocityBounds
) -> None:
    lowest, highest, velocity, acceleration, jerk = bounds
    low, high, wish, inside, command = found
    last = c.shape[1] - 1
    for arm in range(c.shape[0]):
        inside[arm] = True
        for i in range(c.shape[2]):
            q, q1, q2 = c[arm, last, i], c[arm, last - 1, i], c[arm, last - 2, i]
            v, a = (q - q1) / dt, ((q - q1) - (q1 - q2)) / dt**2
            acc, j, top = acceleration[i] * SHRINK, jerk[i] * SHRINK, velocity[i] * SHRINK * pace
            least, most = a - j * dt, a + j * dt
            up = min(acc, _gentle(_speed_for(highest[i] - q, acc, j, dt, top) - v, j, dt))
            down = -min(acc, _gentle(v + _speed_for(q - lowest[i], acc, j, dt, top), j, dt))
            first, second = v + dt * min(max(down, least), most), v + dt * min(max(up, least), most)
            low[arm, i], high[arm, i] = min(first, second), max(first, second)
            command[arm, i], wish[arm, i] = target[arm, i], (target[arm, i] - q) / dt
            if not (low[arm, i] <= wish[arm, i] <= high[arm, i]):
                inside[arm] = False
        if not inside[arm]:
            for i in range(c.shape[2]):
                q, v = c[arm, last, i], (c[arm, last, i] - c[arm, last - 1, i]) / dt
                acc, j, top = acceleration[i], jerk[i], velocity[i]
                ahead = min(max((target[arm, i] - before[arm, i]) / dt, -top), top)
                gap = target[arm, i] - q - dt * ahead
                size, lag = abs(gap), 4 * (dt + acc / j)
                wanted = ahead + math.copysign(min(size / lag, math.sqrt(acc * size)), gap)
                change = min(max(wanted, -top), top) - v
                strength = min(_gentle(abs(change), j, dt), min(acc, abs(change) / dt))
                wish[arm, i] = min(max(v + dt * math.copysign(strength, change), low[arm, i]), high[arm, i])
                command[arm, i] = q + dt * wish[arm, i]


@njit(cache=True, nogil=True)
def _gentle(change: float, jerk: float, dt: float) -> float:
    """Largest acceleration now from which, falling at `jerk`, velocity grows by `change` at most; negative if must."""
    if change < 0:
        return change / dt
    return math.sqrt((0.5 * jerk * dt) ** 2 + 2 * jerk * change) - 0.5 * jerk * dt


@njit(cache=True, nogil=True)
def _speed_for(room: float, acc: float, jerk: float, dt: float, top: float) -> float:
    """Speed, at most `top`, from which a joint stops within `room` rad: v·(2dt + acc/2jerk) + v²/2acc = room."""
    lag = 2 * dt + acc / (2 * jerk)
    speed = acc * (math.sqrt(lag**2 + 2 * max(room, 0.0) / acc) - lag)
    return speed if speed < top else top

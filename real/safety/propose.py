"""Where a command may lie by joint alone, and the way towards a target that cannot be reached in one tick.

Only proposals: what they promise is checked by the certificate.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from real.safety import motion
from real.safety.profile import Profile

Array = NDArray[np.float64]


class Box(NamedTuple):
    """Permitted next joint velocities, [… n] rad/s."""

    low: Array
    high: Array


def box_of(c: Array, profile: Profile, dt: float, pace: float = 1.0) -> Box:
    """Velocities that jerk, acceleration, velocity and the ends of the joints leave after history `c` [N H n].

    Acceleration must come back to zero before the velocity limit, and the arm to rest before the end of a joint.
    Where both cannot be had, what jerk allows comes first.
    """
    v, a, q = motion.velocity(c, dt), motion.acceleration(c, dt), c[:, -1]
    shrink = 1 - 1e-8  # rounding must not decide against what lies on an edge
    acc, jerk, top = profile.acceleration * shrink, profile.jerk * shrink, profile.velocity * shrink * pace
    least, most = a - jerk * dt, a + jerk * dt
    up = np.minimum(acc, _gentle(_speed_for(profile.high - q, acc, jerk, dt, top) - v, jerk, dt))
    down = -np.minimum(acc, _gentle(v + _speed_for(q - profile.low, acc, jerk, dt, top), jerk, dt))
    high = v + dt * np.clip(up, least, most)
    low = v + dt * np.clip(down, least, most)
    return Box(np.minimum(low, high), np.maximum(low, high))


def track(c: Array, target: Array, before: Array, box: Box, profile: Profile, dt: float) -> Array:
    """Velocity [N n] towards `target` [N n], `before` being the target of the tick before.

    Follows a moving target without lag and comes to a standing one without overshoot: as fast as half of the
    acceleration limit can brake, linear close by.
    """
    v, q = motion.velocity(c, dt), c[:, -1]
    acc, jerk, top = profile.acceleration, profile.jerk, profile.velocity
    ahead = np.clip((target - before) / dt, -top, top)
    gap = target - q - dt * ahead
    size = np.abs(gap)
    lag = 4 * (dt + acc / jerk)
    wanted = np.clip(ahead + np.sign(gap) * np.minimum(size / lag, np.sqrt(acc * size)), -top, top)
    change = wanted - v
    a = np.sign(change) * np.minimum(_gentle(np.abs(change), jerk, dt), np.minimum(acc, np.abs(change) / dt))
    return np.clip(v + dt * a, box.low, box.high)


def _gentle(change: Array, jerk: Array, dt: float) -> Array:
    """Largest acceleration now from which, falling at `jerk`, velocity grows by `change` at most; negative if must."""
    some = np.maximum(change, 0.0)
    return np.where(change >= 0, np.sqrt((0.5 * jerk * dt) ** 2 + 2 * jerk * some) - 0.5 * jerk * dt, change / dt)


def _speed_for(room: Array, acc: Array, jerk: Array, dt: float, top: Array) -> Array:
    """Speed, at most `top`, from which a joint stops within `room` rad: v·(2dt + acc/2jerk) + v²/2acc = room."""
    lag = 2 * dt + acc / (2 * jerk)
    return np.minimum(top, acc * (np.sqrt(lag**2 + 2 * np.maximum(room, 0.0) / acc) - lag))

"""Between the policy's rate and the ticks: a reference that the limits have no reason to change.

Joint targets g of the policy's control steps, T s apart, are control points of a uniform cubic B-spline. Its velocity,
acceleration and jerk are bounded by differences of g over T, T², T³, and it trails the ramp that the simulator's
servos get by one control step: as much as these servos lag. An arm that follows it without lag moves as trained.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from robopolicy.real.safety.array_ops import Array, Bool
from robopolicy.real.safety.profile import Profile

SPEED, ACCELERATION = 0.9, 0.95  # of the limits: the rest is for the margins of the certificate
TOOL = 0.7  # of its speed limit: in a stop the joints do not slow down alike, and terms that cancelled add up


class Shaped(NamedTuple):
    """A step of the joint targets."""

    step: Array  # [… n] rad
    limited: Bool  # […] it is not the one that was wanted


def shape(wanted: Array, last: Array, jac: Array, profile: Profile, dt: float) -> Shaped:
    """Return the permitted step [… n] rad towards `wanted` [… n] after the step `last` [… n], `dt` s each.

    All joints are slowed alike, so that the tool keeps its direction. Steps that differ by a·dt² make a spline of
    acceleration a at most, and of jerk 2a/dt, which is far inside the limits at a policy's rate.

    Args:
        jac: [… n 3] m/rad, the tool's translation by joint.
    """
    tiny = 1e-12
    joint = (SPEED * profile.velocity * dt / np.maximum(np.abs(wanted), tiny)).min(axis=-1)
    travel = np.linalg.norm((wanted[..., None] * jac).sum(axis=-2), axis=-1)
    tool = TOOL * profile.settings.tcp_speed * dt / np.maximum(travel, tiny)
    slower = np.minimum(1.0, np.minimum(joint, tool))
    change = slower[..., None] * wanted - last
    most = ACCELERATION * profile.acceleration * dt**2
    part = np.minimum(1.0, (most / np.maximum(np.abs(change), tiny)).min(axis=-1))
    limited = (slower < 1.0) | (part < 1.0)
    return Shaped(np.where(limited[..., None], last + part[..., None] * change, wanted), limited)


def follow(points: Array, u: float) -> Array:
    """Return [n] rad at `u` segments after the newest of control points `points` [4 n], oldest first, began.

    Beyond its end, where the next control point is late, the spline goes on for a segment as if one more step of the
    same size followed. When the next one is there, it changes that by u³/6 of the difference, u early in the
    segment: the arm neither stops nor jumps.
    """
    if u <= 1.0:
        return spline(points, u)
    return spline(np.concatenate([points[1:], 2 * points[3:] - points[2:3]]), min(u - 1.0, 1.0))


def spline(points: Array, u: float) -> Array:
    """Return [n] rad at fraction `u` of the newest segment of control points `points` [4 n], oldest first."""
    a, b, c, d = points
    return c + ((1 - u) ** 3 * (a - c) + (3 * u**3 - 6 * u**2 + 4) * (b - c) + u**3 * (d - c)) / 6


def steps_behind(command: Array, target: Array, step: Array) -> float:
    """Count the steps `step` [n] rad by which `command` [n] trails `target` [n]; 0 for a target that hardly moves."""
    square = float(step @ step)
    return float((target - command) @ step) / square if square > 1e-12 else 0.0

"""Whether the measured arm follows its commands, and is near enough to them for the clearance that is claimed of it.

A joint that is off by e rad moves no point of the arm by more than L·e, L being the longest lever arm about its axis.
The sum over the joints bounds the way of every point, and must stay below the distance that is kept from the scene.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numba import njit

from robopolicy.real.safety.array_ops import Array, max_abs_diff
from robopolicy.real.safety.body import Body
from robopolicy.real.safety.errors import SafetyError
from robopolicy.real.safety.profile import Profile
from robopolicy.real.safety.settings import DROOP, MAX_TRACKING_ERROR, NEAR

TRAIL = 64  # control points that an arm may be behind its newest command, and still be on its way
LEAST = 0.005  # m, of a distance that leaves room beside the command
MOVED = 0.005  # rad, by which a joint that follows has moved within `stall` s; more than the resolution of servos
SCENE = ("workspace", "planes", "keep_out")


def levers(body: Body) -> Array:
    """Bound [n] m how far the tool, or any point that must keep off the scene, moves per radian of a joint."""
    rows = [*body.scene, *(body.scene + len(body.radius)), *range(body.spheres.start, body.spheres.stop), body.tcp]
    return np.asarray(body.reach[rows].max(axis=0))


def allowance(profile: Profile, body: Body, dt: float) -> float:
    """m that the measured arm may be off the path of its commands; infinite where no scene is given to keep off, or
    where `tracking_error` says how many rad. `dt`: s between control points."""
    if profile.settings.tracking_error is not None or not has_scene(profile):
        return np.inf
    corner = 0.5 * profile.acceleration * dt**2  # rad between the spline and the lines through its control points
    return float(profile.settings.scene_distance - levers(body) @ corner)


def has_scene(profile: Profile) -> bool:
    return any(getattr(profile.settings, name) for name in SCENE)


@njit(cache=True, nogil=True)
def off_path(trail: Array, q: Array, lever: Array) -> float:
    """m that any point is off the path through control points `trail` [K n] rad at joint angles `q` [n], at most.

    The least weighted sum over all segments; each is convex, with its minimum at an end or a corner.
    """
    least = np.inf
    n = len(q)
    for k in range(trail.shape[0] - 1):
        for corner in range(n + 1):
            share = 0.0
            if corner < n:
                way = trail[k + 1, corner] - trail[k, corner]
                if way == 0.0:
                    continue
                share = min(max((q[corner] - trail[k, corner]) / way, 0.0), 1.0)
            off = 0.0
            for i in range(n):
                off += lever[i] * abs(q[i] - trail[k, i] - share * (trail[k + 1, i] - trail[k, i]))
            least = min(least, off)
    return least


@njit(cache=True, nogil=True)
def stands_since(command: Array, q: Array, near: float, at: Array, since: Array, now: float) -> float:
    """Return when the joint that has stood for longest away from its command began to stand, s; `now`: none stands.

    Args:
        command, q: [n] rad, the newest command and the measured joints. near: rad, of a joint that need not move.
        at, since: [n] rad and s, changed in place: where and when each joint was last seen to move or to be near.
    """
    first = now
    for i in range(len(q)):
        if not (abs(command[i] - q[i]) >= near and abs(q[i] - at[i]) < MOVED):
            at[i], since[i] = q[i], now
        first = min(first, since[i])
    return first


class TrackingCheck:
    """Say whether the measured arm follows its commands.

    Attributes:
        trail: [TRAIL n] rad, control points that the arm may be at, the newest command last.
        allowance: m that a point of the arm may be off the path; ∞ without a scene.
    """

    def __init__(self, joints: int) -> None:
        self.trail: Array = np.zeros((TRAIL, joints))

    def use(self, profile: Profile, body: Body, dt: float) -> None:
        """Put the limits of a profile in force; `dt`: s between control points."""
        self.levers, self.allowance = levers(body), allowance(profile, body, dt)
        self.most = profile.max_tracking_error
        self.near = max(NEAR * profile.settings.reference_clip, DROOP)
        self.stall = np.inf if profile.settings.stall is None else profile.settings.stall

    def start(self, q: Array, now: float) -> None:
        """Start at rest at `q` [n] rad, at `now` s."""
        self.trail = np.tile(q, (TRAIL, 1))
        self._at, self._since = q.copy(), np.full(len(q), now)
        off_path(self.trail, q, self.levers)  # compiles, as the next does
        stands_since(q, q, self.near, self._at, self._since, now)

    def note(self, command: Array) -> None:
        """Append the newest control point [1 n] rad."""
        self.trail = np.concatenate([self.trail[1:], command])

    def fault(self, q: Array, now: float) -> str:
        """Return why the arm at `q` [n] rad does not follow at `now` s, "" where it does; NaN does not."""
        near_path = not self.allowance < np.inf or off_path(self.trail, q, self.levers) <= self.allowance
        if not (near_path and max_abs_diff(self.trail[-1], q) <= self.most):
            return "tracking_error"
        stands = now - stands_since(self.trail[-1], q, self.near, self._at, self._since, now)
        return "stalled" if stands > self.stall else ""


def guarded(settings: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
    """Complete `settings` for an arm: with a scene, `tracking_error` follows from the distance unless given.

    In a dry run the arm follows no command, and is not to be where they lead.
    """
    found = dict(settings)
    if dry_run:
        found["stall"] = None
    if any(settings.get(name) for name in SCENE):
        found.setdefault("tracking_error", None)
    if dry_run and "tracking_error" in found:
        found["tracking_error"] = found["tracking_error"] or MAX_TRACKING_ERROR
    return found


def unprotected(profile: Profile, dt: float) -> list[str]:
    """List why the kept distances are void at the permitted tracking error, one sentence each.

    `dt`: s between control points.
    """
    s, body = profile.settings, Body(profile)
    if not has_scene(profile):
        return []
    lever = levers(body)
    if s.tracking_error is None:
        left = allowance(profile, body, dt)
        if s.scene_distance >= LEAST and left >= LEAST / 2:
            return []
        return [
            f"scene_distance: {s.scene_distance} m leaves the measured arm {left:.2g} m beside its command at {dt} s a "
            f"tick, expected {LEAST / 2} m at least, and a scene_distance of {LEAST} m. Give more"
        ]
    most, all_off = s.scene_distance / float(lever.sum()), s.tracking_error * float(lever.sum())
    if s.tracking_error <= most:
        return []
    return [
        f"tracking_error: {s.tracking_error} rad of every joint move the arm by up to {all_off:.2g} m, of one joint by "
        f"{s.tracking_error * float(lever.max()):.2g} m, and scene_distance is {s.scene_distance} m: the measured arm "
        f"would keep off nothing. Give tracking_error: null, which follows from the distance, up to {most:.2g} rad, or "
        f"a scene_distance of {all_off:.2g} m"
    ]


def checked(profile: Profile, dt: float) -> Profile:
    """Check `profile` for an arm, and return it. `dt`: s between control points.

    Raises:
        SafetyError: its tracking error and its distances do not go together; named, with the numbers.
    """
    if found := unprotected(profile, dt):
        raise SafetyError("; ".join(found))
    return profile


def not_claimed(profile: Profile) -> list[str]:
    """List hazards that the limits in force do not cover, one sentence each."""
    if profile.settings.workspace is not None or profile.settings.planes:
        return []
    return [
        "scene: neither `workspace` nor `planes` is set: the limits keep the arm off itself and nothing else, neither "
        "a table nor a wall nor a person. Set them among the safety settings (docs/safety.md)"
    ]

"""Settings of the limits: which fraction of a maker's limits is used, and which space is forbidden."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pydantic
from pydantic_core import to_jsonable_python

from robopolicy.core.errors import closest
from robopolicy.core.untrusted import checked
from robopolicy.real.safety.errors import SafetyError

MAX_TRACKING_ERROR = 0.2  # rad: a joint that is so far from its newest command does not follow it
NEAR = 0.9  # of `reference_clip`: a joint that is nearer to its command than that is not waited for
DROOP = 0.02  # rad, by which a servo may stand off its command

Vector = tuple[float, float, float]

_STRICT = pydantic.ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True)
class Plane:
    """A half-space that no part of the arm may enter: normal · x < offset is forbidden."""

    __pydantic_config__ = _STRICT

    normal: Vector
    offset: float  # m


@dataclass(frozen=True)
class Box:
    """An axis-aligned volume in the base frame, m."""

    __pydantic_config__ = _STRICT

    low: Vector
    high: Vector


@dataclass(frozen=True)
class Settings:
    """Scale the maker's limits, and forbid space. Smaller is tighter, except for distances.

    Args:
        velocity, acceleration, jerk: fraction of the maker's limits.
        joint_speed: rad/s at most, one number for all joints or one for each, beside `velocity`: the smaller counts.
            None: `velocity` alone.
        joint_margin: rad, kept to the ends of the joints.
        tcp_speed: m/s, of the tool; 0.25 is the teach speed of industrial standards.
        workspace: box for the tool, or None.
        planes: half-spaces (a table) and keep_out: boxes that no link but the tool's fingers may come near.
        scene_distance, self_distance: m, between capsules and the scene, and one another.
        condition: of the Jacobian (rad, and m or the profile's `length`); beyond it the arm is near a singularity.
        reference_clip: rad, how far the command may run ahead of the measured joints.
        tracking_error: rad, ε of the claim; beyond it the arm does not follow its commands. None: as far as
            `scene_distance` reaches by the arm's levers (real/safety/tracking.py), and MAX_TRACKING_ERROR.
        stall: s that a joint may stand though its command waits at `reference_clip` from it; then the arm does not
            follow, as after a protective stop. None: for as long as it likes, as one that is to press.
        energy: J that the arm may give away before it must get some back; None: no tank.
        contact_stiffness: N·m/rad, the stiffest contact that the tank reckons with.
    """

    velocity: float = 0.5
    joint_speed: float | tuple[float, ...] | None = None
    acceleration: float = 0.5
    jerk: float = 0.1
    joint_margin: float = 0.1
    tcp_speed: float = 0.25
    workspace: Box | None = None
    planes: tuple[Plane, ...] = ()
    keep_out: tuple[Box, ...] = ()
    scene_distance: float = 0.01
    self_distance: float = 0.005
    condition: float = 30.0
    reference_clip: float = 0.05
    tracking_error: float | None = 0.2
    stall: float | None = 0.5
    energy: float | None = None
    contact_stiffness: float = 1000.0

    def __post_init__(self) -> None:
        for name, (low, high, _) in _RANGES.items():
            value = getattr(self, name)
            number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
            if not (value is None and name in _OPTIONAL) and not (number and low <= value <= high):  # NaN fails too
                hint = ". joint_speed takes one a joint, in rad/s" if name == "velocity" else ""
                raise SafetyError(f"{name}: expected a number from {low:g} to {high:g}, found {value!r}{hint}")
            if value is not None:  # code compiled for floats must not meet an int in the middle of a motion
                object.__setattr__(self, name, float(value))
        if self.stall is not None and self.reference_clip < (least := DROOP / NEAR):  # a servo's droop hides a stall
            raise SafetyError(
                f"reference_clip: expected {least:.4f} rad or more, found {self.reference_clip}. Commands that stay so "
                "near never show that an arm stands. Give more, or stall: null, which gives up that FAULT"
            )
        object.__setattr__(self, "joint_speed", _joint_speed(self.joint_speed))
        for box in (*self.keep_out, *([self.workspace] if self.workspace else [])):
            if not all(lo < hi for lo, hi in zip(box.low, box.high, strict=True)):
                raise SafetyError(f"box: low must be below high in every direction, found {box}")
        for plane in self.planes:
            if not abs(float(np.linalg.norm(plane.normal)) - 1.0) < 1e-6:
                raise SafetyError(f"plane: the normal must have length 1, found {plane.normal}")

    def loosened_by(self, other: Settings) -> list[str]:
        """List the limits that `other` would loosen."""
        ways = ((n, way, _of(getattr(self, n)), _of(getattr(other, n))) for n, (*_, way) in _RANGES.items() if way)
        found = [n for n, way, mine, theirs in ways if way * theirs < way * mine]
        if not _no_faster(other.joint_speed, self.joint_speed):
            found.append("joint_speed")
        # A scene limits the distance of the arm from its path, not the error of a joint: None allows the same error.
        error = MAX_TRACKING_ERROR if other.tracking_error is None else other.tracking_error
        if self.tracking_error is not None and error > self.tracking_error:
            found.append("tracking_error")
        if self.tracking_error is None and other.tracking_error is not None:
            found.append("tracking_error")
        box, inner = self.workspace, other.workspace
        if box is not None and (inner is None or not _inside(inner, box)):
            found.append("workspace")
        found += [n for n in ("planes", "keep_out") if not set(getattr(self, n)) <= set(getattr(other, n))]
        return found


def slowed(settings: Mapping[str, Any], speed: float) -> dict[str, Any]:
    """Return `settings` with their speeds, or the default ones, times `speed`; begin with 0.1 on a real arm."""
    found = settings_of(settings)
    speeds = {"velocity": found.velocity * speed, "tcp_speed": found.tcp_speed * speed}
    if found.joint_speed is not None:
        joints = found.joint_speed
        slower = tuple(v * speed for v in joints) if isinstance(joints, tuple) else joints * speed
        return {**settings, **speeds, "joint_speed": slower}
    return {**settings, **speeds}


def tightened(cell: Mapping[str, Any], given: Mapping[str, Any], speed: float = 1.0) -> dict[str, Any]:
    """Return the settings of a cell under those given for one deployment, `slowed` by `speed`.

    A setting that the cell has may be made tighter, never looser.

    Raises:
        SafetyError: one would be loosened; named.
    """
    found = slowed({**cell, **given}, speed)
    check_cell(cell, settings_of(found))
    return found


def check_cell(cell: Mapping[str, Any], settings: Settings) -> None:
    """Raise SafetyError, which names them, where `settings` are looser than those that the cell has."""
    for name in settings_of(cell).loosened_by(settings):
        if name in cell:
            raise SafetyError(
                f"{name}: {getattr(settings, name)!r} is looser than {cell[name]!r} in `safety` of the wiring, which "
                "holds for every deployment in this cell. Expected as tight a value, or change the wiring"
            )


_RANGES = {  # lowest and highest value; -1: smaller is tighter, 1: larger is, 0: see `loosened_by`
    "velocity": (0.001, 1.0, -1), "acceleration": (0.01, 1.0, -1), "jerk": (0.01, 1.0, -1),
    "joint_margin": (0.0, 1.0, 1), "tcp_speed": (0.001, 3.0, -1), "scene_distance": (0.0, 1.0, 1),
    "self_distance": (0.0, 1.0, 1), "condition": (2.0, 1e6, -1), "reference_clip": (1e-3, 10.0, -1),
    "tracking_error": (1e-3, 10.0, 0), "stall": (0.05, 600.0, -1), "energy": (0.0, 1e6, -1),
    "contact_stiffness": (0.0, 1e7, 1),
}  # fmt: skip


_OPTIONAL = ("tracking_error", "stall", "energy")  # None switches the check off
_SPEEDS = (0.001, 30.0)  # rad/s


def _joint_speed(value: Any) -> float | tuple[float, ...] | None:
    """Check a `joint_speed`; lists and arrays become tuples."""
    if value is None:
        return None
    several = not isinstance(value, (str, int, float, np.number)) and hasattr(value, "__iter__")
    numbers = list(value) if several else [value]
    low, high = _SPEEDS
    for number in numbers:
        real = isinstance(number, (int, float, np.number)) and not isinstance(number, bool)
        if not (real and low <= number <= high):  # NaN fails too
            raise SafetyError(f"joint_speed: expected rad/s from {low:g} to {high:g}, found {number!r}")
    if not numbers:
        raise SafetyError("joint_speed: expected a number, or one a joint, found none")
    return tuple(float(n) for n in numbers) if several else float(value)


def _no_faster(new: float | tuple[float, ...] | None, old: float | tuple[float, ...] | None) -> bool:
    """Whether no joint is faster under `joint_speed` `new` than under `old`."""
    mine, theirs = (np.atleast_1d(np.inf if v is None else v) for v in (old, new))
    if len({len(mine), len(theirs), 1}) > 2:  # of arms of different sizes: nothing to compare
        return False
    return bool((theirs <= mine).all())


def _of(value: float | None) -> float:
    return np.inf if value is None else value


def _inside(inner: Box, outer: Box) -> bool:
    low = all(a >= b for a, b in zip(inner.low, outer.low, strict=True))
    return low and all(a <= b for a, b in zip(inner.high, outer.high, strict=True))


_SHAPES: dict[str, pydantic.TypeAdapter[Any]] = {
    "workspace": pydantic.TypeAdapter(Box | None), "planes": pydantic.TypeAdapter(tuple[Plane, ...]),
    "keep_out": pydantic.TypeAdapter(tuple[Box, ...]),
}  # fmt: skip


def settings_of(given: Mapping[str, Any]) -> Settings:
    """Build settings from YAML or JSON values: a box is {low: [x, y, z], high}, a plane {normal, offset}.

    Raises:
        SafetyError: no such setting, or a value that it cannot have; named, with the expected values.
    """
    known = [f.name for f in fields(Settings)]
    for name in given:
        if name not in known:
            raise SafetyError(f"no such safety setting: {name!r}. {closest(name, known)}")
    shapes = {
        name: checked(kind, to_jsonable_python(given[name], fallback=repr), f"safety.{name}", error=SafetyError)
        for name, kind in _SHAPES.items()
        if name in given
    }
    return Settings(**{**given, **shapes})


def recorded_settings(given: Mapping[str, Any]) -> Settings:
    """Build the settings that a recording names; where it lacks one that is newer, this was not in force."""
    return settings_of({"stall": None, **given})

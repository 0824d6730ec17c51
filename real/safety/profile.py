"""Limit profiles: the limits of a maker (versioned data with provenance) under settings.

A maker's numbers are thresholds at which the arm aborts, not operating points; `Settings` scales them down. Both are
hashed together, and the hash goes with every recording.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robopolicy.core.errors import closest
from robopolicy.core.untrusted import read_json
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.errors import SafetyError
from robopolicy.real.safety.kinematics import KinematicChain, rotation
from robopolicy.real.safety.profile_data import check_data
from robopolicy.real.safety.settings import MAX_TRACKING_ERROR, Settings, Vector, settings_of

FOLDER = Path(__file__).parent / "profiles"
FORMAT = 1


@dataclass(frozen=True)
class Capsule:
    """A proxy of a link's shape."""

    name: str
    link: int
    start: Vector  # m, in the link's frame
    end: Vector
    radius: float
    scene: bool = True  # False: a tool that is meant to touch things


class JointBounds(NamedTuple):
    """Ends [n] rad of the joints, and their highest rates [n] rad/s, rad/s², rad/s³."""

    low: Array
    high: Array
    velocity: Array
    acceleration: Array
    jerk: Array


class EdgeBounds(NamedTuple):
    """Speed near the ends of the joints: v ≤ max(0, −offset + √(2·deceleration·(high − q))), mirrored below."""

    offset: Array  # [n] rad/s
    deceleration: Array  # [n] rad/s²
    low: Array  # [n] rad
    high: Array  # [n] rad


@dataclass(frozen=True, eq=False)
class Profile:
    """The limits of one arm under some settings. Arrays [n] in SI units."""

    data: dict[str, Any]
    settings: Settings

    def __post_init__(self) -> None:
        speed, n = self.settings.joint_speed, len(self.joints)
        if isinstance(speed, tuple) and len(speed) != n:
            raise SafetyError(f"joint_speed: expected one number, or {n}, one a joint, found {len(speed)}")

    @property
    def robot(self) -> str:
        return str(self.data["robot"])

    @property
    def joints(self) -> tuple[str, ...]:
        return tuple(self.data["joints"])

    @cached_property
    def maker(self) -> dict[str, Array]:
        """Abort thresholds as published: low, high, velocity, acceleration, jerk, torque, torque_rate.

        Where the maker's documents disagree, low and high are their intersection.
        """
        ranges = [np.array(r["range"], dtype=np.float64) for r in self.data["position"].values()]
        names = ("velocity", "acceleration", "jerk", "torque", "torque_rate")
        found = {k: np.array(self.data[k], dtype=np.float64) for k in names}
        return {"low": np.max([r[0] for r in ranges], axis=0), "high": np.min([r[1] for r in ranges], axis=0), **found}

    @cached_property
    def low(self) -> Array:
        return self.maker["low"] + self.settings.joint_margin

    @cached_property
    def high(self) -> Array:
        return self.maker["high"] - self.settings.joint_margin

    def check_room(self) -> None:
        """Raise SafetyError where `joint_margin` leaves nothing of a joint's range: the arm could stand nowhere."""
        low, high = self.maker["low"], self.maker["high"]
        if (self.low < self.high).all():
            return
        k = int(np.argmin(high - low))
        raise SafetyError(
            f"joint_margin: {self.settings.joint_margin} rad at both ends leave nothing of {self.joints[k]!r}, which "
            f"goes from {low[k]:g} to {high[k]:g} rad. Expected less than {0.5 * (high[k] - low[k]):.3g} rad"
        )

    @cached_property
    def velocity(self) -> Array:
        found = self.maker["velocity"] * self.settings.velocity
        return found if self.settings.joint_speed is None else np.minimum(found, self.settings.joint_speed)

    @cached_property
    def acceleration(self) -> Array:
        return self.maker["acceleration"] * self.settings.acceleration

    @cached_property
    def jerk(self) -> Array:
        return self.maker["jerk"] * self.settings.jerk

    @property
    def max_tracking_error(self) -> float:
        """rad by which a measured joint may differ from its newest command."""
        given = self.settings.tracking_error
        return MAX_TRACKING_ERROR if given is None else given

    @cached_property
    def longest_stop(self) -> float:
        """s that the slowest joint needs to stop from its highest permitted speed, at most: v/a + 2.5·a/j."""
        return float((self.velocity / self.acceleration + 2.5 * self.acceleration / self.jerk).max())

    @cached_property
    def bounds(self) -> JointBounds:
        return JointBounds(self.low, self.high, self.velocity, self.acceleration, self.jerk)

    @cached_property
    def edge(self) -> EdgeBounds | None:
        """FR3's velocity bound near the ends of its joints."""
        e = self.data.get("position_dependent_velocity")
        if e is None:
            return None
        low, high = np.array(e["range"], dtype=np.float64)
        return EdgeBounds(np.array(e["offset"]), np.array(e["deceleration"]), low, high)

    @cached_property
    def chain(self) -> KinematicChain:
        k = self.data["kinematics"]
        offsets, tcp = (np.array(k[name], dtype=np.float64) for name in ("offsets", "tcp"))
        if "turns" in k:
            return KinematicChain(offsets, np.array(k["turns"], dtype=np.float64), tcp)
        return KinematicChain(offsets, np.zeros(len(offsets)), tcp, np.ascontiguousarray(rotation(k["rpy"])))

    @property
    def length(self) -> float:
        """m that count as much as a radian in the condition of the Jacobian: about the arm's reach."""
        return float(self.data["kinematics"].get("length", 1.0))

    @cached_property
    def capsules(self) -> tuple[Capsule, ...]:
        return tuple(
            Capsule(**{**c, "start": tuple(c["start"]), "end": tuple(c["end"])}) for c in self.data["capsules"]
        )

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Capsules, by index, that are kept apart."""
        index = {c.name: i for i, c in enumerate(self.capsules)}
        return tuple((index[a], index[b]) for a, b in self.data["pairs"])

    @cached_property
    def digest(self) -> str:
        """Names these limits in recordings."""
        settings = asdict(self.settings)
        for later in ("joint_speed", "stall"):  # limits from before these settings keep their names
            if settings[later] is None:
                del settings[later]
        text = json.dumps({"data": self.data, "settings": settings}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def changed(self, **settings: Any) -> Profile:
        """Return the same arm under other settings."""
        return replace(self, settings=replace(self.settings, **settings))


def profile_names() -> list[str]:
    return sorted(p.stem for p in FOLDER.glob("*.json"))


def load_profile(robot: str, **settings: Any) -> Profile:
    """Load the profile of a robot by name.

    Raises:
        SafetyError: no such robot or setting, a value out of range, a file of another format.
    """
    if robot not in profile_names():
        raise SafetyError(f"robot={robot!r}: there are no limits for it. {closest(robot, profile_names())}")
    return read_profile(FOLDER / f"{robot}.json", **settings)


def read_profile(path: Path, **settings: Any) -> Profile:
    """Read a profile from a JSON file.

    Raises:
        SafetyError: no such file or setting, a value out of range, a file of another format.
    """
    data = read_json(path, error=SafetyError)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else data
        raise SafetyError(f"{path.name}: format: expected {FORMAT}, which this robopolicy reads, found {found!r}")
    check_data(data, path.name)
    return Profile(data, settings_of(settings))

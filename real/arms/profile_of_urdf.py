"""A limit profile of a URDF and of the maker's sheet, with the source of every number."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from robopolicy.real.arms.shapes import add_home, add_pairs, capsules_of
from robopolicy.real.arms.urdf import UrdfError
from robopolicy.real.arms.urdf_chain import ArmChain
from robopolicy.real.safety.kinematics import KinematicChain, reach
from robopolicy.real.safety.profile import FORMAT
from robopolicy.real.safety.profile_data import check_data, common

CAUTIOUS = {"acceleration": 5.0, "jerk": 1000.0, "torque": 10.0, "torque_rate": 100.0}  # rad, N·m per s², s³, –, s
FASTEST = 2 * math.pi  # rad/s: more is a placeholder in most URDFs
TURNS = 4 * math.pi  # rad: no joint's end lies further from its zero; numbers beyond are degrees
REACH = 1.09  # m, of a Panda from its first axis to the tool, for which a metre counts as a radian

PerJoint = float | tuple[float, ...] | None


@dataclass(frozen=True)
class Sheet:
    """Numbers of the maker's sheet, one for all joints or one a joint, in rad and N·m per s, s², s³.

    Args:
        source: name of the sheet; needed where a number is given.
        low, high: rad, ends of the joints, beside those of the URDF.
    """

    source: str | None = None
    low: PerJoint = None
    high: PerJoint = None
    velocity: PerJoint = None
    acceleration: PerJoint = None
    jerk: PerJoint = None
    torque: PerJoint = None
    torque_rate: PerJoint = None

    def of(self, key: str, n: int) -> list[float] | None:
        """Return [n] numbers of a key; None where the sheet has none.

        Raises:
            UrdfError: another count, or no source.
        """
        value = getattr(self, key)
        if value is None:
            return None
        if not self.source:
            raise UrdfError(f"{key}: expected the sheet that it is from: give source='<maker, title, revision>'")
        found = list(value) if isinstance(value, tuple) else [value] * n
        if len(found) != n:
            raise UrdfError(f"{key}: expected one number, or {n}, one a joint, found {len(found)}")
        return [float(v) for v in found]

    @property
    def keys(self) -> list[str]:
        return [f.name for f in fields(self) if f.name != "source" and getattr(self, f.name) is not None]


def profile_of(
    chain: ArmChain, text: str, *, name: str, sheet: Sheet, radius: float | None, home: tuple[float, ...] | None
) -> dict[str, Any]:
    """Build the data of a limit profile.

    Args:
        text: the URDF, whose digest goes along.
        radius: m, of the capsules around the links; None: by the arm's reach.
        home: rad; None: found.

    Raises:
        UrdfError, SafetyError: a number is missing or cannot be; named.
    """
    n, digest = len(chain.joints), hashlib.sha256(text.encode()).hexdigest()[:16]
    urdf = f"URDF {name!r}, sha256 {digest}"
    far = float(reach(_chain(chain), [n], chain.tcp[None])[0, 0])
    radius = round(max(0.055 * far, 0.015), 3) if radius is None else radius
    data: dict[str, Any] = {
        "format": FORMAT, "robot": name, "version": 1, "title": f"{name}, from {chain.base} to {chain.tip}",
        "sources": {
            "joints, kinematics": f"{urdf}: from {chain.base!r} to {chain.tip!r}, each frame turned so that z is the "
            "joint's axis",
        },
        "joints": [j.name for j in chain.joints],
        "kinematics": chain.kinematics | {"length": min(max(round(far / REACH, 2), 0.05), 10.0)},
        "capsules": capsules_of(chain.offsets, chain.tcp, radius),
    }  # fmt: skip
    _ranges(data, chain, sheet, urdf)
    _rates(data, chain, sheet, urdf)
    sources = data["sources"]
    sources["kinematics.length"] = f"chosen: as its reach of {far:.2f} m is to that of a Panda, {REACH} m"
    sources["capsules, pairs"] = (
        f"chosen: lines between the joints, with a radius of {radius} m; nothing of the links' shapes is known. Hold "
        "them against the arm's drawing before a scene is relied on"
    )
    sources["capsules.scene"] = (
        f"chosen: planes and boxes hold for all but {[c['name'] for c in data['capsules'] if 'scene' in c]}, which may "
        "touch what is there"
    )
    add_pairs(data)
    if home is None:
        add_home(data)
        sources["home"] = "chosen: the best conditioned of 1000 poses at random"
    else:
        _check_home(home, data)
        data["home"], sources["home"] = list(home), "given"
    check_data(data, name)
    return data


def _chain(chain: ArmChain) -> KinematicChain:
    return KinematicChain(chain.offsets, np.zeros(len(chain.offsets)), chain.tcp, chain.rotations)


def _ranges(data: dict[str, Any], chain: ArmChain, sheet: Sheet, urdf: str) -> None:
    """Put ranges into `data`, each with its source."""
    joints, n, sources = chain.joints, len(chain.joints), data["sources"]
    data["position"] = {"urdf": {"range": [[j.lower for j in joints], [j.upper for j in joints]]}}
    sources["position.urdf"] = f"{urdf}: <limit>"
    if any(math.isfinite(end) for j in joints for end in j.soft):
        soft = [[j.soft[k] if math.isfinite(j.soft[k]) else (j.lower, j.upper)[k] for j in joints] for k in (0, 1)]
        data["position"]["urdf, soft"] = {"range": soft}
        hard = [j.name for j in joints if not all(map(math.isfinite, j.soft))]
        sources["position.urdf, soft"] = f"{urdf}: <safety_controller>" + f"; not both ends of {hard}" * bool(hard)
    low, high = sheet.of("low", n), sheet.of("high", n)
    if (low is None) != (high is None):
        raise UrdfError("low, high: expected both or neither")
    if low is not None and high is not None:
        if max(map(abs, low + high)) > TURNS:
            raise UrdfError(f"low, high: found {low} and {high}, expected rad. Degrees times π/180 are rad")
        data["position"]["sheet"] = {"range": [low, high]}
        sources["position.sheet"] = f"maker's sheet: {sheet.source}"
    for joint, (a, b) in zip(joints, common([r["range"] for r in data["position"].values()]), strict=True):
        if not a < b:
            raise UrdfError(f"position: the ranges of {joint.name} by {list(data['position'])} have nothing in common")


def _rates(data: dict[str, Any], chain: ArmChain, sheet: Sheet, urdf: str) -> None:
    """Put velocities and what is above them into `data`, each with its source."""
    joints, n, sources = chain.joints, len(chain.joints), data["sources"]
    for key, theirs in (("velocity", "velocity"), ("torque", "effort")):
        found = [getattr(j, theirs) for j in joints]
        if all(v > 0 for v in found):  # NaN is not
            data[key], sources[key] = found, f"{urdf}: <limit {theirs}>"
    for key, value in CAUTIOUS.items():
        if key not in data:
            data[key], sources[key] = [value] * n, f"conservative default: {value:g}; neither URDF nor sheet says"
    for key in ("velocity", *CAUTIOUS):
        if (given := sheet.of(key, n)) is not None:
            if key == "velocity":
                _check_velocity(given, chain)
            data[key], sources[key] = given, f"maker's sheet: {sheet.source}"
    if "velocity" not in data:
        raise UrdfError("velocity: the URDF's <limit> has none for some joint. Give velocity=[…] rad/s and source=")
    if sheet.velocity is None and max(data["velocity"]) > FASTEST:
        raise UrdfError(
            f"velocity: the URDF says {max(data['velocity']):g} rad/s, which is a placeholder in most of them. Give "
            "the maker's by velocity=[…] rad/s and source="
        )


def _check_velocity(given: list[float], chain: ArmChain) -> None:
    """Refuse a sheet's velocities [n] above those of the URDF: the node would refuse the arm, whose URDF it reads."""
    for joint, ours in zip(chain.joints, given, strict=True):
        if 0 < joint.velocity < ours:
            raise UrdfError(
                f"velocity: found {ours:g} of {joint.name}, for which the URDF has {joint.velocity:g} rad/s. "
                "Expected at most the URDF's, in rad/s (degrees times π/180). Correct the URDF where it is wrong"
            )


def _check_home(home: tuple[float, ...], data: dict[str, Any]) -> None:
    """Refuse a home outside one of the ranges of position."""
    if len(home) != len(data["joints"]):
        raise UrdfError(f"home: expected {len(data['joints'])} numbers, one a joint, found {len(home)}")
    for source, ends in data["position"].items():
        for joint, at, low, high in zip(data["joints"], home, *ends["range"], strict=True):
            if not low <= at <= high:
                raise UrdfError(
                    f"home: found {at:g} of {joint}, which goes from {low:g} to {high:g} rad by {source!r}. "
                    "Expected rad: degrees times π/180"
                )

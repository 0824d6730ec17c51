"""A gripper in a URDF: two fingers beyond the arm that slide apart, and how far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from robopolicy.real.arms.urdf import Urdf, UrdfJoint
from robopolicy.real.arms.urdf_chain import ArmChain
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.kinematics import rotation

SAME = 1e-4  # m between what two fingers do together and what each does alone
NEAR = 2e-3  # m from 0 at which a finger counts as closed


@dataclass(frozen=True)
class Fingers:
    """A gripper whose opening is Σ factor · position of its joints, 0 where they are at 0."""

    factors: Mapping[str, float] = field(default_factory=dict)  # m of opening per m, by joint; empty: no gripper
    high: float = 0.0  # m, fully open
    why_none: str = ""  # where something slides, but is no such gripper


def fingers_of(urdf: Urdf, chain: ArmChain) -> Fingers:
    """Find the two fingers that hang on the arm's last link.

    They count as a gripper where their frames part in a line from position 0 on, and the factors say by how much: a
    gripper that closes with + would do the opposite of what a policy asks for.
    """
    ways = _ways(urdf, chain)
    slides = [way[-1] for way in ways.values() if way[-1].type == "prismatic"]
    if not slides:
        return Fingers()
    names = [j.name for j in slides]
    if len(slides) != 2:
        return Fingers(why_none=f"expected two fingers that slide, found {names}")
    if moved := [j.name for s in slides for j in ways[s.child][:-1] if j.type != "fixed"]:
        return Fingers(why_none=f"{names} ride on {moved}, which move too")
    drivers = [urdf.joints.get(j.mimic.joint, j) if j.mimic else j for j in slides]
    owners = list({d.name: d for d in drivers}.values())
    if turned := [d.name for d in owners if d.type != "prismatic"]:
        return Fingers(why_none=f"{names} follow {turned}, which do not slide")
    if shifted := [j.name for j in slides if j.mimic and j.mimic.offset]:
        return Fingers(why_none=f"{shifted} follow with an offset")
    if unknown := [d.name for d in owners if not abs(d.lower) <= NEAR or not d.upper > 0]:
        return Fingers(why_none=f"{unknown} do not go from 0 to some positive end")
    closed = _apart(ways, slides, [0.0] * 2)
    parts = {d.name: _apart(ways, slides, [d.upper * (d is own) for own in drivers]) - closed for d in owners}
    factors = {d.name: float(np.linalg.norm(parts[d.name])) / d.upper for d in owners}
    high, grown = sum(factors[d.name] * d.upper for d in owners), sum(parts.values())
    if high < SAME or abs(float(np.linalg.norm(grown)) - high) > SAME or float(closed @ grown) < -SAME * high:
        return Fingers(why_none=f"{names} do not part as they go from 0 to their ends, or not in a line")
    return Fingers({name: round(factor, 6) for name, factor in factors.items()}, round(high, 6))


def _ways(urdf: Urdf, chain: ArmChain) -> dict[str, list[UrdfJoint]]:
    """Return the joints from the arm's last link to each link that hangs on it."""
    inside = {j.name for j in chain.joints}
    ways: dict[str, list[UrdfJoint]] = {chain.joints[-1].child: []}
    grew = True
    while grew:
        new = {j.child: [*ways[j.parent], j] for j in urdf.joints.values()
               if j.parent in ways and j.child not in ways and j.name not in inside}  # fmt: skip
        ways, grew = ways | new, bool(new)
    return {link: way for link, way in ways.items() if way}


def _apart(ways: Mapping[str, list[UrdfJoint]], slides: list[UrdfJoint], at: list[float]) -> Array:
    """Return [3] m from the first finger's frame to the second's, with their drivers `at` m."""
    a, b = (
        _place(ways[j.child], (j.mimic.multiplier if j.mimic else 1.0) * q) for j, q in zip(slides, at, strict=True)
    )
    return b - a


def _place(way: list[UrdfJoint], slid: float) -> Array:
    """Return [3] m where the frame of the last joint of `way` is, which slid by `slid` m along its axis."""
    at, turned = np.zeros(3), np.eye(3)
    for joint in way:
        at, turned = at + turned @ np.array(joint.xyz), turned @ rotation(joint.rpy)
    axis = np.array(way[-1].axis)
    return at + turned @ axis * (slid / max(math.hypot(*axis), 1e-6))

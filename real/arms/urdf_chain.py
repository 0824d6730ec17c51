"""The arm in a URDF: a serial chain of revolute joints from the base to the tip, and the gripper beyond it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from robopolicy.core.errors import closest
from robopolicy.real.arms.urdf import FAR, Urdf, UrdfError, UrdfJoint
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.kinematics import rotation

FEWEST, MOST = 5, 7  # joints of an arm
TURNS = 4 * math.pi + 1e-3  # rad: a range that goes further looks like degrees
ENDLESS = (
    ". A continuous joint has no range: in a copy of the file make it revolute, with lower and upper within ±3.14 rad. "
    "The driver's own description may stay as it is"
)
EXACT = 1e-9  # of a rotation's elements: such a difference is rounding of the file


@dataclass(frozen=True)
class ArmChain:
    """Revolute joints from the base to the tool, and the frames between them."""

    base: str
    tip: str
    joints: tuple[UrdfJoint, ...]
    offsets: Array  # [n 3] m
    rotations: Array  # [n 3 3] before each joint, whose axis is then z
    tcp: Array  # [3] m, in the last link's frame

    @property
    def kinematics(self) -> dict[str, Any]:
        """Values of `kinematics` in a limit profile: quarter turns where that is all, else `rpy`."""
        quarters = [_quarter_turns(r) for r in self.rotations]
        found: dict[str, Any] = {"offsets": _clean(self.offsets)}
        found |= {"rpy": [_rpy(r) for r in self.rotations]} if None in quarters else {"turns": quarters}
        return found | {"tcp": _clean(self.tcp)}


def arm_of(urdf: Urdf, *, base: str | None = None, tip: str | None = None, ranges: bool = True) -> ArmChain:
    """Find the arm from link `base` to link `tip`.

    Args:
        base: None: the root. tip: None: where the tree has one end.
        ranges: whether its joints must say how far they go; else they may be continuous, too.

    Raises:
        UrdfError: several ends or roots and none named, a joint on the way that is neither fixed nor revolute, or moves
            with another one; a range that is missing, inverted, or looks like degrees; lengths that are no metres; an
            axis of no length; fewer than 5 or more than 7 joints.
    """
    base = _root(urdf) if base is None else _link(urdf, base, "base")
    tip = _end(urdf, base) if tip is None else _link(urdf, tip, "tip")
    way = list(_way(urdf, base, tip))
    joints = tuple(j for j in way if j.type != "fixed")
    for joint in joints:
        _check_kind(joint, endless=not ranges)
        if ranges:
            _check_range(joint)
    if not FEWEST <= len(joints) <= MOST:
        raise UrdfError(
            f"urdf: from {base!r} to {tip!r} there are {len(joints)} revolute joints, "
            f"{[j.name for j in joints]}; expected {FEWEST} to {MOST}. Name other links by base= and tip="
        )
    offsets, rotations = [], []
    position, turned = np.zeros(3), np.eye(3)  # of the frame so far, from the last joint's, z along its axis
    for joint in way:
        if not max(map(abs, joint.xyz)) < FAR:
            raise UrdfError(
                f"urdf: joint {joint.name!r}: origin xyz is {joint.xyz}, more than {FAR:g} m from the last one. A URDF "
                "is in metres: are these millimetres?"
            )
        position = position + turned @ np.array(joint.xyz)
        turned = turned @ rotation(joint.rpy)
        if joint.type == "fixed":
            continue
        along = _to_axis(joint)
        offsets.append(position)
        rotations.append(turned @ along)
        position, turned = np.zeros(3), along.T
    return ArmChain(base, tip, joints, np.array(offsets), np.array(rotations), position)


def _root(urdf: Urdf) -> str:
    children = {j.child for j in urdf.joints.values()}
    roots = sorted({j.parent for j in urdf.joints.values()} - children)
    if len(roots) != 1:
        raise UrdfError(f"urdf: expected one root link, found {roots[:8]}. Name the arm's by base=")
    return roots[0]


def _link(urdf: Urdf, name: str, key: str) -> str:
    links = sorted({link for j in urdf.joints.values() for link in (j.parent, j.child)})
    if name not in links:
        raise UrdfError(f"{key}={name!r}: the URDF has no such link. {closest(name, links)}")
    return name


def _end(urdf: Urdf, base: str) -> str:
    """Return the one link below `base` on which nothing hangs."""
    parents = {j.parent for j in urdf.joints.values()}
    ends = sorted(j.child for j in urdf.joints.values() if j.child not in parents and _below(urdf, base, j.child))
    if len(ends) != 1:
        raise UrdfError(f"urdf: expected one end of the arm, found {ends[:12]}. Name the tool's frame by tip=")
    return ends[0]


def _below(urdf: Urdf, base: str, link: str) -> bool:
    while link != base:
        if (joint := urdf.above(link)) is None:
            return False
        link = joint.parent
    return True


def _way(urdf: Urdf, base: str, tip: str) -> Iterator[UrdfJoint]:
    """Yield the joints from `base` to `tip`."""
    found, link = list[UrdfJoint](), tip
    while link != base:
        if (joint := urdf.above(link)) is None:
            raise UrdfError(f"tip={tip!r} does not hang on base={base!r}. Name two links of one arm")
        found.append(joint)
        link = joint.parent
    yield from reversed(found)


def _check_kind(joint: UrdfJoint, *, endless: bool) -> None:
    """Refuse a moving joint of the chain that is not a revolute one of its own; `endless`: or a continuous one."""
    where = f"urdf: joint {joint.name!r}"
    if joint.type != "revolute" and not (endless and joint.type == "continuous"):
        raise UrdfError(
            f"{where}: expected a revolute joint, found {joint.type!r}. Is it of a gripper or a carriage? End the arm "
            "before it by tip=, or begin it after it by base=" + ENDLESS * (joint.type == "continuous")
        )
    if joint.mimic is not None:
        raise UrdfError(
            f"{where}: moves with {joint.mimic.joint!r} (<mimic>). Expected a joint of its own: choose tip="
        )


def _check_range(joint: UrdfJoint) -> None:
    where = f"urdf: joint {joint.name!r}"
    if math.isnan(joint.lower) or math.isnan(joint.upper):
        raise UrdfError(f"{where}: expected <limit> with lower and upper [rad], found none")
    if not joint.lower < joint.upper:
        raise UrdfError(f"{where}: expected lower below upper, found {joint.lower:g} and {joint.upper:g} rad")
    if max(abs(joint.lower), abs(joint.upper)) > TURNS:
        raise UrdfError(
            f"{where}: its range is {joint.lower:g} to {joint.upper:g}. A URDF is in radians: are these degrees?"
        )


def _to_axis(joint: UrdfJoint) -> Array:
    """[3 3] that turns z to the joint's axis, by the least angle."""
    length = float(np.linalg.norm(joint.axis))
    if not 1e-6 < length < 1e6:
        raise UrdfError(f"urdf: joint {joint.name!r}: expected an axis of length 1, found {joint.axis}")
    x, y, z = np.array(joint.axis) / length
    if z < -1 + 1e-12:
        return np.diag([1.0, -1.0, -1.0])
    k = 1 / (1 + z)  # Rodrigues' formula about z × axis
    return np.array([[1 - k * x * x, -k * x * y, x], [-k * x * y, 1 - k * y * y, y], [-x, -y, z]])


def _quarter_turns(r: Array) -> int | None:
    """Return −1, 0 or 1 where `r` is so many quarter turns about x, else None."""
    for count in (0, 1, -1):
        if np.abs(r - rotation((count * math.pi / 2, 0.0, 0.0))).max() < EXACT:
            return count
    return None


def _rpy(r: Array) -> list[float]:
    """Return fixed-axis roll, pitch and yaw [rad] of `r` [3 3]; exact at pitch ±π/2 too, where yaw is chosen as 0."""
    flat = math.hypot(r[0, 0], r[1, 0])
    yaw = math.atan2(r[1, 0], r[0, 0]) if flat > EXACT else 0.0
    s, c = math.sin(yaw), math.cos(yaw)
    roll = math.atan2(s * r[0, 2] - c * r[1, 2], c * r[1, 1] - s * r[0, 1])
    return _clean(np.array([roll, math.atan2(-r[2, 0], flat), yaw]))


def _clean(x: Array) -> Any:
    """Return lists of `x` without −0 and without the rounding of products of exact numbers."""
    return (np.where(np.abs(x) < 1e-15, 0.0, x)).tolist()

"""The arm's own description against the limits: a profile of another arm must not be used.

Read from `robot_description`, which every ROS driver publishes, or from a file.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence

from robopolicy.core.errors import closest
from robopolicy.real.safety.errors import SafetyError
from robopolicy.real.safety.profile import Profile

LARGEST = 2**24  # characters: meshes are not in it
TOLERANCE = 1e-4  # rad, rad/s: descriptions are rounded


def check_urdf(profile: Profile, text: str, names: Sequence[str] | None = None) -> None:
    """Refuse limits that a URDF does not bear out.

    The profile's joints must be there, turn, follow one another, and permit all that the limits permit.

    Args:
        names: the URDF's names of the joints, where they differ from the profile's.

    Raises:
        SafetyError: names every joint that does not fit, and how.
    """
    if len(text) > LARGEST or "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise SafetyError(f"urdf: expected at most {LARGEST} characters of XML without DOCTYPE and ENTITY")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError, RecursionError, MemoryError) as error:  # ValueError: lone surrogates
        raise SafetyError(f"urdf: not readable as XML ({str(error)!a})") from error
    joints = {str(j.get("name")): j for j in root.iter("joint") if j.find("parent") is not None}
    parent_of = {_link(j, "child"): name for name, j in joints.items()}
    problems, before = [], ""
    for i, name in enumerate(names or profile.joints):
        if (joint := joints.get(name)) is None:
            problems.append(f"{name}: is not in it. {closest(name, list(joints))}")
            continue
        if joint.get("type") != "revolute":
            problems.append(f"{name}: expected a revolute joint, found {joint.get('type')!r}")
        if before and before not in _ancestors(name, joints, parent_of):
            problems.append(f"{name}: does not come after {before}; the limits are of a chain in this order")
        before = name
        problems += _limits(name, joint, profile, i)
    if problems:
        raise SafetyError(
            f"urdf of {root.get('name')!r} and limits of {profile.robot!r}:\n  - " + "\n  - ".join(problems)
        )


def _limits(name: str, joint: ElementTree.Element, profile: Profile, i: int) -> list[str]:
    limit = joint.find("limit")
    if limit is None:
        return [f"{name}: has no <limit>"]
    found = []
    for key, ours, sign in (
        ("lower", profile.low[i], -1.0), ("upper", profile.high[i], 1.0), ("velocity", profile.velocity[i], 1.0),
    ):  # fmt: skip
        try:
            theirs = float(limit.get(key, "0"))
        except ValueError:
            theirs = math.nan
        if not sign * ours <= sign * theirs + TOLERANCE:
            unit = "rad/s" if key == "velocity" else "rad"
            found.append(f"{name}: {key} is {theirs:g} {unit}, the limits go to {ours:g}; tighten the safety settings")
    return found


def _link(joint: ElementTree.Element, end: str) -> str:
    element = joint.find(end)
    return "" if element is None else str(element.get("link"))


def _ancestors(name: str, joints: dict[str, ElementTree.Element], parent_of: dict[str, str]) -> list[str]:
    """Joints from `name` to the root; a description that goes in circles ends where it began."""
    found: list[str] = []
    while (above := parent_of.get(_link(joints[name], "parent"))) is not None and above not in found:
        found.append(above)
        name = above
    return found

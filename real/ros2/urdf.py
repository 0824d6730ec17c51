"""The arm's own description against the limits: a profile of another arm must not be used.

Read from `robot_description`, which every ROS driver publishes, or from a file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from robopolicy.core.errors import closest
from robopolicy.real.arms.geometry import differences
from robopolicy.real.arms.urdf import Urdf, UrdfError, UrdfJoint, read_urdf
from robopolicy.real.safety.errors import SafetyError
from robopolicy.real.safety.profile import Profile

TOLERANCE = 1e-4  # rad, rad/s: descriptions are rounded


def contradictions(profile: Profile, text: str, names: Sequence[str]) -> list[str]:
    """List why a URDF is not of the arm that the limits are of: its limits, and how its axes lie and turn.

    Its base and its tool are not compared.

    Args:
        names: the URDF's names of the joints, in the order of the limits.
    """
    try:
        check_urdf(profile, text, names)
        return differences(profile, text, names)
    except (SafetyError, UrdfError) as error:
        return [str(error)]


def check_urdf(profile: Profile, text: str, names: Sequence[str] | None = None) -> None:
    """Refuse limits that a URDF does not bear out.

    The profile's joints must be there, turn, follow one another, and permit all that the limits permit.

    Args:
        names: the URDF's names of the joints, where they differ from the profile's.

    Raises:
        SafetyError: names every joint that does not fit, and how.
    """
    robot = read_urdf(text)
    problems, before = [], ""
    for i, name in enumerate(names or profile.joints):
        if (joint := robot.joints.get(name)) is None:
            problems.append(f"{name}: is not in it. {closest(name, list(robot.joints))}")
            continue
        if joint.type not in ("revolute", "continuous"):
            problems.append(f"{name}: expected a revolute joint, found {joint.type!r}")
        if before and before not in _ancestors(joint, robot):
            problems.append(f"{name}: does not come after {before}; the limits are of a chain in this order")
        before = name
        problems += _limits(joint, profile, i)
    if problems:
        raise SafetyError(f"urdf of {robot.name!r} and limits of {profile.robot!r}:\n  - " + "\n  - ".join(problems))


def _limits(joint: UrdfJoint, profile: Profile, i: int) -> list[str]:
    """Compare one joint's ends and velocity; a velocity of 0, or none, is none that the file knows."""
    found = []
    lower, upper = (-math.pi, math.pi) if joint.type == "continuous" else (joint.lower, joint.upper)  # told modulo 2π
    fastest = joint.velocity if joint.velocity > 0 else math.inf
    for key, ours, theirs, sign, unit in (
        ("lower", profile.low[i], lower, -1.0, "rad"), ("upper", profile.high[i], upper, 1.0, "rad"),
        ("velocity", profile.velocity[i], fastest, 1.0, "rad/s"),
    ):  # fmt: skip
        if not sign * ours <= sign * theirs + TOLERANCE:  # NaN: it has none
            found.append(
                f"{joint.name}: {key} is {theirs:g} {unit}, the limits go to {ours:g}; tighten the safety settings"
            )
    return found


def _ancestors(joint: UrdfJoint, robot: Urdf) -> list[str]:
    """Joints from `joint` to the root."""
    found: list[str] = []
    above = robot.above(joint.parent)
    while above is not None:
        found.append(above.name)
        above = robot.above(above.parent)
    return found

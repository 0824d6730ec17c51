"""The simulator's kinematics of a real arm, by its limit profile."""

from __future__ import annotations

import numpy as np

from robopolicy.core.errors import SpecError
from robopolicy.real.safety.profile import Profile
from robopolicy.sim.kinematics import SerialArm

_FIX = (
    "Give the wiring of the task's arm, choose the task's arm by task.arm, or give task=null for a policy of the "
    "robot's own data"
)
CLOSE = 1e-3  # m: frames that differ by less are those of one arm


def kinematics_of(profile: Profile) -> SerialArm:
    """Return the arm of a profile. The tool's axes are those of its last link: a profile has the tool's point alone."""
    chain, maker = profile.chain, profile.maker
    return SerialArm(
        chain.quarter_turns, chain.offsets, chain.tcp, np.eye(3), np.array(profile.data["home"], dtype=np.float64),
        maker["low"], maker["high"], maker["velocity"], chain.rotations,
    )  # fmt: skip


def check_arm(arm: SerialArm, profile: Profile) -> None:
    """Raise SpecError where actions that `arm` decodes would be for another arm than that of `profile`."""
    other = kinematics_of(profile)
    if arm.dof != other.dof:
        raise SpecError(f"task: its arm has {arm.dof} joints, the limits {profile.robot!r} have {other.dof}. {_FIX}")
    for part, mine, theirs in (
        ("offsets", arm.offsets, other.offsets), ("turns", arm.quarter_turns, other.quarter_turns),
        ("rotations", arm.rotations, other.rotations), ("tcp", arm.tool, other.tool),
    ):  # fmt: skip
        if mine.shape != theirs.shape or not (np.abs(mine - theirs) < CLOSE).all():
            raise SpecError(
                f"task: its arm is not that of the limits {profile.robot!r}: kinematics.{part} differ, so its actions "
                f"would lead elsewhere. {_FIX}"
            )

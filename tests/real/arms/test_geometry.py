"""An arm is known by its axes, whatever its frames: the simulator's own UR5e and Panda, and arms that differ."""

from __future__ import annotations

import math

import numpy as np
import pytest

from robopolicy.real.arms.geometry import axis_distances, differences
from robopolicy.real.safety import load_profile, profile_names
from robopolicy.real.safety.kinematics import rotation
from tests.real.arms.robots import frames, joint, robot

# Universal Robots' description writes the same arm as its DH table in other frames (ur5e default_kinematics.yaml).
UR5E = (
    ((0, 0, 0.1625), (0, 0, 0)), ((0, 0, 0), (math.pi / 2, 0, 0)), ((-0.425, 0, 0), (0, 0, 0)),
    ((-0.3922, 0, 0.1333), (0, 0, 0)), ((0, -0.0997, 0), (math.pi / 2, 0, 0)),
    ((0, 0.0996, 0), (math.pi / 2, math.pi, math.pi)),
)  # fmt: skip


def ur5e(**elbow) -> str:
    """The description; `elbow`: other values of the elbow's frame."""
    limit = 'lower="-6.2" upper="6.2" velocity="3.2"'
    frames = [dict(zip(("xyz", "rpy"), frame, strict=True)) for frame in UR5E]
    frames[2] |= elbow
    names = load_profile("ur5e").joints
    return robot(*(joint(n, f"l{i}", f"l{i + 1}", limit=limit, **frames[i]) for i, n in enumerate(names)))


def test_the_makers_frames_are_the_same_arm():
    profile = load_profile("ur5e")
    assert differences(profile, ur5e(), profile.joints) == []


@pytest.mark.parametrize("name", profile_names())
def test_every_preset_is_its_own_arm(name):
    profile = load_profile(name)
    joints = [
        joint(n, f"l{i}", f"l{i + 1}", **frame)
        for i, (n, frame) in enumerate(zip(profile.joints, frames(profile), strict=True))
    ]
    assert differences(profile, robot(*joints), profile.joints) == []


@pytest.mark.parametrize("change", [{"xyz": (-0.5, 0, 0)}, {"rpy": (0.1, 0, 0)}])
def test_another_length_or_angle_is_named(change):
    profile = load_profile("ur5e")
    found = differences(profile, ur5e(**change), profile.joints)
    assert "shoulder_lift_joint and elbow_joint" in found[0]


@pytest.mark.parametrize(
    ("joint_number", "change", "first"),
    [
        (2, {"axis": (0, 0, -1)}, "elbow_joint"),  # it turns the other way
        (2, {"rpy": (0, 0, math.pi / 2)}, "wrist_1_joint"),  # another zero of the elbow moves what comes after it
        (2, {"xyz": (0.425, 0, 0)}, "elbow_joint"),  # the upper arm is mirrored
        (3, {"xyz": (-0.3922, 0, -0.1333)}, "wrist_2_joint"),  # the wrist stands on the other side
        (5, {"axis": (0, 0, -1)}, "wrist_3_joint"),
    ],
)
def test_an_arm_whose_joints_turn_or_stand_otherwise_is_named(joint_number, change, first):
    """Neighbouring axes lie as those of the limits, so that no distance tells."""
    profile = load_profile("ur5e")
    limit = 'lower="-6.2" upper="6.2" velocity="3.2"'
    frames = [dict(zip(("xyz", "rpy"), frame, strict=True)) for frame in UR5E]
    frames[joint_number] |= change
    text = robot(*(joint(n, f"l{i}", f"l{i + 1}", limit=limit, **frames[i]) for i, n in enumerate(profile.joints)))
    (found,) = differences(profile, text, profile.joints)
    assert found.startswith(f"{first}: its axis lies elsewhere"), found


def test_joint_angles_and_frames_change_nothing():
    """Each frame turned about, and moved along, its own axis: the same axes."""
    rng = np.random.default_rng(0)
    offsets, rotations = rng.uniform(-0.3, 0.3, (6, 3)), rotation(rng.uniform(-3, 3, (6, 3)))
    plain = axis_distances(offsets, rotations)
    turns, shifts = rotation([(0, 0, a) for a in rng.uniform(-3, 3, 6)]), rng.uniform(-0.2, 0.2, 6)
    moved_o, moved_r = [], []
    back, before = np.eye(3), np.zeros(3)
    for o, r, turn, shift in zip(offsets, rotations, turns, shifts, strict=True):
        moved_o.append(back @ (o + r @ (0, 0, shift) - before))
        moved_r.append(back @ r @ turn)
        back, before = turn.T, np.array((0, 0, shift))
    np.testing.assert_allclose(axis_distances(np.array(moved_o), np.array(moved_r)), plain, atol=1e-9)
    assert np.isnan(plain[0, 2]) and np.isfinite(plain[1:]).all()

"""Trajectories as bytes, held against rclpy's own."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("rclpy")

from rclpy.serialization import deserialize_message, serialize_message
from trajectory_msgs.msg import JointTrajectory

from robopolicy.real.ros2 import messages
from robopolicy.real.ros2.cdr import TrajectoryBytes
from robopolicy.real.safety import SafetyError

DT_NS = 4_000_000
START = 1_700_000_000 * messages.S + 7 * DT_NS
ARM = tuple(f"panda_joint{i}" for i in range(1, 8))


def points(count, joints):
    return np.random.default_rng(count).normal(size=(count, len(joints)))


@pytest.mark.parametrize("count", [0, 1, 2, 79, 300])
@pytest.mark.parametrize("joints", [ARM, ("a",), ("ab", "cde"), ("abcd", "x", "yz"), ARM[:6]])
def test_rclpy_and_we_read_each_other(joints, count):
    """Bit for bit, whatever padding the names' lengths lead to, and beyond a second."""
    q, both = points(count, joints), TrajectoryBytes(joints, DT_NS)
    message = messages.trajectory(joints, START, q, DT_NS)
    data = both.write(START, q)
    assert deserialize_message(data, JointTrajectory) == message
    for sent in (data, bytes(serialize_message(message))):
        first, found = both.read(sent)
        assert np.array_equal(found, q) and (first == START // DT_NS or not count)


def test_what_others_write_takes_the_long_way():
    """Other orders of the joints are sorted; velocities beside do not matter; wrong ones are refused."""
    q, both = points(5, ARM), TrajectoryBytes(ARM, DT_NS)
    message = messages.trajectory(ARM[::-1], START, q[:, ::-1], DT_NS)
    for point in message.points:
        point.velocities = [0.0] * 7
    assert np.array_equal(both.read(bytes(serialize_message(message)))[1], q)
    slower = bytes(serialize_message(messages.trajectory(ARM, START, q, 2 * DT_NS)))
    with pytest.raises(SafetyError, match="control points come one a tick"):
        both.read(slower)
    with pytest.raises(SafetyError, match="control points come one a tick"):
        both.read(TrajectoryBytes(ARM, 2 * DT_NS).write(START, q))
    swapped = messages.trajectory(ARM, START, q, DT_NS)
    swapped.points[2:4] = swapped.points[2:4][::-1]
    with pytest.raises(SafetyError, match="point 2 is due"):
        both.read(bytes(serialize_message(swapped)))
    short = messages.trajectory(ARM, START, q, DT_NS)
    short.points[3].positions = [0.0] * 6
    with pytest.raises(SafetyError, match="every point needs 7 positions"):
        both.read(bytes(serialize_message(short)))


def test_ticks_before_the_clock_s_zero():
    q, both = points(3, ARM), TrajectoryBytes(ARM, DT_NS)
    data = both.write(-2 * DT_NS, q)
    assert both.read(data)[0] == -2
    assert deserialize_message(data, JointTrajectory) == messages.trajectory(ARM, -2 * DT_NS, q, DT_NS)


@pytest.mark.parametrize("cut", [3, 11, 100, 300])
def test_bytes_that_are_cut_off_are_refused(cut):
    both = TrajectoryBytes(ARM, DT_NS)
    with pytest.raises(SafetyError, match=f"{cut} bytes that are no JointTrajectory"):
        both.read(both.write(START, points(9, ARM))[:cut])

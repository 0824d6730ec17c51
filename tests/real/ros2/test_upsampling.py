"""The limits hold for what the arm is given once the driver has filled the time between two commands. No DDS."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("rclpy")

from rclpy.serialization import deserialize_message
from trajectory_msgs.msg import JointTrajectory

from robopolicy.real.ros2.cdr import TrajectoryBytes
from robopolicy.real.ros2.outputs import spline_of
from robopolicy.real.ros2.upsampling import broken_claims
from robopolicy.real.ros2.wiring import FOLDER, load_wiring
from robopolicy.real.safety import Mode, load_profile
from robopolicy.real.safety.motion import upsample
from tests.real.controllers import PositionController, TrajectoryController, ratios
from tests.real.ros2.test_messages import changed
from tests.real.ways_out import FREE, FULL, WAYS, Line, attacked, wiring_of

BOUND = 1 + 1e-6
SHORT = [
    ("fr3", "trajectory", "hostile"), ("ur5e", "trajectory", "policy"), ("panda", "action", "hostile"),
    ("fr3", "control_points", "policy"), ("fr3", "positions_bspline", "hostile"),
    ("panda", "positions_linear", "policy"), ("ur5e", "positions_at_driver_rate", "hostile"),
]  # fmt: skip


def without_derivatives(message):
    for point in message.points:
        point.velocities, point.accelerations = [], []
    return message


@pytest.mark.parametrize(("robot", "way", "kind"), SHORT)
def test_what_the_driver_plays_keeps_the_maker_s_limits(robot, way, kind):
    """At all that the maker permits, with messages late and lost, from where the controller held the arm."""
    line, _ = attacked(robot, way, ticks=450, seed=1, kind=kind)
    found = line.ratios()
    assert max(found.values()) <= BOUND, found
    assert not getattr(line.driver, "rejected", []) and line.chain.error == ""
    assert np.ptp(np.array(line.played), axis=0).max() > 0.1, "it got somewhere"


def test_positions_alone_would_break_them():
    """The same messages less their derivatives, joined by lines: the model of the controller and the checker bite."""
    line, _ = attacked("fr3", "trajectory", ticks=150, seed=1, kind="hostile", messages=without_derivatives)
    found = line.ratios()
    assert found["acceleration"] > 2.0 and found["jerk"] > 4.0, found


def test_a_controller_is_commanded_once_it_has_settled(monkeypatch):
    """It holds the arm elsewhere than where it is measured; to begin there at once would be a jump."""
    monkeypatch.setattr("robopolicy.real.ros2.trajectory_stream.SETTLE", 0.0)
    line, _ = attacked("fr3", "trajectory", ticks=150, seed=1, kind="hostile")
    assert line.ratios()["acceleration"] > 2.0


def test_an_emergency_stop_ends_the_greetings(monkeypatch):
    """While the controller settles, an operator who says stop is not answered by one more way to go."""
    monkeypatch.setattr("robopolicy.real.ros2.trajectory_stream.GREETINGS", 10**6)
    sent = []
    line = Line("fr3", "trajectory", iter(()), messages=lambda m: sent.append(m) or m)
    line.begin()
    for _ in range(5):
        line.step()
    assert sent
    line.stream.arm.on_enable(False, line.now)
    line.run(2, enable=False)  # what was on its way arrives
    sent.clear()
    for _ in range(10):
        line.step(enable=False)
    assert not sent and line.stream.arm.mode is Mode.FAULT


@pytest.mark.parametrize(("greetings", "worst"), [(5, BOUND), (-100, np.inf)])
def test_a_lost_greeting_is_made_good(monkeypatch, greetings, worst):
    """Without it the controller would not settle, and jump at the first command."""
    monkeypatch.setattr("robopolicy.real.ros2.trajectory_stream.GREETINGS", greetings)
    line, _ = attacked("fr3", "trajectory", ticks=100, seed=1, kind="hostile", dropped=2)
    found = line.ratios()
    assert max(found.values()) <= worst and (worst < np.inf or found["acceleration"] > 100.0), found


def test_the_spline_that_is_sent_is_the_one_that_is_certified():
    """Its points lie on the B-spline, a quintic between two of them is it, and it ends at rest."""
    rng, dt = np.random.default_rng(0), 0.004
    points = 0.002 * np.cumsum(rng.normal(size=(12, 3)), axis=0)
    first, q, qd, qdd = spline_of(100, points, dt)
    assert first == 103 and len(q) == len(points) and not qd[-1].any() and not qdd[-1].any()
    assert np.allclose(q[-1], points[-1], atol=1e-15)
    message = JointTrajectory(joint_names=["a", "b", "c"])
    data = TrajectoryBytes(("a", "b", "c"), 4_000_000, derivatives=True).write(first * 4_000_000, q, qd, qdd)
    message = deserialize_message(data, JointTrajectory)
    assert [list(p.velocities) for p in message.points] == qd.tolist()
    assert [list(p.accelerations) for p in message.points] == qdd.tolist()
    driver = TrajectoryController(("a", "b", "c"), q[0])
    driver.take(message, first * 4_000_000)
    played = [driver.cycle(first * 4_000_000 + k * 1_000_000) for k in range(1, 4 * (len(points) - 3) + 1)]
    certified = [q for k in range(len(points) - 3) for q in upsample(points[k : k + 4], 4)]
    assert np.abs(np.array(played) - np.array(certified)).max() < 1e-13


@pytest.mark.parametrize("count", [0, 1, 80])
@pytest.mark.parametrize("joints", [("a",), ("ab", "cde"), ("abcd", "x", "yz")])
def test_rclpy_reads_what_we_write(joints, count):
    rng = np.random.default_rng(count)
    rows = [rng.normal(size=(count, len(joints))) for _ in range(3)]
    message = deserialize_message(
        TrajectoryBytes(joints, 4_000_000, derivatives=True).write(5_000_000_000, *rows), JointTrajectory
    )
    assert list(message.joint_names) == list(joints) and len(message.points) == count
    for k, point in enumerate(message.points):
        for row, name in zip(rows, ("positions", "velocities", "accelerations"), strict=True):
            assert list(getattr(point, name)) == row[k].tolist()
        assert not point.effort and point.time_from_start.nanosec == k * 4_000_000


def test_controllers_that_are_told_nothing_they_can_use_reject_it():
    driver = TrajectoryController(("a",), np.zeros(1))
    driver.take(JointTrajectory(joint_names=["a"]), 0)
    moving = deserialize_message(
        TrajectoryBytes(("a",), 4_000_000, derivatives=True).write(0, *[np.ones((2, 1))] * 3), JointTrajectory
    )
    driver.take(moving, 0)
    assert driver.rejected == ["empty", "velocity at the end"]


# -- what is claimed ------------------------------------------------------------------------------------------------
def stream(**more):
    from robopolicy.real.ros2.wiring import parse

    topic = {"name": "x", "type": "positions", "rate_hz": 250, "timeout_s": 0.1, "driver_hz": 1000, **more}
    return parse(changed(topics__trajectory=topic, topics__joint_commands=None, lead_ticks=1, limits="panda"))


@pytest.mark.parametrize(
    ("output", "settings", "what"),
    [
        ({"upsampling": "linear"}, {}, {"acceleration", "jerk"}),
        ({"upsampling": "linear"}, {"acceleration": 0.124}, set()),
        ({"upsampling": "none"}, {}, {"velocity", "acceleration", "jerk"}),
        ({"upsampling": "none", "driver_hz": 250}, {}, set()),
        ({"upsampling": "bspline"}, FULL, set()),
    ],
)
def test_a_driver_that_would_break_the_maker_s_limits_is_refused(output, settings, what):
    found = broken_claims(stream(**output), load_profile("panda", **settings))
    assert {name for name in ("velocity", "acceleration", "jerk") if any(f" {name} " in f for f in found)} == what
    assert all("upsampling" in f for f in found)


@pytest.mark.parametrize(("upsampling", "times"), [("linear", 4), ("none", 4)])
def test_what_is_refused_breaks_them(upsampling, times):
    """The factors that are reckoned with are those that are met: a change of speed at the permitted acceleration."""
    profile = load_profile("fr3")
    line = 0.5 * profile.acceleration * (0.004 * np.arange(40))[:, None] ** 2  # at the limit
    driver = PositionController(line[0], upsampling, times)
    played = np.concatenate([driver.tick(q) for q in line])
    found = ratios(played, profile.maker, 1000.0, None)
    assert found["acceleration"] > 1.5


@pytest.mark.parametrize("name", sorted(p.stem for p in FOLDER.glob("*.yaml")))
def test_presets_claim_what_they_keep(name):
    wiring = load_wiring(name)
    assert broken_claims(wiring, load_profile(wiring.limits, **FULL)) == []
    assert (wiring.output.points == "control") == (wiring.topics["joint_commands"] is not None)


@pytest.mark.parametrize("robot", ["fr3", "panda", "ur5e"])
def test_every_way_out_that_is_tried_is_permitted(robot):
    for way in WAYS:
        assert broken_claims(wiring_of(robot, way), load_profile(robot, **FREE, **WAYS[way][3])) == []

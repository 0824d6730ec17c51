"""The hostile client's checker sees what it must, its drivers play as controllers do, and the node withstands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy")

from rclpy.duration import Duration
from rclpy.serialization import serialize_message
from scipy.interpolate import BSpline
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from scripts import hostile_ros
from scripts.hostile import checker
from scripts.hostile.checker import FR3, PANDA
from scripts.hostile.drivers import MS, ControllerDriver, Plan, SplineDriver, between, read, spline
from scripts.hostile.log import Call, Log
from scripts.hostile.policy import HOME

DT_NS = 4_000_000
NONE = np.zeros((0, 0))
JOINTS = tuple(f"panda_joint{i}" for i in range(1, 8))


def log_of(speed, *, enables=(0.0, 6.0), calls=(), reports=(), **more) -> Log:
    """6 s in which joint 1 moves at `speed(t)` rad/s; enabled between `enables`, activated at 1 s."""
    t = np.arange(6000) * 0.001
    q = np.tile(HOME, (6000, 1))
    q[:, 0] += np.cumsum([speed(x) for x in t]) * 0.001
    found = Log(samples=[q], **more)
    found.enables = [(x, True) for x in np.arange(*enables, 0.02)]
    found.calls = [Call("activate", 1.0, 1.01, True), *calls]
    found.reports = list(reports)
    return found


def while_in(begin: float, end: float):
    return lambda t: 0.1 if begin <= t < end else 0.0


def test_what_was_asked_for_is_no_fault():
    assert checker.unasked(log_of(while_in(1.1, 5.9))) == []
    again = log_of(while_in(3.1, 5.9), calls=[Call("reset", 3.0, 3.01, True)], reports=[(2.0, {"mode": "FAULT"})])
    assert checker.unasked(again) == []


@pytest.mark.parametrize(
    "log",
    [
        log_of(while_in(0.6, 0.7)),  # not active yet
        log_of(while_in(1.1, 2.8), enables=(0.0, 2.0)),  # the enable has died
        log_of(while_in(1.1, 2.0), enables=(0.0, 0.5)),  # it was dead before
        log_of(while_in(1.1, 3.0), calls=[Call("deactivate", 2.0, 2.1, True)]),
        log_of(while_in(1.1, 3.0), reports=[(2.0, {"mode": "FAULT"})]),
        log_of(while_in(1.1, 3.0), forbidden=[(1.5, 5.0, "clock")]),
        log_of(lambda t: 0.0, forbidden=[(1.5, 5.0, "clock")], grips=[(2.0, 0.01), (3.0, 0.07)]),
        log_of(lambda t: 0.0, forbidden=[(1.5, 5.0, "x")],
               plans=[(3.0, Plan(np.arange(2), np.array([HOME, HOME + 0.1]), NONE, NONE))]),
    ],
)  # fmt: skip
def test_motion_that_nothing_permits_is_seen(log):
    assert len(checker.unasked(log)) == 1


def test_an_activation_while_stopped_is_no_permission():
    log = log_of(while_in(1.1, 2.0))
    log.enables = [(t, s and not 0.9 < t < 1.01) for t, s in log.enables]
    assert len(checker.unasked(log)) == 1


@pytest.mark.parametrize("silent", [(3.0, 3.5), (3.0, 3.25)])
def test_an_enable_that_returns_is_no_permission(silent):
    log = log_of(while_in(4.0, 5.0))
    log.enables = [(t, s) for t, s in log.enables if not silent[0] < t < silent[1]]
    assert len(checker.unasked(log)) == 1
    log.calls.append(Call("reset", 3.9, 3.95, True))
    assert checker.unasked(log) == []
    stop = log_of(while_in(4.0, 5.0))
    stop.enables = [(t, s and not 3.0 < t < 3.05) for t, s in stop.enables]
    assert len(checker.unasked(stop)) == 1


def test_each_limit_is_seen_and_what_is_within_is_not():
    t = np.arange(2000)[:, None] * 0.001
    for sheet in (PANDA, FR3):
        assert checker.over(HOME + 0.05 * np.sin(2 * t), sheet) == {}
        assert set(checker.over(HOME + np.eye(7)[0] * 1.5 * t, sheet)) >= {"velocity"}
        assert "acceleration" in checker.over(HOME + np.eye(7)[1] * 2.6 * t**2, sheet)
        assert "jerk" in checker.over(HOME + np.eye(7)[2] * 1e-3 * np.sin(90 * t), sheet)
    assert "position" in checker.over(HOME + np.eye(7)[5] * 1.4 + 0 * t, PANDA)
    near = HOME + np.eye(7)[0] * (2.7 - HOME[0]) + np.eye(7)[0] * 0.5 * t[:50]
    assert "edge" in checker.over(near, FR3) and "edge" not in checker.over(near, PANDA)
    assert checker.over(np.full((3, 7), np.nan), PANDA) == {"finite": 3}


def points(count: int = 60):
    """A motion from rest to rest, a point each 4 ms: times [ns], positions, velocities, accelerations."""
    u = np.linspace(0.0, 1.0, count)[:, None]
    length, way = 0.004 * (count - 1), 0.03 * np.ones(7)
    q = HOME + way * (10 * u**3 - 15 * u**4 + 6 * u**5)
    v = way * (30 * u**2 - 60 * u**3 + 30 * u**4) / length
    a = way * (60 * u - 180 * u**2 + 120 * u**3) / length**2
    return np.arange(count) * DT_NS, q, v, a


def test_a_plan_is_judged_as_its_controller_plays_it():
    """Positions alone are joined by straight lines, which no limit of jerk survives; a plan must end in a stop."""
    due, q, v, a = points()
    whole = Plan(due, q, v, a)
    assert checker.alone(whole, PANDA, splines=False, dt=0.004) == []
    assert "jerk" in checker.alone(Plan(due, q, NONE, NONE), PANDA, splines=False, dt=0.004)
    assert checker.alone(Plan(due, q, NONE, NONE), PANDA, splines=True, dt=0.004) == []
    half = slice(0, 30)
    assert checker.alone(Plan(due[half], q[half], v[half], a[half]), PANDA, splines=False, dt=0.004)
    assert checker.alone(Plan(due[half], q[half], NONE, NONE), PANDA, splines=True, dt=0.004)


def test_dry_runs_grippers_and_names_are_judged():
    assert checker.dry(Log(messages=[(0.0, "gripper")])) and not checker.dry(Log())
    for grips in ([(0.0, 0.055), (0.05, 0.025)], [(0.0, 0.01)]):
        log = Log(samples=[np.tile(HOME, (9, 1))], grips=grips)
        assert len(checker.limits(log, FR3, splines=True)) == 1 and not checker.limits(log, PANDA, splines=True)
    log = Log(attack=(0.0, 9.0), calls=[Call("reset", 1.0, 1.1, False, "no")])
    assert len(checker.unnamed(log, ["enable"], must=True, known=[])) == 2
    log.calls = [Call("reset", 1.0, 1.1, False, "enable: dead")]
    assert checker.unnamed(log, ["enable"], must=True, known=[]) == []
    log.reports = [(2.0, {"mode": "FAULT", "reasons_now": "fault:state"})]
    assert len(checker.unnamed(log, ["enable"], must=True, known=[])) == 1


# -- drivers --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("parts", [("q",), ("q", "v"), ("q", "v", "a"), ("q", "v", "a", "effort")])
@pytest.mark.parametrize("count", [0, 1, 2, 60])
def test_messages_are_read_as_rclpy_writes_them(parts, count):
    due, q, v, a = (x[:count] for x in points())
    message = JointTrajectory(joint_names=list(JOINTS)[::-1])
    message.header.stamp.sec = 17
    for k in range(count):
        point = JointTrajectoryPoint(positions=q[k].tolist()[::-1])
        point.time_from_start = Duration(nanoseconds=int(due[k])).to_msg()
        point.velocities = v[k].tolist()[::-1] if "v" in parts else []
        point.accelerations = a[k].tolist()[::-1] if "a" in parts else []
        point.effort = [0.0] * 7 if "effort" in parts else []
        message.points.append(point)
    found = read(serialize_message(message), JOINTS)
    assert np.array_equal(found.due, 17 * 10**9 + due) and np.array_equal(found.q, q.reshape(-1, 7))
    for name, mine, theirs in (("v", found.v, v), ("a", found.a, a)):
        assert np.array_equal(mine, theirs) if name in parts and count else mine.size == 0
    with pytest.raises(ValueError, match="joints" if count else "JointTrajectory"):
        read(serialize_message(message)[: None if count else 9], JOINTS[:6])


def test_splines_and_quintics_are_what_they_should_be():
    c = np.random.default_rng(0).normal(size=(12, 7))
    u = np.arange(1, 9 * 4 + 1) / 4
    assert np.allclose(spline(c, 4), BSpline(np.arange(-3.0, 13.0), c, 3)(u), atol=1e-12)
    due, q, v, a = points(7)
    at = np.arange(due[-1], step=MS)
    u = at[:, None] / due[-1]
    assert np.allclose(between(Plan(due, q, v, a), at), HOME + 0.03 * (10 * u**3 - 15 * u**4 + 6 * u**5), atol=1e-12)


def test_a_spline_driver_takes_only_what_goes_on_from_what_it_plays():
    driver = SplineDriver(HOME, 100, DT_NS)
    due, q, _, _ = points()
    late = Plan(100 * DT_NS + due, q + 1e-12, NONE, NONE)
    assert driver.offer(late, 0) == "seam"
    lead = np.concatenate([np.tile(HOME, (4, 1)), q])
    plan = Plan(DT_NS * np.arange(100, 100 + len(lead)), lead, NONE, NONE)
    assert (
        driver.offer(plan, 0) == ""
        and driver.offer(plan, 15 * 10**9) == "past"
        and driver.offer(plan, -15 * 10**9) == "ahead"
    )
    played = np.concatenate([driver.play()[0] for _ in range(80)])
    assert checker.over(played, PANDA) == {} and np.allclose(played[-1], q[-1])


def test_a_controller_s_driver_jumps_where_it_is_told_to():
    driver = ControllerDriver(HOME, 0, DT_NS)
    due, q, v, a = points()
    assert driver.offer(Plan(due + DT_NS, q, v, a), 0) == ""
    played = np.concatenate([driver.play()[0] for _ in range(80)])
    assert checker.over(played, PANDA) == {} and np.allclose(played[-1], q[-1])
    driver = ControllerDriver(HOME, 0, DT_NS)
    assert driver.offer(Plan(due, q + 0.01, v, a), 0) == ""
    assert checker.over(np.concatenate([[HOME], driver.play()[0]]), PANDA)


# -- the node -------------------------------------------------------------------------------------------------------
@pytest.mark.skipif(sys.platform != "linux", reason="the client plays in real time")
def test_the_node_withstands_a_few_attacks():
    """A clock glitch, an enable that died before a reset, and an exception in a dry run."""
    script = Path(hostile_ros.__file__)
    command = [sys.executable, str(script), "--only", "glitch_inactive", "enable_silent_reset", "dry_run_raises"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count('"scenario"') == 3

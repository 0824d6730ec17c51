"""The driver between the control loop and LeRobot: late and lost readings, late loops, gaps."""

from __future__ import annotations

import numpy as np
import pytest

from robopolicy.real.lerobot.arm import LATE, LeRobotArm
from robopolicy.real.lerobot.units import MotorUnits
from tests.real.lerobot.rigs import PROFILE

DT = 0.01
MOTORS = PROFILE.joints


class FakeRobot:
    """LeRobot's interface, in degrees."""

    def __init__(self):
        self.now, self.took, self.q, self.broken, self.sent, self.clip = 0.0, 0.002, np.zeros(5), None, [], 1.0

    def get_observation(self):
        self.now += self.took
        if self.broken:
            raise self.broken
        return {**{f"{m}.pos": v for m, v in zip(MOTORS, np.rad2deg(self.q), strict=True)}, "gripper.pos": 50.0}

    def send_action(self, action):
        self.sent.append(np.deg2rad([action[f"{m}.pos"] for m in MOTORS]))
        return {k: self.clip * v for k, v in action.items()}


@pytest.fixture
def robot():
    return FakeRobot()


@pytest.fixture
def arm(robot):
    units = MotorUnits(MOTORS, np.full(5, np.deg2rad(1)), PROFILE.low, PROFILE.high, "gripper", 0.08)
    return LeRobotArm(robot, units, PROFILE, dt=DT, clock=lambda: robot.now)


def test_a_reading_is_handed_out_once(robot, arm):
    robot.q = np.full(5, 0.3)
    assert arm.read() is None
    arm.exchange()
    state = arm.read()
    np.testing.assert_allclose(state.q, 0.3)
    assert state.opening == pytest.approx(0.04) and arm.read() is None
    assert not robot.sent, "nothing was commanded yet"


def test_velocities_are_those_of_positions(robot, arm):
    for k in range(12):
        robot.now, robot.q = DT * k, np.full(5, 0.5 * (DT * k + robot.took))
        arm.exchange()
    np.testing.assert_allclose(arm.read().qd, 0.5, rtol=1e-6)


@pytest.mark.parametrize("error", [ConnectionError("no status packet"), TimeoutError("camera"), ValueError("odd")])
def test_a_failed_reading_is_no_state(robot, arm, error):
    robot.broken = error
    arm.exchange()
    assert arm.read() is None and arm.counts["reads_failed"] == 1 and str(error) in arm.error


def test_a_late_reading_is_no_state(robot, arm):
    robot.took = LATE + 0.001
    arm.exchange()
    assert arm.read() is None and arm.counts["reads_late"] == 1


def test_a_reading_from_before_the_episode_is_dropped(robot, arm):
    observe = robot.get_observation

    def slow():
        found = observe()
        arm.forget()
        return found

    robot.get_observation = slow
    arm.exchange()
    assert arm.read() is None


def test_the_command_is_sent_and_then_its_stop(robot, arm):
    command, stop = np.full(5, 0.010), np.array([np.full(5, 0.015), np.full(5, 0.017)])
    arm.write(command, 0.04, stop)
    arm.exchange()
    np.testing.assert_allclose(robot.sent[-1], command)
    for expected in (0.010, 0.015, 0.017, 0.017):  # the loop is half a tick late, then silent
        robot.now += DT - robot.took
        arm.exchange()
        np.testing.assert_allclose(robot.sent[-1], expected, atol=1e-12)
    assert arm.counts["stop_played"] == 3


def test_after_a_gap_the_arm_catches_up_at_permitted_speed(robot, arm):
    here = np.zeros(5)
    arm.write(here, 0.0, here[None])
    arm.exchange()
    robot.now += 0.2  # the bus blocked
    ahead = np.array([0.1, 0.05, 0, 0, 0])
    goals = [robot.sent[-1]]
    for _ in range(8):
        arm.write(ahead, 0.0, ahead[None])
        arm.exchange()
        goals.append(robot.sent[-1])
        robot.now += DT - robot.took
    steps = np.diff(np.array(goals), axis=0)
    assert steps[0, 0] == pytest.approx(2 * DT * PROFILE.velocity[0])
    assert (np.abs(steps) <= 2 * DT * PROFILE.velocity + 1e-12).all() and arm.counts["caught_up"] > 1
    np.testing.assert_allclose(goals[-1], ahead, atol=1e-12)
    np.testing.assert_allclose(steps[:3, 1], steps[:3, 0] / 2)  # straight


def test_goals_that_could_not_be_sent_add_up_to_no_jump(robot, arm):
    send, here = robot.send_action, np.zeros(5)
    arm.write(here, 0.0, here[None])
    arm.exchange()

    def fail(action):
        raise ConnectionError("gone")

    robot.send_action = fail
    for k in range(10):
        robot.now += DT - robot.took
        ahead = np.full(5, 0.9 * DT * (k + 1)) * PROFILE.velocity
        arm.write(ahead, 0.0, ahead[None])
        arm.exchange()
    robot.send_action = send
    arm.exchange()
    assert (robot.sent[-1] <= 2 * DT * PROFILE.velocity + 1e-12).all() and arm.counts["writes_failed"] == 10


def test_an_arm_that_stands_while_nothing_is_decided_plays_no_stop(robot, arm):
    here = np.full(5, 0.01)
    arm.write(here, 0.04, np.tile(here, (3, 1)))
    for _ in range(20):
        robot.now += DT
        arm.exchange()
    assert not arm.counts["stop_played"] and arm.stops_in == 0.0


def test_an_action_that_lerobot_changed_is_counted(robot, arm):
    robot.clip = 0.5
    arm.write(np.full(5, 0.01), 0.04, np.full((1, 5), 0.01))
    arm.exchange()
    assert arm.counts["driver_changed"] == 1


def test_a_failed_write_is_counted(robot, arm):
    def fail(action):
        raise ConnectionError("gone")

    robot.send_action = fail
    arm.write(np.full(5, 0.01), 0.04, np.full((1, 5), 0.01))
    arm.exchange()
    assert arm.counts["writes_failed"] == 1 and "gone" in arm.error


def test_a_camera_that_fails_ends_no_exchange(robot, arm):
    arm.pictures = lambda values: values["observation.images.front"]
    arm.write(np.full(5, 0.01), 0.04, np.full((1, 5), 0.01))
    arm.exchange()
    assert arm.counts["pictures_failed"] == 1 and arm.read() is not None and len(robot.sent) == 1

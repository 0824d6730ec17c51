"""The mock bus: LeRobot's own code reads and writes it; it lags and drops as told."""

from __future__ import annotations

from itertools import count

import pytest

from robopolicy.real.lerobot.mock_port import PING, BusTrouble
from tests.real.lerobot.rigs import Rig


def connected(tmp_path, trouble=None):
    rig = Rig(tmp_path)
    robot = rig.robot()
    robot.connect(calibrate=False)
    rig.port.trouble = trouble or BusTrouble()
    return rig, robot


def test_goals_reach_the_motors_and_are_read_back(tmp_path):
    rig, robot = connected(tmp_path)
    robot.send_action({f"{m}.pos": 20.0 for m in rig.wiring.motors})
    assert rig.port.goals[1] == int(20 * 4095 / 360 + 2047)
    assert robot.get_observation()["shoulder_pan.pos"] == pytest.approx(20.0, abs=0.1)


def test_motors_without_torque_take_no_goal(tmp_path):
    rig, robot = connected(tmp_path)
    robot.bus.disable_torque()
    robot.send_action({f"{m}.pos": 20.0 for m in rig.wiring.motors})
    assert not rig.port.goals


def test_a_reply_takes_the_time_of_its_bytes(tmp_path):
    rig, robot = connected(tmp_path)
    before = rig.time.now
    robot.get_observation()
    assert 0.001 < rig.time.now - before < 0.004


def test_a_lost_reply_blocks_lerobots_bus_for_its_timeout(tmp_path):
    rig, robot = connected(tmp_path, BusTrouble(drop=1.0))
    before = rig.time.now
    with pytest.raises(ConnectionError, match="Failed to sync read 'Present_Position'"):
        robot.get_observation()
    assert 3 * 0.05 < rig.time.now - before < 3 * 0.06  # LeRobot tries three times
    robot.send_action({f"{m}.pos": 20.0 for m in rig.wiring.motors})
    assert not rig.port.goals, "no motor heard it, and no driver can know"


def test_a_hiccup_delays_a_reply(tmp_path):
    rig, robot = connected(tmp_path, BusTrouble(lag=1.0, lag_s=0.02))
    before = rig.time.now
    robot.get_observation()
    assert 0.02 < rig.time.now - before < 0.025


def test_calibrations_with_a_sign_are_read_back(tmp_path):
    rig = Rig(tmp_path)
    rig.calibration["elbow_flex"].homing_offset = -37
    rig.save(rig.calibration)
    rig.port.__init__(rig.calibration, clock=rig.time.clock, sleep=rig.time.sleep)
    robot = rig.robot()
    robot.connect(calibrate=False)
    assert robot.is_calibrated and robot.bus.read_calibration()["elbow_flex"].homing_offset == -37


def test_a_reply_that_comes_between_two_looks_at_the_clock_is_read(tmp_path):
    port, slept = Rig(tmp_path).port, list[float]()
    port.writePort([0xFF, 0xFF, 1, 2, PING, 0])
    port.clock, port.sleep = count(port._ready - 1e-6, 2e-6).__next__, slept.append
    assert port.readPort(6)[:3] == b"\xff\xff\x01" and slept == [pytest.approx(1e-6)]

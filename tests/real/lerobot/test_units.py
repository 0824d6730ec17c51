"""LeRobot's units of motors in rad and m, by the definition of its normalisation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from robopolicy.real.lerobot.units import units_of
from robopolicy.real.lerobot.wiring import parse
from robopolicy.real.ros2.channels import WiringError
from tests.real.lerobot.rigs import Rig
from tests.real.lerobot.test_wiring import data

COUNTS = np.array([2500, 1500, 2047, 2100, 3000])  # of the motors, whose middle is 2047


@pytest.mark.parametrize("degrees", [True, False])
def test_lerobots_readings_become_rad_and_go_back(tmp_path, degrees):
    rig = Rig(tmp_path, use_degrees=degrees)
    robot = rig.robot()
    robot.connect(calibrate=False)
    rig.port.positions = lambda: {**dict(enumerate(COUNTS.tolist(), 1)), 6: 1536}
    units = units_of(robot.bus, rig.wiring)
    values = robot.get_observation()
    q, opening = units.state(values)
    np.testing.assert_allclose(q, (COUNTS - 2047) * 2 * math.pi / 4095, atol=1e-9)
    assert opening == pytest.approx(0.02)  # a quarter of the jaw's way, of 0.08 m
    back = units.action(q, opening)
    assert back == pytest.approx(values) and back["gripper.pos"] == pytest.approx(25.0)
    robot.send_action(back)
    assert np.abs(np.array([rig.port.goals[i] for i in range(1, 6)]) - COUNTS).max() <= 1


def test_a_reversed_motor_turns_the_other_way(tmp_path):
    rig = Rig(tmp_path)
    wiring = parse(data(reversed=["elbow_flex"]))
    units = units_of(rig.robot().bus, wiring)
    q, _ = units.state({**{f"{m}.pos": 10.0 for m in wiring.motors}})
    np.testing.assert_allclose(q, np.deg2rad([10, 10, -10, 10, 10]))
    assert units.action(q, 0.0)["elbow_flex.pos"] == pytest.approx(10.0)


def test_openings_are_clipped_and_a_nan_is_not_sent(tmp_path):
    rig = Rig(tmp_path)
    units, zero = units_of(rig.robot().bus, rig.wiring), np.zeros(5)
    assert units.action(zero, 1.0)["gripper.pos"] == 100.0 and units.action(zero, -1.0)["gripper.pos"] == 0.0
    assert "gripper.pos" not in units.action(zero, math.nan)


def test_readings_that_are_no_numbers_are_refused(tmp_path):
    rig = Rig(tmp_path)
    units = units_of(rig.robot().bus, rig.wiring)
    values = {f"{m}.pos": 0.0 for m in rig.wiring.motors}
    with pytest.raises(ValueError, match="finite"):
        units.state({**values, "wrist_flex.pos": math.nan})
    for odd in (None, [1.0, 2.0], "far"):
        with pytest.raises(ValueError):
            units.state({**values, "wrist_flex.pos": odd})
    with pytest.raises(KeyError):
        units.state({k: v for k, v in values.items() if k != "wrist_flex.pos"})


def test_an_empty_range_is_refused(tmp_path):
    rig = Rig(tmp_path)
    rig.calibration["elbow_flex"].range_max = rig.calibration["elbow_flex"].range_min
    rig.save(rig.calibration)
    with pytest.raises(WiringError, match="calibration: elbow_flex: range_min"):
        units_of(rig.robot().bus, rig.wiring)

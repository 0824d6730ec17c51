"""Arms that do not fit are refused by name, before anything moves."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest

from robopolicy.real.lerobot.connection import connect, make_robot
from robopolicy.real.lerobot.mock_port import BusTrouble
from robopolicy.real.lerobot.wiring import load_wiring, parse
from robopolicy.real.ros2.channels import WiringError
from tests.real.lerobot.rigs import PROFILE, Rig
from tests.real.lerobot.test_wiring import data


def test_it_connects_and_keeps_the_limits_within_the_calibration(tmp_path):
    rig = Rig(tmp_path)
    units, profile = connect(rig.robot(), rig.wiring, PROFILE)
    assert profile is PROFILE and units.motors == PROFILE.joints
    assert not rig.port.goals, "nothing was sent"


def test_limits_end_where_the_calibration_ends(tmp_path):
    rig = Rig(tmp_path)
    rig.calibration["shoulder_pan"].range_min += 100
    rig.calibration["shoulder_pan"].range_max -= 100
    rig.save(rig.calibration)
    rig.port.__init__(rig.calibration, clock=rig.time.clock, sleep=rig.time.sleep)
    _, profile = connect(rig.robot(), rig.wiring, PROFILE)
    expected = PROFILE.high[0] - 99 * 2 * np.pi / 4095
    assert profile.high[0] == pytest.approx(expected, abs=2e-3) and profile.low[0] == pytest.approx(-expected, abs=2e-3)
    np.testing.assert_array_equal(profile.high[1:], PROFILE.high[1:])
    assert profile.digest != PROFILE.digest


def test_a_missing_calibration_is_refused(tmp_path):
    rig = Rig(tmp_path)
    rig.file.unlink()
    with pytest.raises(WiringError, match=r"calibration: .*mine\.json is missing\. Run lerobot-calibrate"):
        connect(rig.robot(), rig.wiring, PROFILE)


def since(wiring, day):
    return dataclasses.replace(
        wiring, arm=dataclasses.replace(wiring.arm, changed=parse(data(changed=day)).arm.changed)
    )


def test_a_calibration_from_before_the_arm_was_changed_is_refused(tmp_path):
    rig = Rig(tmp_path)
    os.utime(rig.file, (1.7e9, 1.7e9))  # November 2023
    assert connect(rig.robot(), since(rig.wiring, "2023-11-01"), PROFILE)
    old = since(rig.wiring, "2024-01-01")
    with pytest.raises(WiringError, match=r"2023-11-1\d, older than the arm's last change \(changed: 2024-01-01\)"):
        connect(rig.robot(), old, PROFILE)


def test_a_calibration_of_another_arm_is_refused(tmp_path):
    rig = Rig(tmp_path)
    rig.calibration["elbow_flex"].homing_offset = -37
    rig.save(rig.calibration)  # the motors hold 0
    with pytest.raises(WiringError, match="calibration: the motors hold another one"):
        connect(rig.robot(), rig.wiring, PROFILE)
    assert not rig.port.is_open


@pytest.mark.parametrize(("motor", "said"), [("wrist_roll", ["zero of wrist_roll: not measured"]), (None, [])])
def test_a_zero_that_no_stops_tell_is_said(tmp_path, motor, said):
    rig = Rig(tmp_path)
    if motor is not None:
        rig.calibration[motor].range_min, rig.calibration[motor].range_max = 0, 4095
        rig.save(rig.calibration)
        rig.port.__init__(rig.calibration, clock=rig.time.clock, sleep=rig.time.sleep)
    units, _ = connect(rig.robot(), rig.wiring, PROFILE)
    assert [text.partition(".")[0] for text in units.not_measured] == said


@pytest.mark.parametrize("missing", [250, 1000])
def test_a_joint_that_was_not_swept_whole_is_refused(tmp_path, missing):
    rig = Rig(tmp_path)
    rig.calibration["wrist_flex"].range_max -= missing
    rig.save(rig.calibration)
    with pytest.raises(WiringError, match=r"calibration: wrist_flex was moved through \d+°, the limits have 190°"):
        connect(rig.robot(), rig.wiring, PROFILE)


def test_a_motor_that_does_not_answer_is_named(tmp_path):
    rig = Rig(tmp_path, trouble=BusTrouble(silent=(3,)))
    with pytest.raises(WiringError, match=r"does not answer on '/dev/ttyACM0': .*Missing motor IDs: - 3"):
        connect(rig.robot(), rig.wiring, PROFILE)


def test_a_camera_that_cannot_be_opened_is_not_taken_for_the_port(tmp_path):
    robot = (rig := Rig(tmp_path)).robot()

    def connect_all(**_):
        raise ConnectionError("Failed to open OpenCVCamera(0)")

    robot.connect = connect_all
    with pytest.raises(WiringError, match=r"motors answer, but .* camera .* cannot be connected: Failed to open"):
        connect(robot, rig.wiring, PROFILE)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"joints": {**data()["joints"], "elbow_flex": "elbow"}}, r"joints: .* has no motor 'elbow'.*elbow_flex"),
        ({"gripper": None}, r"motors that no joint stands for: \['gripper'\]"),
        (
            {"cameras": {"observation.images.front": {"name": "top", "latency_s": 0.0}}},
            r"cameras\.observation\.images\.front: .* has no camera 'top'",
        ),
        ({"gripper": {"motor": "wrist_roll_2", "opening_m": 0.08}}, "has no motor 'wrist_roll_2'"),
    ],
)
def test_other_names_are_refused(tmp_path, change, expected):
    with pytest.raises(WiringError, match=expected):
        connect(Rig(tmp_path).robot(), parse(data(**change)), PROFILE)


def test_units_of_another_kind_are_refused(tmp_path):
    rig = Rig(tmp_path)
    swapped = {**data()["joints"], "wrist_roll": "gripper"}
    wiring = parse(data(joints=swapped, gripper={"motor": "wrist_roll", "opening_m": 0.08}))
    with pytest.raises(
        WiringError, match=r"joints\.gripper: expected a motor in degrees or .* found one in range_0_100"
    ):
        connect(rig.robot(), wiring, PROFILE)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"type": "so101_folower"}, r"robot\.type='so101_folower'.*so101_follower"),
        ({"type": "reachy2"}, r"robot\.type='reachy2': no arm"),
        ({"prot": "x"}, r"robot: holds values that cannot be used .*prot"),
        ({"cameras": {"front": {"type": "webcam"}}}, r"robot\.cameras\.front\.type='webcam'.*opencv"),
        ({"cameras": ["front"]}, r"robot\.cameras: expected cameras by name"),
    ],
)
def test_options_that_lerobot_does_not_have_are_refused(options, expected):
    with pytest.raises(WiringError, match=expected):
        make_robot({**load_wiring("so101_follower").robot, **options})


@pytest.mark.parametrize("text", ["{", '{"shoulder_pan": {"id": 1}}'])
def test_a_damaged_calibration_is_refused(tmp_path, text):
    rig = Rig(tmp_path)
    rig.file.write_text(text)
    with pytest.raises(WiringError, match=r"calibration: the file of robot\.id=mine is damaged .*lerobot-calibrate"):
        rig.robot()


@pytest.mark.parametrize("name", ["../other", "/etc/other", ".hidden", ""])
def test_an_id_names_a_file_and_no_path(tmp_path, name):
    with pytest.raises(WiringError, match=r"robot\.id=.*expected the name of a calibration file"):
        Rig(tmp_path, id=name).robot()


def test_a_calibration_without_end_is_refused(tmp_path):
    rig = Rig(tmp_path)
    with rig.file.open("wb") as file:
        file.truncate(2**40)  # sparse
    with pytest.raises(WiringError, match=r"mine\.json"):
        rig.robot()

"""Wirings of LeRobot's arms."""

from __future__ import annotations

from typing import Any

import pytest

from robopolicy.core.untrusted import read_yaml
from robopolicy.real.lerobot.wiring import FOLDER, load_wiring, parse
from robopolicy.real.ros2.channels import WiringError


def data(**changes: Any) -> dict[str, Any]:
    """Values of the preset, changed."""
    return {**read_yaml(FOLDER / "so101_follower.yaml"), **changes}


@pytest.mark.parametrize("name", sorted(p.stem for p in FOLDER.glob("*.yaml")))
def test_presets_are_sound(name):
    wiring = load_wiring(name)
    assert wiring.arm.profile().joints == tuple(data()["joints"]) and wiring.motors[-1] == wiring.gripper


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"changed": "yesterday"}, "changed"),
        ({"limits": "so100"}, "limits: 'so100'"),
        ({"tick": 0.01}, "tick"),
        ({"tick_s": 0.05}, "tick_s"),
        ({"joints": {"shoulder_pan": "shoulder_pan"}}, "joints: expected"),
        ({"reversed": ["elbow"]}, r"reversed: \['elbow'\] are no motors"),
        ({"gripper": {"motor": "wrist_roll", "opening_m": 0.08}}, "one motor stands for two joints"),
        ({"watchdogs": {"state": {"hold": 0.01}, "images": {"hold": 0.2}}}, r"watchdogs\.state: less than two ticks"),
        ({"safety": {"tcp_sped": 0.1}}, "tcp_sped"),
    ],
)
def test_wrong_files_are_refused_by_key(change, expected):
    with pytest.raises(WiringError, match=expected):
        parse(data(**change))


def test_other_names_are_refused():
    with pytest.raises(WiringError, match=r"wiring='mujoco_panda'.*so101_follower"):
        load_wiring("mujoco_panda")


def options(**changes: Any) -> dict[str, Any]:
    """Return the preset's values with other options of LeRobot's class."""
    return data(robot={**data()["robot"], **changes})


@pytest.mark.parametrize(
    "port", ["/dev/ttyUSB0", "/dev/tty.usbmodem58760431541", "/dev/serial/by-id/usb-1a86_USB-if00", "COM3"]
)
def test_serial_devices_are_ports(port):
    assert parse(options(port=port)).robot["port"] == port


@pytest.mark.parametrize(
    "port", ["/etc/passwd", "/dev/sda", "/dev/tty", "/dev/ttyACM0/../sda", "socket://host:1", "/tmp/ttyACM0", None, 3]
)
def test_other_ports_are_refused(port):
    with pytest.raises(WiringError, match=r"robot\.port: expected a serial device"):
        parse(options(port=port))


@pytest.mark.parametrize("path", ["http://host/stream", "/etc/passwd", "/dev/../etc/passwd", ["/dev/video0"], True])
def test_a_camera_of_a_file_is_a_device(path):
    good = {"type": "opencv", "index_or_path": "/dev/video2", "width": 64, "height": 48, "fps": 30}
    assert parse(options(cameras={"front": good}))
    with pytest.raises(WiringError, match=r"robot\.cameras\.front\.index_or_path: expected a number, or a device"):
        parse(options(cameras={"front": {**good, "index_or_path": path}}))


def test_a_calibration_of_a_file_lies_below_it(tmp_path):
    here, elsewhere = tmp_path / "cell", tmp_path / "elsewhere"
    (here / "calibrations").mkdir(parents=True)
    elsewhere.mkdir()
    found = parse(options(calibration_dir="calibrations"), folder=here).robot["calibration_dir"]
    assert found == str(here / "calibrations")
    (here / "link").symlink_to(elsewhere)
    for given in ("../elsewhere", str(elsewhere), "link", "missing", "", 3):
        with pytest.raises(WiringError, match=r"robot\.calibration_dir"):
            parse(options(calibration_dir=given), folder=here)
    (here / "calibrations" / "my_follower.json").symlink_to(elsewhere / "any.json")
    with pytest.raises(WiringError, match=r"robot\.id.* is a link that leads out"):
        parse(options(calibration_dir="calibrations"), folder=here)
    assert not list(elsewhere.iterdir()), "nothing was made there"


KEY = "observation.points.wrist"
CAMERA = {"type": "intelrealsense", "serial_number_or_name": "817612070311", "use_depth": True}
DEPTH = {"name": "wrist", "calibration": "panda_wrist"}


def with_depth(camera: dict[str, Any] | None = None, **depth: Any) -> dict[str, Any]:
    """Return values with a depth camera; `camera`: options of LeRobot's class that are other."""
    robot = {**data()["robot"], "cameras": {"wrist": CAMERA | (camera or {})}}
    return data(robot=robot, depth_cameras={KEY: DEPTH | depth})


def test_a_depth_camera_is_known_by_its_serial_number():
    topic = parse(with_depth(latency_s=0.05, range_m=[0.1, 0.8])).arm.depth_cameras[KEY]
    assert (topic.frame_id, topic.latency_s, topic.range_m) == ("817612070311", 0.05, (0.1, 0.8))
    with pytest.raises(WiringError, match="camera: expected '817612070311', the file is of 'wrist'"):
        parse(with_depth()).arm.calibration(KEY)


@pytest.mark.parametrize(
    ("camera", "depth", "expected"),
    [
        ({"use_depth": False}, {}, rf"depth_cameras\.{KEY}\.name: expected a camera .* use_depth: true"),
        ({"type": "opencv"}, {}, rf"depth_cameras\.{KEY}\.name: expected a camera .* type: intelrealsense"),
        ({}, {"name": "wrst"}, "found 'wrst': None.*wrist"),
        ({"serial_number_or_name": "Intel RealSense D405"}, {}, r"wrist\.serial_number_or_name: expected the serial"),
        ({"serial_number_or_name": 817612070311}, {}, "serial number in quotes"),
        ({"rotation": 180}, {}, r"wrist\.rotation: expected none"),
        ({}, {"range_m": [1.0, 0.5]}, "range_m: expected the nearest"),
        ({}, {"calibration": "none.json"}, "calibration: .*none.json is missing"),
        ({}, {"frame_id": "wrist"}, "frame_id"),
    ],
)
def test_a_depth_camera_that_cannot_be_used_is_refused_by_key(camera, depth, expected):
    with pytest.raises(WiringError, match=f"(?s){expected}"):
        parse(with_depth(camera, **depth))


@pytest.mark.parametrize("patience", [{"slow": 0.1}, {"hold": 60.0}])
@pytest.mark.parametrize("dog", ["state", "images"])
def test_an_arm_does_not_go_on_by_old_states_or_pictures_for_good(dog, patience):
    with pytest.raises(WiringError, match=rf"watchdogs\.{dog}: .*expected hold or fault after at most"):
        parse(data(watchdogs={"state": {"hold": 0.2}, "images": {"hold": 0.2}} | {dog: patience}))

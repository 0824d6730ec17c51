"""Wirings of LeRobot's arms."""

from __future__ import annotations

from typing import Any

import pytest

from robopolicy.core.untrusted import read_yaml
from robopolicy.real.lerobot.wiring import FOLDER, load_wiring, parse, wiring_names
from robopolicy.real.ros2.channels import WiringError


def data(**changes: Any) -> dict[str, Any]:
    """Values of the preset, changed."""
    return {**read_yaml(FOLDER / "so101_follower.yaml"), **changes}


@pytest.mark.parametrize("name", wiring_names())
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

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

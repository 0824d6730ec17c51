"""One place for the options of a deployment: the command line's defaults, and the way to another process and back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from robopolicy.cli.verbs import find_verb
from robopolicy.config.compose import compose
from robopolicy.config.instantiate import arguments_for
from robopolicy.core.errors import ConfigError
from robopolicy.real.deploy.deploy import deploy
from robopolicy.real.deploy.deploy_config import DeployConfig
from robopolicy.real.deploy.deployment import limits_of
from robopolicy.real.ros2.wiring import FOLDER
from robopolicy.real.safety import SafetyError, load_profile
from robopolicy.real.teleoperation.teleoperator import Drive


def test_the_command_line_has_the_defaults_of_the_config():
    config = compose(find_verb("deploy"), ["checkpoint=x"])
    assert DeployConfig(**arguments_for(deploy, config)) == DeployConfig(checkpoint=Path("x"))


@pytest.mark.parametrize("option", [{"wiring": "fr3"}, {"lockstep": True}, {"process": False}])
def test_what_only_ros_2_knows_is_refused_in_one_process(option, tmp_path):
    with pytest.raises(ConfigError, match=f"{next(iter(option))}.*mujoco_ros2"):
        deploy(checkpoint=tmp_path, **option)


def test_the_limits_of_a_wiring_are_in_force_over_ros_2(tmp_path):
    data = yaml.safe_load((FOLDER / "mujoco_panda.yaml").read_text())
    path = tmp_path / "cell.yaml"
    path.write_text(yaml.safe_dump({**data, "safety": {"joint_speed": 0.4}, "tick_s": 0.005}))
    config = DeployConfig(checkpoint=tmp_path, robot="mujoco_ros2", wiring=str(path), safety={"tcp_speed": 0.1})
    profile, tick = limits_of(config)
    assert tick == 0.005 and profile.digest == load_profile("panda", **config.settings({"joint_speed": 0.4})).digest
    assert profile.velocity.max() == 0.4 and profile.settings.tcp_speed == 0.1
    here, tick = limits_of(DeployConfig(checkpoint=tmp_path, safety={"tcp_speed": 0.1}))
    assert tick == 0.004 and here.settings.joint_speed is None
    with pytest.raises(SafetyError, match="joint_speed"):
        limits_of(replace(config, safety={"joint_speed": 0.5}))


def test_a_config_is_the_same_on_the_other_side():
    config = DeployConfig(
        checkpoint=Path("runs/a"), task={"_target_": "native", "task": "reach", "image_size": [24, 32]},
        safety={"tcp_speed": 0.5, "planes": [{"normal": [0, 0, 1], "offset": 0.0}]}, latency_ms=50, record=Path("r"),
        operator="gamepad", drive=Drive(speed=0.1), server="gpu:1", server_token=Path("t"), process=False,
    )  # fmt: skip
    assert DeployConfig.from_values(json.loads(config.to_json())) == config


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"spede": 0.1}, "spede"),
        ({"speed": -1.0}, "speed"),
        ({"drive": {"turn": "x"}}, "turn"),
        ({"lost": 1.0}, "lost"),
    ],
)
def test_a_wrong_option_is_named(values, key):
    with pytest.raises(ConfigError, match=key):
        DeployConfig.from_values({"checkpoint": "x", **values})

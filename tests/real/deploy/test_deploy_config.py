"""One place for the options of a deployment: the command line's defaults, and the way to another process and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from robopolicy.cli.verbs import find_verb
from robopolicy.config.compose import compose
from robopolicy.config.instantiate import arguments_for
from robopolicy.core.errors import ConfigError
from robopolicy.real.deploy.deploy import deploy
from robopolicy.real.deploy.deploy_config import DeployConfig
from robopolicy.real.teleoperation.teleoperator import Drive


def test_the_command_line_has_the_defaults_of_the_config():
    config = compose(find_verb("deploy"), ["checkpoint=x"])
    assert DeployConfig(**arguments_for(deploy, config)) == DeployConfig(checkpoint=Path("x"))


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

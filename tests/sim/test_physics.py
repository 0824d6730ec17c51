"""The choice of physics: options that do not fit, and packages that are missing."""

from __future__ import annotations

import importlib.util

import pytest

from robopolicy import sim
from robopolicy.core.errors import ConfigError
from robopolicy.sim.engine import RolloutPhysics
from robopolicy.sim.physics import WarpOptions


def test_the_cpu_is_the_default_and_keeps_its_digest():
    env = sim.make("reach", 1)
    assert isinstance(env.physics, RolloutPhysics) and env.spec.deterministic and env.spec.resumable
    assert sim.make("reach", 1, physics="rollout").spec.digest == env.spec.digest


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"physics": "wrap"}, "task.physics.*'wrap'"),
        ({"warp": {"device": "cpu"}}, r"task\.warp.*task\.physics=warp"),
        ({"physics": "warp", "randomization": {"mass": (0.5, 2.0)}}, r"task\.randomization.*sensor_noise"),
    ],
)
def test_options_that_do_not_fit(options, words):
    with pytest.raises(ConfigError, match=words):
        sim.make("reach", 1, **options)


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"robopolicy\[warp\]"):
        sim.make("reach", 1, physics="warp", warp=WarpOptions(device="cpu"))

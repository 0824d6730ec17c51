"""Demonstrations of a slow expert stay within a share of the action's limits, and succeed later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from robopolicy import sim
from robopolicy.core.errors import ConfigError
from robopolicy.datasets.demonstrations import record_demos
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.datasets.metadata import RecordingMeta
from robopolicy.sim.experts.slow import SlowExpert


def test_it_moves_slowly_and_closes_its_hand_as_ever(tmp_path: Path) -> None:
    env = sim.make("pick", 8)
    limits = torch.tensor(env.spec.action.high)
    for name, speed in (("fast", 1.0), ("slow", 0.5)):
        record_demos(env=env, expert=sim.make_expert(env, speed=speed), episodes=8, out=tmp_path / name)
    fast, slow = (load_episodes(tmp_path / name) for name in ("fast", "slow"))
    share = (slow.action.abs() / limits).amax(0)
    assert float(share[:4].max()) <= 0.5 + 1e-6 < float((fast.action.abs() / limits)[:, :4].max())
    assert float(share[4]) == 1.0
    assert slow.lengths.float().mean() > fast.lengths.float().mean()
    assert RecordingMeta.load(tmp_path / "slow").provenance["speed"] == 0.5


def test_actions_that_are_places_are_refused() -> None:
    env = sim.make("pick", 1)
    places = replace(env.spec.action, reference="absolute")
    with pytest.raises(ConfigError, match=r"expert\.speed: the task has absolute actions"):
        SlowExpert(env.make_expert(), places, 0.5)


@pytest.mark.parametrize("speed", [0.0, 1.5, -1.0])
def test_a_speed_that_is_no_share_is_refused(speed: float) -> None:
    with pytest.raises(ConfigError, match=r"expert\.speed: must be in \(0, 1\]"):
        sim.make_expert(sim.make("pick", 1), speed=speed)

"""Imitation of a dataset that holds failures."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from robopolicy.core.errors import DataError
from robopolicy.core.rng import episode_seeds
from robopolicy.datasets.episodes import Episodes, succeeded
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.training.offline import chosen_episodes
from robopolicy.world_models.evaluation.real_rollouts import record_rollouts
from tests.fakes import PointEnv, PointPolicy


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Episodes:
    """Twelve episodes of a poor policy, of which some succeed."""
    path: Path = tmp_path_factory.mktemp("mixed") / "data"
    record_rollouts(PointPolicy(noise=0.075), PointEnv(4), episode_seeds("validation", 0, 12), path, facts={})
    episodes = load_episodes(path)
    assert 0 < int(succeeded(episodes).sum()) < 12
    return episodes


def test_failures_are_imitated_with_a_warning(mixed: Episodes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    assert chosen_episodes(mixed, None) is mixed
    failed = 12 - int(succeeded(mixed).sum())
    assert f"{failed} of 12 episodes failed, and are imitated too. loop.only_success=true" in caplog.text
    caplog.clear()
    assert chosen_episodes(mixed, False) is mixed
    assert chosen_episodes(replace(mixed, success=torch.zeros_like(mixed.success)), None).num_episodes == 12
    assert not caplog.text  # all alike, or asked for


def test_successes_alone(mixed: Episodes) -> None:
    good = chosen_episodes(mixed, True)
    assert good.seeds.tolist() == mixed.seeds[succeeded(mixed)].tolist()
    assert bool(succeeded(good).all())


@pytest.mark.parametrize(("outcomes", "said"), [(True, "none of its 12 episodes"), (False, "does not say who")])
def test_data_without_a_success_is_refused_by_name(mixed: Episodes, outcomes: bool, said: str) -> None:
    empty = replace(mixed, success=torch.zeros_like(mixed.success), outcomes=outcomes)
    with pytest.raises(DataError, match=f"loop.only_success=true: .*{said}"):
        chosen_episodes(empty, True)

"""Imitation of a dataset that holds failures."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from robopolicy.algos.bc import BC
from robopolicy.core.errors import CheckpointError, ConfigError, DataError
from robopolicy.core.rng import episode_seeds
from robopolicy.core.types import TASK, Feature
from robopolicy.datasets.episodes import Episodes, succeeded
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.networks.mlp import MLP
from robopolicy.policies.gaussian import GaussianPolicy
from robopolicy.policies.normalizer import Normalizer
from robopolicy.training.offline import chosen_episodes, offline
from robopolicy.world_models.evaluation.real_rollouts import record_rollouts
from tests.fakes import MemoryCheckpoints, NoTracker, PointEnv, PointPolicy
from tests.toy import policy as toy_policy
from tests.toy import random_episodes, spec


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


def imitate(data: Episodes, checkpoints: MemoryCheckpoints, steps: int, **options: Any) -> None:
    algo = BC(toy_policy(GaussianPolicy, data, network=partial(MLP, width=8)), steps=2)
    offline(algo=algo, episodes=data, steps=steps, batch_size=8, seed=0, tracker=NoTracker(), checkpointer=checkpoints,
            **options)  # fmt: skip


def test_a_run_goes_on_with_its_own_data_alone() -> None:
    checkpoints = MemoryCheckpoints()
    imitate(random_episodes(frames=40), checkpoints, 1)
    with pytest.raises(CheckpointError, match=r"dataset, .*: 60 frames are learned from, and the run began with 40"):
        imitate(random_episodes(frames=60), checkpoints, 2)
    del checkpoints.saved[1]["recorded"]
    imitate(random_episodes(frames=60), checkpoints, 2)  # an older checkpoint


def test_a_share_of_no_rollouts_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"loop\.held_out=0\.2: .*loop\.rollouts"):
        imitate(random_episodes(frames=40), MemoryCheckpoints(), 1, held_out=0.2)


def test_the_tasks_of_a_dataset_are_numbered_as_the_policy_s(monkeypatch: pytest.MonkeyPatch) -> None:
    data = random_episodes(frames=40)
    data = replace(data, observation={**data.observation, TASK: Feature((), "int64")}, tasks=("push", "lift"),
                   obs={**data.obs, TASK: torch.zeros(40, dtype=torch.int64)})  # fmt: skip
    own = spec(observation=data.observation, tasks=("lift", "push"))
    algo = BC(GaussianPolicy(own, Normalizer(own.observation, own.action).fit(data)), steps=1)
    seen, update = list[torch.Tensor](), algo.update
    monkeypatch.setattr(algo, "update", lambda batch: (seen.append(batch[TASK]), update(batch))[1])
    offline(algo=algo, episodes=data, steps=1, batch_size=8, seed=0, tracker=NoTracker(),
            checkpointer=MemoryCheckpoints())  # fmt: skip
    assert bool((seen[0] == 1).all())

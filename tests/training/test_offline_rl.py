"""The loop offline_rl: which episodes it learns from, that it resumes, and which data it refuses."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from robopolicy.algos.aloe import ALOE
from robopolicy.algos.ogpo import OGPO
from robopolicy.algos.pa_rl import PARL
from robopolicy.buffers.chunk_replay_buffer import DEMONSTRATION, POLICY, ChunkReplay
from robopolicy.core.errors import CheckpointError, ConfigError, DataError, SpecError
from robopolicy.core.rng import episode_seeds
from robopolicy.datasets.episodes import held_out, take
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.networks.critics import CriticEnsemble
from robopolicy.training.offline_rl import offline_rl
from robopolicy.world_models.evaluation.real_rollouts import record_rollouts
from tests.algos.test_chunk_critic import policy_of, weights
from tests.fakes import MemoryCheckpoints, NoTracker, PointEnv, PointPolicy

CRITIC = partial(CriticEnsemble, heads=2, width=16)


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("rollouts"), gain=0.4, noise=0.03)


def record(folder: Path, *, gain: float, noise: float = 0.0, dt: float = 0.1) -> Path:
    policy, env = PointPolicy(gain=gain, noise=noise, chunk=3), PointEnv(8, horizon=8)
    policy.spec, env.spec = replace(policy.spec, dt=dt), replace(env.spec, dt=dt)
    record_rollouts(policy, env, episode_seeds("validation", 7, 24), folder, facts={})
    return folder


def train(
    path: Path | None, algo: Any = ALOE, *, saved: MemoryCheckpoints | None = None, **options: Any
) -> tuple[Any, Any, NoTracker, MemoryCheckpoints]:
    torch.manual_seed(0)
    made, tracker, saved = algo(policy_of(), critic=CRITIC, seed=1), NoTracker(), saved or MemoryCheckpoints()
    settings: dict[str, Any] = dict(
        steps=8, critic_only_updates=2, batch_size=16, demos=None, evaluate=None, log_every=4, held_out=0.25,
        rollouts={} if path is None else {"base": path}, replay=partial(ChunkReplay, capacity=100, gamma=0.95),
    )  # fmt: skip
    result = offline_rl(algo=made, tracker=tracker, checkpointer=saved, **{**settings, **options})
    return made, result, tracker, saved


@pytest.mark.parametrize("algo", [ALOE, OGPO, PARL])
def test_every_chunk_learner_changes_its_policy_after_the_critic_only_updates(algo: Any, rollouts: Path) -> None:
    only_critic, _, _, _ = train(rollouts, algo, steps=7, critic_only_updates=6)  # the seventh changes no policy
    first = weights(only_critic.learned)
    learned, result, tracker, _ = train(rollouts, algo, steps=24)
    assert torch.equal(first, weights(policy_of())) and not torch.equal(first, weights(learned.learned))
    assert result["steps"] == 24 and "critic/loss" in result
    assert [step for step, _ in tracker.rows] == [4, 8, 12, 16, 20, 24]


def seen(monkeypatch: pytest.MonkeyPatch, path: Path, **options: Any) -> list[Any]:
    """Batches of a short training."""
    batches: list[Any] = []

    def update(self: ALOE, batch: Any, *, learned_steps: int | None) -> dict[str, float]:
        batches.append((batch, learned_steps))
        return {}

    monkeypatch.setattr(ALOE, "update", update)
    monkeypatch.setattr(ALOE, "state_dict", lambda self: {})
    train(path, steps=40, **options)
    return batches


def test_held_out_episodes_and_env_steps_are_not_learned_from(rollouts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    episodes = load_episodes(rollouts)
    chosen = held_out(episodes, 0.25)
    assert bool(chosen.any())
    batches = seen(monkeypatch, rollouts)
    rewards = {float(b.reward.max()) for b, _ in batches}
    assert max(rewards) > 0.0
    assert [learned for _, learned in batches] == [None, None, *range(38)]
    executed = {tuple(a) for b, _ in batches for a in b.action[:, 0].tolist()}
    kept, left = (take(episodes, mask).action.tolist() for mask in (~chosen, chosen))
    assert executed <= {tuple(a) for a in kept} and not executed & {tuple(a) for a in left if a not in kept}


def test_demonstrations_have_their_share_of_every_batch(rollouts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demos = load_episodes(rollouts)
    for batch, _ in seen(monkeypatch, rollouts, demos=demos, demo_fraction=0.25):
        assert (batch.driver[:, 0] == DEMONSTRATION).sum() == 4 and (batch.driver[:, 0] == POLICY).sum() == 12


def test_it_evaluates_saves_the_best_and_resumes_to_the_same_bits(rollouts: Path) -> None:
    rates = iter([0.1, 0.2, 0.6, 0.4, 0.5])
    asked: list[int] = []

    def evaluate(policy: Any, step: int) -> dict[str, float]:
        asked.append(step)
        return {"success_rate": next(rates)}

    whole, result, _, saved = train(rollouts, steps=10, evaluate=evaluate, eval_every=3, save_every=5)
    assert asked == [0, 3, 6, 9, 10] and saved.best == [0, 3, 6] and result["success_rate"] == 0.5
    assert sorted(saved.saved) == [0, 3, 5, 6, 10]
    partly = MemoryCheckpoints()
    partly.saved[5] = saved.saved[5]
    again, _, _, _ = train(rollouts, steps=10, saved=partly)
    assert torch.equal(weights(whole.learned), weights(again.learned))
    with pytest.raises(CheckpointError, match=r"loop\.held_out"):
        train(rollouts, steps=10, saved=partly, held_out=0.1)


def test_data_that_teaches_nothing_is_refused_by_name(rollouts: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"loop\.rollouts: is empty"):
        train(None)
    with pytest.raises(ConfigError, match=r"loop\.critic_only_updates=8"):
        train(rollouts, critic_only_updates=8)
    with pytest.raises(ConfigError, match=r"loop\.demo_fraction=1\.0: a batch of \d+ holds no transition"):
        train(rollouts, demos=load_episodes(rollouts), demo_fraction=1.0)
    with pytest.raises(DataError, match=r"loop\.held_out=1 leaves none of 24 episodes"):
        train(rollouts, held_out=1.0, demos=load_episodes(rollouts))
    with pytest.raises(DataError, match=r"loop\.rollouts\.base=.*: none of .* succeeded"):
        train(record(tmp_path / "bad", gain=0.0))
    with pytest.raises(DataError, match=r"loop\.rollouts\.base=.*: none of .* failed"):
        train(record(tmp_path / "good", gain=1.0))
    with pytest.raises(SpecError, match=r"loop\.rollouts\.base=.*\n.*dt"):
        train(record(tmp_path / "slow", gain=0.4, noise=0.03, dt=0.5))

"""A policy as expert: its noise is keyed by the episode."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from robopolicy.core.rng import episode_seeds
from robopolicy.core.types import BASE_ACTION, Feature, Obs
from robopolicy.datasets.demonstrations import record_demos
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.datasets.metadata import RecordingMeta
from robopolicy.envs.chunk_executor import ChunkExecutor
from robopolicy.envs.wrap_for import wrap_for
from robopolicy.evaluation import policy_expert
from robopolicy.evaluation.policy_expert import PolicyExpert
from tests.fakes import PointEnv, PointPolicy

SEEDS = episode_seeds("train", 7, 6)


def expert(env: PointEnv, monkeypatch: pytest.MonkeyPatch, policy: PointPolicy, **kw: float) -> PolicyExpert:
    monkeypatch.setattr(policy_expert, "find_policy", lambda path: path)
    monkeypatch.setattr(policy_expert, "policy_digest", lambda path: f"sha256 of {path}")
    monkeypatch.setattr(policy_expert, "load_policy", lambda path, env: policy)
    return PolicyExpert(env, Path("somewhere"), **kw)  # type: ignore[arg-type]


def actions(
    seeds: Tensor, monkeypatch: pytest.MonkeyPatch, *, steps: int = 8, policy: PointPolicy | None = None, **kw: float
) -> Tensor:
    """[T N Da], over the ends of episodes."""
    env = PointEnv(len(seeds), horizon=5)
    shown = expert(env, monkeypatch, policy or PointPolicy(noise=0.05, n_obs_steps=2), **kw)
    obs = env.reset(seeds)
    shown.reset(None, episode_seed=env.episode_seed)
    out = []
    for _ in range(steps):
        out.append(shown.act(obs))
        step = env.step(out[-1])
        if step.ended.any():
            shown.reset(step.ended, episode_seed=env.episode_seed)
        obs = step.obs
    return torch.stack(out)


def test_a_recording_names_its_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = PointEnv(1, horizon=5)
    shown = expert(env, monkeypatch, PointPolicy())
    record_demos(env=env, expert=shown, episodes=1, out=tmp_path / "d", only_success=False)
    meta = RecordingMeta.load(tmp_path / "d")
    assert meta is not None and meta.provenance["policy_digest"] == "sha256 of somewhere"


def test_without_noise_it_is_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    env = PointEnv(3)
    obs = env.reset(SEEDS[:3])
    executor = ChunkExecutor(PointPolicy(noise=0.05, n_obs_steps=2), 3)
    stacked = {k: v[:, None].repeat_interleave(2, dim=1) for k, v in obs.items()}
    expected = executor.next_action(stacked, env.episode_seed)
    assert torch.equal(actions(SEEDS[:3], monkeypatch, steps=1)[0], expected)


def test_an_episode_does_not_know_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    together = actions(SEEDS, monkeypatch, steps=5, expert_noise=0.5)
    alone = actions(SEEDS[2:3], monkeypatch, steps=5, expert_noise=0.5)
    torch.testing.assert_close(together[:, 2:3], alone)


def test_episodes_have_levels_of_noise_up_to_expert_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    env = PointEnv(2_000)
    shown = expert(env, monkeypatch, PointPolicy(), expert_noise=0.5)
    shown.reset(None, episode_seed=episode_seeds("train", 1, 2_000))
    noise = shown._noise(2) / 0.1  # half widths of the limits
    # A uniform level times a normal number: variance 0.5² / 3.
    assert float(noise.std()) == pytest.approx(0.5 / 3**0.5, rel=0.05)
    assert torch.equal(shown._noise(2) / 0.1, noise), "keyed by seed and step"
    shown.clock += 1
    later = shown._noise(2) / 0.1
    assert 0.4 < float(torch.corrcoef(torch.stack([noise.flatten(), later.flatten()]))[0, 1]) < 0.6, "half lasts"


class Halved(PointPolicy):
    """Half of the action of its base, which draws noise and reads two frames."""

    def __init__(self) -> None:
        super().__init__(chunk=1)
        self.base = PointPolicy(noise=0.05, n_obs_steps=2)
        feature = Feature((2,), names=("dx", "dy"))
        self.spec = replace(self.spec, observation={**self.spec.observation, BASE_ACTION: feature})

    def act(self, obs: Obs, *, noise: Tensor | None = None, deterministic: bool = False) -> Tensor:
        return obs[BASE_ACTION][:, None] / 2


def test_a_refined_policy_acts_as_in_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    refined, found = Halved(), actions(SEEDS[:3], monkeypatch, steps=7, policy=Halved())
    env = wrap_for(refined, PointEnv(3, horizon=5))
    obs, executor, wanted = env.reset(SEEDS[:3]), ChunkExecutor(refined, 3), []
    for _ in range(7):  # over the end of episodes
        wanted.append(executor.next_action(obs, env.episode_seed))
        step = env.step(wanted[-1])
        executor.reset(step.ended)
        obs = step.obs
    assert torch.equal(found, torch.stack(wanted))


def test_an_env_that_names_nothing_is_recorded_with_the_meaning_of_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Gymnasium id says neither what its actions mean nor an instruction: a policy learns from its own episodes."""
    env, policy = PointEnv(2, horizon=5), PointPolicy()
    numbers = {"names": ("a0", "a1"), "units": ("1", "1"), "frame": "world", "tcp": "", "reference": "absolute"}
    env.spec = replace(env.spec, id="Point-v0", tasks=("Point-v0",), action=replace(env.spec.action, **numbers))
    shown = expert(env, monkeypatch, policy)
    record_demos(env=env, expert=shown, episodes=3, out=tmp_path / "own", only_success=False)
    found = load_episodes(tmp_path / "own")
    assert found.action_spec == policy.spec.action
    assert found.tasks == policy.spec.tasks

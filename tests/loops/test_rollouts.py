"""loop.rollouts: recorded episodes of several datasets supply their share of every batch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from robopolicy.algos.residual import ResidualTD3
from robopolicy.data.lerobot import load_episodes
from robopolicy.data.replay import Replay
from robopolicy.errors import ConfigError, SpecError
from robopolicy.loops.off_policy import off_policy
from robopolicy.networks.critics import CriticEnsemble
from robopolicy.noise import episode_seeds
from robopolicy.normalize import Normalizer
from robopolicy.policies.residual import ResidualPolicy
from robopolicy.types import STATE
from robopolicy.wrappers import wrap_for
from tests.fakes import POINT_ACTION, MemoryCheckpoints, NoTracker, PointEnv, PointPolicy
from world_models.rollouts import record_rollouts


def record(folder: Path, first: int, *, dt: float = 0.1) -> set[float]:
    """Three episodes of the point; the numbers that its states have of them."""
    seeds, policy, env = episode_seeds("validation", 7, 3, start=first), PointPolicy(gain=0.6), PointEnv(3)
    policy.spec, env.spec = replace(policy.spec, dt=dt), replace(env.spec, dt=dt)
    record_rollouts(policy, env, seeds, folder, facts={})
    return set((seeds % 1000).float().tolist())


def batches(monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[torch.Tensor]:
    """Episode numbers [B] of every batch of a short training, demonstrations from episode 100 on."""
    seen = []

    def update(self: ResidualTD3, batch: Any, *, learned_steps: Any) -> dict[str, float]:
        seen.append(batch.obs[STATE][:, 2])
        return {}

    monkeypatch.setattr(ResidualTD3, "update", update)
    base = PointPolicy(gain=0.45)
    policy = ResidualPolicy(base.spec, Normalizer.from_limits(base.spec.observation, POINT_ACTION), base, hidden=(8,))
    off_policy(
        algo=ResidualTD3(policy, critic=partial(CriticEnsemble, heads=2, width=16)), env=wrap_for(policy, PointEnv(4)),
        replay=partial(Replay, capacity=400, n_step=3, gamma=0.95), tracker=NoTracker(), batch_size=16,
        checkpointer=MemoryCheckpoints(), evaluate=None, total_steps=80, warmup_steps=40, critic_only_updates=20,
        updates_per_step=0.5, **options,
    )  # fmt: skip
    return seen


def test_every_batch_has_its_share_of_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, demos = record(tmp_path / "a", 0), record(tmp_path / "b", 10), record(tmp_path / "demos", 20)
    given = {"a": tmp_path / "a", "b": tmp_path / "b"}
    found = batches(monkeypatch, demos=load_episodes(tmp_path / "demos"), demo_fraction=0.5, rollouts=given)
    counts = [[sum(float(x) in of for x in numbers) for of in (demos, a | b, a, b)] for numbers in found]
    assert len(found) >= 20 and all(c[:2] == [8, 4] for c in counts), "half of 16, and a quarter"
    assert sum(c[2] for c in counts) > 0 and sum(c[3] for c in counts) > 0, "of both datasets"
    found = batches(monkeypatch, demos=None, rollouts=given, rollout_fraction=0.5)
    assert all(sum(float(x) in a | b for x in numbers) == 8 for numbers in found), "without demonstrations too"


def test_fractions_of_more_than_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "a", 0)
    demos, given = load_episodes(tmp_path / "a"), {"a": tmp_path / "a"}
    with pytest.raises(ConfigError, match=r"loop\.demo_fraction=0\.8 and loop\.rollout_fraction=0\.25: are more than"):
        batches(monkeypatch, demos=demos, demo_fraction=0.8, rollouts=given)
    assert batches(monkeypatch, demos=demos, demo_fraction=0.8), "which counts for nothing where there are none"


def test_rollouts_of_another_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "a", 0, dt=0.2)
    with pytest.raises(SpecError, match=r"dt: the policy is for 0\.1 s a step, loop\.rollouts\.a has 0\.2 s"):
        batches(monkeypatch, demos=None, rollouts={"a": tmp_path / "a"})

"""loop.rollouts: recorded episodes of several datasets supply their share of every batch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from robopolicy.algos.residual import ResidualTD3
from robopolicy.buffers import recorded_rollouts
from robopolicy.buffers.replay_buffer import Replay
from robopolicy.core.errors import CheckpointError, ConfigError, DataError, SpecError
from robopolicy.core.rng import episode_seeds
from robopolicy.core.types import STATE, Feature
from robopolicy.datasets.episodes import Episodes, held_out, succeeded
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.envs.wrap_for import wrap_for
from robopolicy.networks.critics import CriticEnsemble
from robopolicy.policies.normalizer import Normalizer
from robopolicy.policies.residual import ResidualPolicy
from robopolicy.training.off_policy import off_policy
from robopolicy.world_models.evaluation.real_rollouts import record_rollouts
from tests.fakes import POINT_ACTION, MemoryCheckpoints, NoTracker, PointEnv, PointPolicy


def record(folder: Path, first: int, *, dt: float = 0.1) -> set[float]:
    """Three episodes of the point; the numbers that its states have of them."""
    seeds, policy, env = episode_seeds("validation", 7, 3, start=first), PointPolicy(gain=0.6), PointEnv(3)
    policy.spec, env.spec = replace(policy.spec, dt=dt), replace(env.spec, dt=dt)
    record_rollouts(policy, env, seeds, folder, facts={})
    return set((seeds % 1000).float().tolist())


def batches(
    monkeypatch: pytest.MonkeyPatch, *, saved: MemoryCheckpoints | None = None, total_steps: int = 80, **options: Any
) -> list[torch.Tensor]:
    """Episode numbers [B] of every batch of a short training."""
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
        checkpointer=saved or MemoryCheckpoints(), evaluate=None, total_steps=total_steps, warmup_steps=40,
        critic_only_updates=20, updates_per_step=0.5, **options,
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


def test_other_rollouts_than_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "a", 0), record(tmp_path / "b", 10)
    saved, one, other = MemoryCheckpoints(), {"a": tmp_path / "a"}, {"a": tmp_path / "b"}
    batches(monkeypatch, saved=saved, demos=None, rollouts=one)
    with pytest.raises(CheckpointError, match=r"hold \[\d+\] frames, those that the run began with held \["):
        batches(monkeypatch, saved=saved, total_steps=120, demos=None, rollouts=other)
    assert batches(monkeypatch, saved=saved, total_steps=120, demos=None, rollouts=one), "goes on with the same"


def test_fractions_of_more_than_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "a", 0)
    demos, given = load_episodes(tmp_path / "a"), {"a": tmp_path / "a"}
    with pytest.raises(
        ConfigError, match=r"demo_fraction=0\.8 and loop\.rollout_fraction=0\.25 are .* batch of 16\. Lower"
    ):
        batches(monkeypatch, demos=demos, demo_fraction=0.8, rollouts=given)
    assert batches(monkeypatch, demos=demos, demo_fraction=0.8), "which counts for nothing where there are none"


def test_rollouts_of_another_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "a", 0, dt=0.2)
    with pytest.raises(SpecError, match=r"rollouts\.a=.*\n  - dt: the policy has a step every 0\.1 s, the dataset"):
        batches(monkeypatch, demos=None, rollouts={"a": tmp_path / "a"})


def episodes_of(monkeypatch: pytest.MonkeyPatch, folder: Path, **changes: Any) -> list[Any]:
    """What load_rollouts asks for; "b" of {"a", "b"} has these `changes`."""
    record(folder, 0)
    whole, asked = load_episodes(folder), list[Any]()

    def load(path: Path, *, needed: Any) -> Episodes:
        asked.append(sorted(needed))
        return replace(whole, **(changes if path == Path("b") else {}))

    monkeypatch.setattr(recorded_rollouts, "load_episodes", load)
    return asked


def test_rollouts_that_cannot_be_learned_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, policy = {"a": Path("a"), "b": Path("b")}, PointPolicy()
    episodes_of(monkeypatch, tmp_path / "x", outcomes=False)
    with pytest.raises(DataError, match=r"loop\.rollouts\.b=b: has neither rewards nor successes.*next\.success"):
        recorded_rollouts.load_rollouts(given, policy)
    episodes_of(monkeypatch, tmp_path / "y", tasks=("dance",))
    with pytest.raises(SpecError, match=r"loop\.rollouts\.b=b does not fit:\n  - tasks: a has .*origin.*dance"):
        recorded_rollouts.load_rollouts(given, policy)


def test_who_drove_is_a_policy_unless_somebody_says_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "n", 0)
    human = torch.ones(load_episodes(tmp_path / "n").num_frames, dtype=torch.int64)
    episodes_of(monkeypatch, tmp_path / "x", driver=human)
    found = recorded_rollouts.load_rollouts({"a": Path("a"), "b": Path("b")}, PointPolicy())
    assert found.num_episodes == 6 and found.driver is not None
    assert found.driver.tolist() == [0] * len(human) + [1] * len(human)


def test_what_the_base_reads_is_loaded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A residual that reads the state on a base that reads more."""
    asked, base = episodes_of(monkeypatch, tmp_path / "x"), PointPolicy()
    picture = {"observation.images.front": Feature((3, 8, 8), dtype="uint8")}
    base.spec = replace(base.spec, observation={**base.spec.observation, **picture})
    policy = PointPolicy()
    object.__setattr__(policy, "base", base)
    with pytest.raises(SpecError, match=r"observation\.images\.front"):
        recorded_rollouts.load_rollouts({"a": Path("a")}, policy)
    assert asked == [["observation.images.front", STATE]]


def test_imitation_adds_the_successes_that_are_not_held_out(tmp_path: Path) -> None:
    record(tmp_path / "demos", 0)
    record(tmp_path / "own", 10)
    policy = PointPolicy(gain=0.6)
    demos, own = (load_episodes(tmp_path / name) for name in ("demos", "own"))
    datasets = {"own": tmp_path / "own"}
    whole = recorded_rollouts.with_successes(demos, datasets, policy, 0.0)
    good = succeeded(own)
    assert bool(good.any()) and whole.num_episodes == demos.num_episodes + int(good.sum())
    assert whole.seeds.tolist() == [*demos.seeds.tolist(), *own.seeds[good].tolist()]
    share = 0.5
    left = good & ~held_out(own, share)
    if bool(left.any()):
        some = recorded_rollouts.with_successes(demos, datasets, policy, share)
        assert some.num_episodes == demos.num_episodes + int(left.sum()) < whole.num_episodes
    with pytest.raises(DataError, match=r"loop\.rollouts\.own=.*none of the 3 episodes"):
        recorded_rollouts.with_successes(demos, datasets, policy, 1.0)
    with pytest.raises(SpecError, match="tasks: "):
        recorded_rollouts.with_successes(replace(demos, tasks=("another",)), datasets, policy, 0.0)

"""The gate on episodes whose values are known by hand: one chunk each, which succeeds where it goes right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from robopolicy.core.errors import ConfigError, DataError, SpecError
from robopolicy.core.types import STATE
from robopolicy.datasets.episodes import Episodes, held_out, take
from robopolicy.evaluation.gate_checks import FEWEST
from robopolicy.evaluation.off_policy_evaluation import (
    Fitted,
    GateResult,
    decided,
    fitted_values,
    gate,
    updates_needed,
)
from robopolicy.policies.base import Policy
from tests.algos.test_dppo import base
from tests.fakes import POINT_ACTION, PointEnv, PointPolicy

QUICK: dict[str, Any] = {"updates": 240, "heads": 6}


def one_chunk(count: int = 200, *, length: int = 3) -> Episodes:
    """Episodes of one chunk with x = ±0.05; half of them go right, and 9 of 10 of these succeed, 1 of 10 others."""
    generator = torch.Generator().manual_seed(3)
    right = torch.arange(count) % 2 == 0
    lucky = torch.rand(count, generator=generator) < 0.1
    success = right ^ lucky
    action = torch.zeros(count, length, 2)
    action[..., 0] = torch.where(right, 0.05, -0.05)[:, None]
    last = (torch.arange(length) == length - 1).expand(count, length)
    ended = (last & success[:, None]).flatten()
    state = torch.zeros(count * length, 4)
    state[:, :2] = torch.rand(count * length, 2, generator=generator) - 0.5
    spec = PointEnv(1).spec
    return Episodes(
        {STATE: state}, action.flatten(0, 1), ended.float(), last.flatten(), ended,
        torch.arange(count + 1) * length, torch.arange(count), spec.observation, POINT_ACTION, spec.dt, spec.tasks,
    )  # fmt: skip


def going(x: float, noise: float = 0.0) -> Any:
    """A policy whose chunks go along x, whatever it sees."""
    policy = base("flow")

    def act(obs: dict[str, Tensor], *, noise_: Tensor | None = None, deterministic: bool = False) -> Tensor:
        chunk = torch.zeros(len(obs[STATE]), policy.spec.horizon, 2)
        chunk[..., 0] = x + noise * torch.randn(len(chunk), 1)
        return chunk

    object.__setattr__(policy, "act", act)
    return policy


class Shown:
    """Keeps {description: (total, last step)} of progress bars."""

    def __init__(self) -> None:
        self.bars = dict[str, tuple[int, int]]()

    @contextmanager
    def progress(self, total: int, description: str) -> Iterator[Any]:
        def update(step: int, **numbers: float) -> None:
            self.bars[description] = total, step

        yield SimpleNamespace(update=update)


def test_a_better_candidate_is_accepted_with_the_gain_that_the_data_shows() -> None:
    shown = Shown()
    result = gate(going(0.05), going(-0.05), one_chunk(), **QUICK, tracker=shown)
    assert result.accepted and result.episodes == 200
    assert shown.bars == {f"{who}: {what}": (count, count) for who in ("candidate", "base")
                          for what, count in (("actions", 2 * 600), ("value", 240))}  # fmt: skip
    assert result.low < result.gain < result.high
    assert result.gain == pytest.approx(0.8 * 0.98**2, abs=0.12)  # two steps of γ = 0.98 before the reward


def test_updates_suffice_for_the_longest_success() -> None:
    """A reward passes one chunk on in 1/τ = 50 updates: 20 chunks and some to spare for their spread."""
    shown, long = Shown(), one_chunk(24, length=60)
    played = base("flow").spec.n_action_steps
    needed = updates_needed(long, played)
    assert played == 3 and needed == 1671 and updates_needed(one_chunk(), played) == 200
    gate(going(0.05), going(-0.05), long, heads=2, updates=240, tracker=shown)
    assert shown.bars["candidate: value"][0] >= needed
    failed = replace(long, success=torch.zeros_like(long.success))
    assert updates_needed(failed, played) == 0


def test_a_worse_candidate_and_an_equal_one_are_refused() -> None:
    worse = gate(going(-0.05), going(0.05), one_chunk(), **QUICK)
    assert not worse.accepted and worse.high < 0.0
    equal = gate(going(0.05, 0.02), going(0.05, 0.02), one_chunk(), **QUICK)
    assert equal == GateResult(False, 0.0, 0.0, 0.0, 0.9, 200)


def test_a_candidate_whose_chunks_no_episode_shows_is_refused() -> None:
    """However good its value looks: Q knows nothing of such chunks."""
    near, far = Fitted(torch.tensor([0.6, 0.7]), 0.5), Fitted(torch.tensor([0.6, 0.7]), 0.9)
    before = Fitted(torch.tensor([0.1, 0.2]), 0.3)
    assert decided(near, before, level=0.9, episodes=50).accepted
    refused = decided(far, before, level=0.9, episodes=50)
    assert not refused.accepted and refused.low > 0.0 and refused.distance == pytest.approx(3.0)
    assert decided(Fitted(near.values, 0.15), before._replace(distance=0.0), level=0.9, episodes=50).accepted


def test_the_distance_is_to_what_was_played_next_in_the_same_episode() -> None:
    """Half of the episodes go as the first policy does, all go half as far from the one that stands still."""
    one, still = (
        fitted_values(going(x), base("flow"), one_chunk(), seed=0, heads=2, updates=8).distance for x in (0.05, 0.0)
    )
    assert one == pytest.approx(2**0.5 * still)
    result = gate(going(0.05), going(0.0), one_chunk(), **QUICK)
    assert result.distance == pytest.approx(2**0.5) and result.accepted


def test_fewer_episodes_and_a_higher_level_widen_the_bounds() -> None:
    policies = going(0.05), going(0.0)
    wide, narrow = (gate(*policies, one_chunk(count), **QUICK) for count in (20, 200))
    assert wide.high - wide.low > 1.3 * (narrow.high - narrow.low)
    sure = gate(*policies, one_chunk(200), level=0.99, **QUICK)
    assert sure.gain == narrow.gain and sure.low < narrow.low


def test_the_decision_is_a_function_of_its_seed_and_leaves_the_global_one() -> None:
    policies, before = (going(0.05, 0.02), going(0.0, 0.02)), torch.random.get_rng_state()
    one, again, other = (gate(*policies, one_chunk(40), seed=seed, **QUICK) for seed in (1, 1, 2))
    assert one == again != other
    assert torch.equal(torch.random.get_rng_state(), before)


def test_episodes_that_cannot_decide_are_refused() -> None:
    episodes, policies = one_chunk(), (going(0.05), going(0.0))
    few = take(episodes, torch.arange(200) < FEWEST - 1)
    good, bad = (take(episodes, episodes.success[2::3] == outcome) for outcome in (True, False))
    for some, words in ((few, f"at least {FEWEST}"), (good, "all .* succeeded"), (bad, "all .* failed")):
        with pytest.raises(DataError, match=words):
            gate(*policies, some)
    with pytest.raises(DataError, match="neither rewards nor successes"):
        gate(*policies, replace(episodes, outcomes=False))
    with pytest.raises(ConfigError, match=r"level=1\.0"):
        gate(*policies, episodes, level=1.0)


def test_policies_that_cannot_be_judged_are_refused() -> None:
    episodes = one_chunk()
    with pytest.raises(SpecError, match=r"does not fit the dataset:.*\n.*dt"):
        gate(going(0.05), going(0.0), replace(episodes, dt=0.5))
    with pytest.raises(SpecError, match="base: expected a diffusion"):
        gate(going(0.05), PointPolicy(chunk=3), episodes)
    longer: Policy = going(0.05)
    longer.spec = replace(longer.spec, n_action_steps=longer.spec.n_action_steps - 1)
    with pytest.raises(SpecError, match="executes"):
        gate(longer, going(0.0), episodes)
    longer.base, longer.spec = going(0.0), going(0.0).spec
    with pytest.raises(SpecError, match="refines another"):
        gate(longer, going(0.0), episodes)


def test_the_same_start_is_held_out_in_every_dataset() -> None:
    episodes = one_chunk()
    chosen = held_out(episodes, 0.25)
    assert 30 < int(chosen.sum()) < 70
    assert bool((held_out(episodes, 0.5) | ~chosen).all())  # a larger share holds a smaller one
    half = torch.arange(200) >= 100
    assert torch.equal(held_out(take(episodes, half), 0.25), chosen[half])
    driven = take(replace(episodes, driver=episodes.episode_of), half).driver
    assert driven is not None and torch.equal(driven, torch.arange(100, 200).repeat_interleave(3))
    assert bool(held_out(episodes, 1.0).all()) and not bool(held_out(episodes, 0.0).any())

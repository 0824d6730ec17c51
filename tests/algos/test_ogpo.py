"""OGPO on a point: groups and their advantages by hand, the anchor, what changes, and that it learns."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from robopolicy.algos import chunk_checks, ogpo
from robopolicy.algos.ogpo import OGPO
from robopolicy.buffers.chunk_replay_buffer import DEMONSTRATION, REWIND
from robopolicy.core.errors import ConfigError
from robopolicy.policies.base import SEEN
from robopolicy.policies.denoising_chain import FloorNoise, LearnedNoise
from tests.algos.test_chunk_critic import batch_of, imitated, resumed, success, train, weights
from tests.algos.test_chunk_critic import make as make_learner

KINDS = ["ddpm", "ddim", "still", "flow", "flow_sde"]
NOISE = partial(FloorNoise, floor=0.1)


def make(kind: str = "flow", **options: Any) -> OGPO:
    return make_learner(OGPO, kind, **{"policy_delay": 1, "noise": NOISE, "actor_warmup": 0, **options})


def right(algo: OGPO) -> None:
    """Let every head value the first action of a chunk, so that all agree."""
    algo.q = lambda cond, chunk: (chunk[..., 0, 0] if chunk.ndim == 4 else chunk[:, 0, 0])[None].expand(
        3, *chunk.shape[:-2]
    )


@torch.no_grad()
def first_action(algo: OGPO, cond: Tensor) -> float:
    torch.manual_seed(5)
    noise = torch.randn(len(cond), *algo.learned.noise_shape)
    return float(algo.learned.sample(cond, noise=noise)[:, 0, 0].mean())


# -- groups ------------------------------------------------------------------------------------------------------------


def test_advantages_by_hand():
    algo = make(confidence=0.5)
    gain = torch.tensor([[[1.0, 0.0, 3.0]], [[3.0, 0.0, 1.0]]])  # two heads, one state, three chains
    found, counted = algo.advantage(gain)
    # Means 2, 0, 2; deviations 1, 0, 1; scores 1.5, 0, 1.5 over their mean 1; mean |mean − 4/3| of the heads is 8/9.
    torch.testing.assert_close(found, torch.tensor([[0.5, -1.0, 0.5]]) / (8 / 9))
    # Head 1: −1/3, −4/3, 5/3. Head 2: 5/3, −4/3, −1/3.
    assert counted.tolist() == [[False, True, False]]
    algo.agreement = False
    assert algo.advantage(gain)[1].all()


def test_the_size_of_advantages_is_a_running_mean():
    algo = make()
    for gap in (1.0, 3.0):
        algo.advantage(torch.tensor([[[0.0, gap]]]))
    assert algo.size == pytest.approx(0.5 + 0.05 * (1.5 - 0.5))


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_shares_the_frozen_steps_and_its_log_probs_are_those_of_its_draw(kind: str):
    algo = make(kind, chains=3)  # K' = S = 5: nothing is frozen
    algo.policy.finetuned_steps = algo.learned.finetuned_steps = algo.objective.steps = 2
    algo.objective.clip, algo.objective.discount = algo.objective.clip[-2:], algo.objective.discount[-2:]
    samples, _, _ = algo.draw(torch.randn(7, algo.policy.cond_dim))
    first = samples.x.unflatten(0, (7, 3, 3))[:, :, 0]  # [B G H Da]
    assert torch.equal(first, first[:, :1].expand_as(first)) and float(first.std(0).mean()) > 0.1
    algo.objective.clip = torch.full((2,), 1e-4)
    _, stats = algo.objective.loss(samples, torch.arange(len(samples.log_prob)))
    assert float(stats[1]) == 0.0, "of no sample is the ratio further from 1 than the bound"


@pytest.mark.parametrize("kind", KINDS)
def test_the_base_s_chunk_is_the_frozen_network_s(kind: str):
    algo = make(kind)
    cond, noise = torch.randn(6, algo.policy.cond_dim), torch.zeros(6, *algo.policy.chain_noise_shape)
    want = algo.learned.sample_chain(cond, noise=noise, spread=algo.objective.noise).x[:, -1].clamp(algo.low, algo.high)
    for parameter in algo.learned.finetuned_parameters():
        parameter.data.add_(0.1)
    start = algo.learned.begin_chain(cond, noise=noise)
    torch.testing.assert_close(algo.base_chunk(cond, start), want)


# -- the update --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_it_climbs_the_critic(kind: str):
    algo = make(kind, imitation=0.0, actor_lr=1e-3, average=0.5)
    right(algo)
    batch = batch_of(algo.policy, 64)
    before, algo.objective.anchor = first_action(algo, batch.obs[SEEN]), 0.0
    for _ in range(10):
        algo.update_policy(batch)
    assert first_action(algo, batch.obs[SEEN]) > before + 0.02


def test_heads_that_disagree_about_every_chain_change_nothing():
    algo = make(actor_lr=1e-2)
    algo.q = lambda cond, chunk: torch.tensor([1.0, -1.0]).view(2, *[1] * (chunk.ndim - 2)) * chunk[..., 0, 0]
    before = weights(algo.learned)
    batch = batch_of(algo.policy, driver=DEMONSTRATION)
    metrics = algo.update_policy(batch)
    assert metrics["actor/agreement"] == 0.0 and torch.equal(before, weights(algo.learned))


def test_chains_that_do_not_count_are_not_learned_from():
    algo, ratios = make(imitation=0.0), []
    right(algo)
    real, loss = algo.advantage, algo.objective.loss
    counts = torch.zeros(16, 4, dtype=torch.bool)
    counts[3, 1] = counts[9, 0] = True
    algo.advantage = lambda gain: (real(gain)[0], counts)
    algo.objective.loss = lambda samples, rows: ratios.append(rows) or loss(samples, rows)
    algo.update_policy(batch_of(algo.policy))
    want = sorted(k + 5 * chain for chain in (3 * 4 + 1, 9 * 4) for k in range(5))
    assert len(ratios) == 4 and all(sorted(rows.tolist()) == want for rows in ratios)


def test_the_critic_s_target_takes_a_chunk_of_the_policy_that_acts():
    algo, found = make(average=0.1), []
    batch = batch_of(algo.policy)
    state = algo.generator.get_state()
    want = algo.sample(batch.next_obs[SEEN], 1)[:, 0]
    algo.generator.set_state(state)
    for parameter in algo.learned.finetuned_parameters():
        parameter.data.add_(0.1)
    algo.target = lambda seen, chunk, heads: found.append(chunk) or torch.zeros(len(heads), len(chunk))
    algo.update(batch, learned_steps=None)
    assert torch.equal(found[0], want[:, : algo.played].flatten(1))


@pytest.mark.parametrize(("anchor", "learned", "want"), [(1.0, 0, 1.0), (1.0, 50, 0.1), (1.0, 900, 0.01), (0.0, 50, 0)])
def test_the_anchor_s_weight_falls_geometrically(anchor: float, learned: int, want: float):
    algo = make(anchor=anchor, anchor_final=0.01, anchor_steps=100)
    metrics = algo.update(batch_of(algo.policy), learned_steps=learned)
    assert metrics["actor/anchor"] == pytest.approx(want)


def test_a_strong_anchor_keeps_the_policy_near_its_base():
    moved = []
    for anchor in (0.0, 30.0):
        algo = make(imitation=0.0, actor_lr=1e-3)
        right(algo)
        batch = batch_of(algo.policy, 64)
        before = first_action(algo, batch.obs[SEEN])
        algo.objective.anchor = anchor
        for _ in range(20):
            algo.update_policy(batch)
        moved.append(first_action(algo, batch.obs[SEEN]) - before)
    assert moved[0] > 4 * abs(moved[1]), moved


def test_only_successes_and_demonstrations_are_imitated():
    algo, found = make(), []
    right(algo)
    algo.imitation_loss = lambda cond, chunk, weight, of_chunk: (
        found.append(weight) or weight.sum() * next(iter(algo.learned.finetuned_parameters())).sum()
    )
    batch = batch_of(algo.policy, 4, steps=3)
    batch = batch._replace(
        success=torch.tensor([True, False, False, True]),
        driver=torch.tensor([[0] * 4, [0] * 4, [DEMONSTRATION] * 4, [REWIND] * 4]),
    )
    algo.update_policy(batch)
    assert sorted(found[0].tolist()) == [[0] * 4, [0] * 4, [1, 1, 1, 0], [1, 1, 1, 0]]
    assert algo.good(batch).tolist() == [[True] * 3 + [False], [False] * 4, [True] * 3 + [False], [False] * 4]


@pytest.mark.parametrize("kind", KINDS)
def test_before_learning_it_is_the_base_and_its_average_acts(kind: str):
    algo = make(kind, average=0.1, actor_lr=1e-3)
    began = weights(algo.policy)
    algo.update(batch_of(algo.policy), learned_steps=None)
    assert torch.equal(began, weights(algo.policy)), "a critic-only update"
    right(algo)
    algo.update_policy(batch_of(algo.policy))
    acting, learned = weights(algo.policy) - began, weights(algo.learned) - began
    assert 0.0 < float(acting.norm()) < float(learned.norm())
    assert all(a is b for a, b in zip(algo.policy.network.parameters(), algo.learned.network.parameters(), strict=True))


def test_resume_gives_the_same_run_bit_for_bit():
    algo, other = resumed(lambda: make(average=0.1, actor_warmup=20))
    assert algo.size == other.size > 0.0


def test_it_improves_a_base():
    algo = make(source=imitated("flow"), actor_lr=1e-3, critic_lr=3e-3, average=0.05, actor_warmup=20,
                anchor_steps=600, confidence=0.5, policy_delay=2)  # fmt: skip
    before = success(algo.policy)
    train(algo, total_steps=2_000, warmup_steps=600, critic_only_updates=60, updates_per_step=0.1, batch_size=64)
    after = success(algo.policy)
    assert before < 0.6 and after > before + 0.2, (before, after)


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match=r"algo\.chains"):
        make(chains=1)
    with pytest.raises(ConfigError, match=r"algo\.noise"):
        make(noise=LearnedNoise)
    with pytest.raises(ConfigError, match=r"algo\.noise\.floor"):
        make("still", noise=partial(FloorNoise, floor=0.0))


@pytest.mark.parametrize(
    ("fault", "named"), [("short", "n_action_steps"), ("disagree", "actor/agreement"), ("chance", "actor/agreement")]
)
def test_data_and_critics_that_teach_nothing_are_named_once(
    fault: str, named: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(chunk_checks, "_SEEN", 3)
    monkeypatch.setattr(ogpo, "_DRAWS", 3)
    algo = make()
    batch = batch_of(algo.policy, steps=2 if fault == "short" else 4)
    batch = batch._replace(reward=torch.rand(16))
    algo.checks.disagreement, algo.checks.see = 0.0, lambda batch, q: see(batch, torch.arange(16.0).expand(3, 16))
    see = chunk_checks.ChunkChecks.see.__get__(algo.checks)
    share = {"disagree": 0.0, "chance": 0.25}.get(fault, 1.0)  # of three heads a quarter agrees by chance
    real = algo.advantage
    algo.advantage = lambda gain: (real(gain)[0], torch.arange(64).view(16, 4) < 64 * share)
    with caplog.at_level(logging.WARNING):
        for _ in range(8):
            algo.update(batch, learned_steps=0)
    assert len(caplog.records) == 1 and named in caplog.text

"""EXPO on a point: what edits climb, whose critic acts, warm-up and exploration, resuming, and that it learns."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from robopolicy.algos.expo import EXPO
from robopolicy.core.errors import ConfigError, RobopolicyError, SpecError
from robopolicy.policies.base import SEEN
from tests.algos.test_chunk_critic import batch_of, imitated, policy_of, resumed, success, train, weights
from tests.policies.test_edited import edited_of
from tests.policies.test_steered import KINDS


def make(kind: str = "flow", policy: dict[str, Any] | None = None, **options: Any) -> EXPO:
    torch.manual_seed(0)
    return EXPO(edited_of(kind, **(policy or {})), **{"policy_delay": 1, "actor_warmup": 0, **options})


def test_edits_climb_the_gain_less_the_heads_deviation():
    moved = {}
    for confidence in (0.0, 1.0):
        algo = make(confidence=confidence, actor_lr=1e-2, average=1.0)
        # The heads agree about the first number of the first action, and disagree about the second.
        algo.q = lambda cond, c: torch.stack([c[:, 0, 0] + 3.0 * c[:, 0, 1], c[:, 0, 0] - 2.0 * c[:, 0, 1]])
        cond = torch.randn(64, algo.policy.cond_dim)
        for _ in range(80):
            metrics = algo.update_edits(cond, 0.0)
        with torch.no_grad():
            moved[confidence] = algo.policy.edits(cond, torch.randn(64, 4, 2)).mean(0)[0] / algo.policy.bound
        assert float(moved[confidence][0]) > 0.5 and metrics["actor/gain"] > 0.05
    assert float(moved[0.0][1]) > 0.5 and abs(float(moved[1.0][1])) < 0.3, moved


def test_the_loss_by_hand():
    algo, found = make(confidence=0.5), []
    algo._step_actor = lambda loss: found.append(float(loss.detach())) or torch.zeros(())
    algo.learned.edits = lambda cond, chunk: torch.full((2, algo.played, 2), 0.1)
    algo.q = lambda cond, chunk: torch.tensor([[1.0], [3.0]]) * chunk[:, : algo.played].sum((1, 2))
    algo.update_edits(torch.zeros(2, algo.policy.cond_dim), 0.3)
    gap = 0.1 * algo.played * 2  # heads: 1 and 3 times this; mean 2, deviation 1
    assert found[0] == pytest.approx(0.3 * (0.1 / algo.policy.bound) ** 2 - (2.0 * gap - 0.5 * gap), rel=1e-4)


def test_a_strong_penalty_keeps_the_policy_near_its_base():
    sizes = []
    for penalty in (0.0, 30.0):
        algo = make(actor_lr=1e-2)
        algo.q = lambda cond, c: c[None, :, 0, 0].expand(3, -1)
        for _ in range(60):
            metrics = algo.update_edits(torch.randn(64, algo.policy.cond_dim), penalty)
        sizes.append(metrics["actor/edit"])
    assert sizes[0] > 4 * sizes[1], sizes


@pytest.mark.parametrize("kind", KINDS)
def test_the_frozen_base_stays_the_edits_average_acts_and_the_target_critic_chooses(kind: str):
    algo = make(kind, average=0.1, actor_lr=1e-3)
    began = {n: p.clone() for n, p in algo.policy.named_parameters()}
    algo.update(batch_of(algo.policy), learned_steps=None)
    moved = {n for n, p in algo.policy.named_parameters() if not torch.equal(p, began[n])}
    assert moved and all(n.startswith("critic.") for n in moved), "a critic-only update"
    algo.update(batch_of(algo.policy), learned_steps=0)
    algo.update(batch_of(algo.policy), learned_steps=0)
    moved = {n for n, p in algo.policy.named_parameters() if not torch.equal(p, began[n])}
    assert {n.split(".")[0] for n in moved} == {"critic", "net"}
    assert torch.equal(weights(algo.target), weights(algo.policy.critic))
    assert not torch.equal(weights(algo.critic), weights(algo.policy.critic)), "it follows the one that learns"
    acting = dict(algo.policy.net.named_parameters())
    for name, learned in algo.learned.net.named_parameters():
        assert (acting[name] - began[f"net.{name}"]).abs().sum() <= (learned - began[f"net.{name}"]).abs().sum()


def test_the_warm_up_plays_the_base_and_learning_adds_noise():
    algo = make(noise=0.0)
    cond, state = torch.randn(5, algo.policy.cond_dim), algo.generator.get_state()
    with torch.no_grad():
        algo.policy.critic.last.weight.normal_()  # so that it chooses
    warm = algo.explore({SEEN: cond}, warmup=True)
    algo.generator.set_state(state)
    drawn = algo.policy.draw(cond, torch.randn((5, 1, *algo.policy.noise_shape[1:]), generator=algo.generator))[:, 0]
    torch.testing.assert_close(warm, algo.to_env(drawn, torch.device("cpu")))
    algo.generator.set_state(state)
    best = algo.policy.sample(cond, noise=torch.randn((5, *algo.policy.noise_shape), generator=algo.generator))
    algo.generator.set_state(state)
    torch.testing.assert_close(algo.explore({SEEN: cond}, warmup=False), algo.to_env(best, torch.device("cpu")))
    algo.generator.set_state(state)
    algo.noise = 0.1
    noisy = algo.policy.normalizer.normalize("action", algo.explore({SEEN: cond}, warmup=False))
    assert 0.0 < float((noisy - best).abs().mean()) < 0.2


def test_resume_gives_the_same_run_bit_for_bit():
    resumed(lambda: make(average=0.1, actor_warmup=20))


def test_it_improves_a_base():
    critic = {"_target_": "ensemble", "_partial_": True, "heads": 3, "width": 64, "depth": 2}
    policy = edited_of("flow", critic=critic, samples=4, hidden=(32,))
    policy.chain.load_state_dict(imitated("flow").state_dict())
    torch.manual_seed(0)
    algo = EXPO(policy, policy_delay=1, actor_lr=3e-3, critic_lr=3e-3, average=0.05, actor_warmup=20, confidence=0.5,
                penalty_steps=600)  # fmt: skip
    before = success(algo.policy)
    train(algo, total_steps=2_000, warmup_steps=600, critic_only_updates=60, updates_per_step=0.2, batch_size=64)
    after = success(algo.policy)
    assert before < 0.6 and after > before + 0.2, (before, after)


def test_what_does_not_fit_is_refused():
    with pytest.raises(SpecError, match=r"found FlowPolicy\. Make it by policy=edited"):
        EXPO(policy_of())
    with pytest.raises(ConfigError, match=r"algo\.expectile: .* found 0\.7\. Leave it out"):
        make(expectile=0.7)


def test_a_loss_that_is_not_finite_is_refused_and_changes_nothing():
    algo = make()
    began = weights(algo.learned)
    with pytest.raises(RobopolicyError, match="are not both finite"):
        algo.update_edits(torch.full((4, algo.policy.cond_dim), torch.nan), 1.0)
    assert torch.equal(began, weights(algo.learned))

"""DSRL on a point: the critic of noise by hand, what the actor climbs, what changes, and that it learns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from robopolicy.algos.dsrl import DSRL
from robopolicy.core.errors import ConfigError, RobopolicyError, SpecError
from robopolicy.policies.base import SEEN
from robopolicy.policies.steered import SteeredPolicy, make_steered
from tests.algos.test_chunk_critic import CRITIC, batch_of, imitated, policy_of, resumed, success, train, weights
from tests.policies.test_steered import KINDS, base_of, stirred


def make(kind: str = "flow", **options: Any) -> DSRL:
    policy = make_steered(base_of(kind), hidden=(32,))
    torch.manual_seed(0)
    return DSRL(policy, **{"critic": CRITIC, "policy_delay": 1, "actor_warmup": 0, **options})


def noise_of(policy: SteeredPolicy, cond: Tensor) -> Tensor:
    with torch.no_grad():
        return policy.distribution(cond)[0]


def test_the_critic_of_noise_learns_q_of_the_chunks_that_noise_leads_to():
    algo = make()
    stirred(algo.learned)
    cond = torch.randn(256, algo.policy.cond_dim)
    algo.q = lambda cond, chunk: torch.stack([chunk[:, 0, 0], 2.0 + chunk[:, 1, 1], 0.0 * chunk[:, 0, 0]])
    found = [algo.distill(cond)["critic/noise_loss"] for _ in range(300)]
    assert found[-1] < 0.1 * found[0]
    for w in (torch.randn(256, 4, 2), algo.learned.steer(cond, torch.randn(256, 4, 2)).detach()):
        chunk = algo.policy.chain.sample(cond, noise=w).clamp(-1.0, 1.0)
        want = algo.q(cond, chunk)
        error = (algo.noise_q(cond, w).detach() - want).square().mean() / want.var(dim=1).mean()
        assert float(error) < 0.1, "at the base's noise and at the actor's"


def test_the_actor_climbs_the_gain_less_the_heads_deviation():
    moved = {}
    for confidence in (0.0, 1.0):
        algo = make(confidence=confidence, actor_lr=1e-2, average=1.0)
        # The heads agree about the first number of the noise, and disagree about the second.
        algo.noise_q = lambda cond, w: torch.stack([w[:, 0, 0] + 3.0 * w[:, 0, 1], w[:, 0, 0] - 2.0 * w[:, 0, 1]])
        cond = torch.randn(64, algo.policy.cond_dim)
        for _ in range(60):
            metrics = algo.update_actor(cond, 0.0)
        moved[confidence] = noise_of(algo.policy, cond).mean(0)[0]
        assert float(moved[confidence][0]) > 0.5 and metrics["actor/gain"] > 0.5
    assert float(moved[0.0][1]) > 0.5 and abs(float(moved[1.0][1])) < 0.2, moved


def test_the_loss_by_hand():
    algo, found = make(confidence=0.5), []
    algo._step_actor = lambda loss: found.append(float(loss.detach())) or torch.zeros(())
    mean, log_std = torch.full((2, 4, 2), 0.6), torch.full((2, 4, 2), 0.2)
    algo.learned.distribution = lambda cond: (mean, log_std)
    algo.noise_q = lambda cond, w: torch.tensor([[1.0], [3.0]]) * w.mean((1, 2))
    state = algo.generator.get_state()
    noise = algo._noise(2)
    algo.generator.set_state(state)
    algo.update_actor(torch.zeros(2, algo.policy.cond_dim), 0.3)
    gap = (mean + log_std.exp() * noise - noise).mean((1, 2))  # heads: 1 and 3 times this; mean 2, deviation 1
    kl = torch.distributions.kl_divergence(
        torch.distributions.Normal(0.6, float(log_std[0, 0, 0].exp())), torch.distributions.Normal(0.0, 1.0)
    )
    assert found[0] == pytest.approx(float(0.3 * kl - (2.0 * gap - 0.5 * gap.abs()).mean()), rel=1e-4)


def test_a_strong_anchor_keeps_the_policy_near_its_base():
    moved = []
    for anchor in (0.0, 30.0):
        algo = make(actor_lr=1e-2, average=1.0)
        algo.noise_q = lambda cond, w: w[None, :, 0, 0].expand(3, -1)
        cond = torch.randn(64, algo.policy.cond_dim)
        for _ in range(60):
            algo.update_actor(cond, anchor)
        moved.append(float(noise_of(algo.policy, cond)[:, 0, 0].mean()))
    assert moved[0] > 4 * abs(moved[1]), moved


@pytest.mark.parametrize(("anchor", "learned", "want"), [(1.0, 0, 1.0), (1.0, 50, 0.1), (1.0, 900, 0.01), (0.0, 50, 0)])
def test_the_anchor_s_weight_falls_geometrically(anchor: float, learned: int, want: float):
    algo = make(anchor=anchor, anchor_final=0.01, anchor_steps=100)
    assert algo.update(batch_of(algo.policy), learned_steps=learned)["actor/anchor"] == pytest.approx(want)


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_steering_learns_and_its_average_acts(kind: str):
    algo = make(kind, average=0.1, actor_lr=1e-3)
    began = {n: p.clone() for n, p in algo.policy.named_parameters()}
    algo.update(batch_of(algo.policy), learned_steps=None)
    assert all(torch.equal(p, began[n]) for n, p in algo.policy.named_parameters()), "a critic-only update"
    algo.update(batch_of(algo.policy), learned_steps=0)
    moved = {n for n, p in algo.policy.named_parameters() if not torch.equal(p, began[n])}
    assert moved and all(n.startswith("net.") for n in moved)
    for name, learned in algo.learned.net.named_parameters():
        start, acting = began[f"net.{name}"], dict(algo.policy.net.named_parameters())[name]
        torch.testing.assert_close(acting, start + 0.1 * (learned - start))


def test_the_actor_learns_at_every_delay_th_update():
    algo = make(policy_delay=3)
    found = ["actor/kl" in algo.update(batch_of(algo.policy), learned_steps=0) for _ in range(6)]
    assert found == [False, False, True] * 2


def test_it_explores_with_the_policy_s_own_noise():
    algo = make()
    cond, state = torch.randn(5, algo.policy.cond_dim), algo.generator.get_state()
    chunk = algo.explore({SEEN: cond}, warmup=False)
    algo.generator.set_state(state)
    want = algo.policy.chain.sample(cond, noise=algo._noise(5)).clamp(-1.0, 1.0)
    torch.testing.assert_close(chunk, algo.to_env(want, torch.device("cpu")))


def test_resume_gives_the_same_run_bit_for_bit():
    algo, other = resumed(lambda: make(average=0.1, actor_warmup=20))
    assert torch.equal(weights(algo.noise_critic), weights(other.noise_critic))


def test_it_improves_a_base():
    policy = make_steered(base_of("flow"), hidden=(32,))
    policy.chain.load_state_dict(imitated("flow").state_dict())
    torch.manual_seed(0)
    algo = DSRL(policy, critic=CRITIC, policy_delay=1, actor_lr=3e-3, critic_lr=3e-3, average=0.05, actor_warmup=20,
                anchor_steps=600, confidence=0.5)  # fmt: skip
    before = success(algo.policy)
    train(algo, total_steps=2_000, warmup_steps=600, critic_only_updates=60, updates_per_step=0.2, batch_size=64)
    after = success(algo.policy)
    assert before < 0.6 and after > before + 0.2, (before, after)


def test_what_does_not_fit_is_refused():
    with pytest.raises(SpecError, match=r"found FlowPolicy\. Make it by policy=steered"):
        DSRL(policy_of(), critic=CRITIC)
    with pytest.raises(ConfigError, match=r"algo\.target_subset"):
        make(target_subset=4)


@pytest.mark.parametrize("what", ["distill", "update_actor"])
def test_a_loss_that_is_not_finite_is_refused_and_changes_nothing(what: str):
    algo = make()
    cond = torch.full((4, algo.policy.cond_dim), torch.nan)
    began = weights(algo.learned), weights(algo.noise_critic)
    with pytest.raises(RobopolicyError, match="are not both finite"):
        algo.distill(cond) if what == "distill" else algo.update_actor(cond, 1.0)
    assert torch.equal(began[0], weights(algo.learned)) and torch.equal(began[1], weights(algo.noise_critic))

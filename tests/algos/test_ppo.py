"""The other two algorithms on the on-policy loop: plain PPO, and PolicyFlow."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from robopolicy.algos.policy_flow import PolicyFlow
from robopolicy.algos.ppo import PPO
from robopolicy.algos.rpd import RPD
from robopolicy.core.errors import ConfigError, RobopolicyError
from robopolicy.core.types import STATE, Step
from robopolicy.envs.grouped_env import GroupedEnv
from robopolicy.envs.wrap_for import wrap_for
from robopolicy.networks.mlp import MLP
from robopolicy.policies.flow import FlowPolicy
from robopolicy.policies.gaussian import GaussianPolicy
from robopolicy.policies.mixture import MixturePolicy
from robopolicy.training.on_policy import on_policy
from robopolicy.utils import ranks
from tests.algos.test_dppo import PLAIN, base, make, success, train, weights
from tests.algos.test_grpo import make as grpo
from tests.fakes import MemoryCheckpoints, NoTracker, PointEnv, keep_batches
from tests.rank_processes import in_ranks
from tests.toy import policy, random_episodes, two_modes

SMALL = {"critic": partial(MLP, width=32, depth=2), "gamma": 0.95, "minibatch": 64, "epochs": 2, "clip": 0.02,
         **PLAIN}  # fmt: skip
DENSITIES = {"gaussian": (GaussianPolicy, {}), "mixture": (MixturePolicy, {"components": 3})}


def ppo(kind: str, **options: Any) -> PPO:
    made, fixed = DENSITIES[kind]
    source = base()
    torch.manual_seed(0)
    return PPO(made(source.spec, source.normalizer, network=partial(MLP, width=32), **fixed), **{**SMALL, **options})


def policy_flow(**options: Any) -> PolicyFlow:
    source = make("flow", steps=5).policy
    assert isinstance(source, FlowPolicy)
    return PolicyFlow(source, **{**SMALL, **options})


def rpd() -> RPD:
    return RPD(ppo("gaussian").policy, teacher=ppo("gaussian").policy, **SMALL)


def first_batch(algo: Any, **options: Any) -> Any:
    seen = keep_batches(algo)
    train(algo, **options)
    del algo.update  # the class's again
    return seen[0]


@pytest.mark.parametrize("kind", ["gaussian", "mixture", "policy_flow"])
def test_ratio_is_one_in_the_first_minibatch_and_the_encoder_stays(kind: str):
    fresh, algo = (policy_flow() if kind == "policy_flow" else ppo(kind) for _ in range(2))
    before = weights(algo.policy)
    batch = first_batch(algo, rollout_steps=14, total_steps=8 * 14 * 2)
    count = len(batch.cond) * (5 if kind == "policy_flow" else 1)
    loss, stats = fresh.loss(batch, torch.randperm(count))
    assert float(stats[2]) < 1e-4 and bool(loss.isfinite())
    assert not torch.equal(before, weights(algo.policy))
    assert {tuple(w) for w in batch.advantages.weight.mul(6).round().int().tolist()} == {(2, 2, 2), (3, 3, 0)}


def test_mixture_density_by_hand():
    made = policy(MixturePolicy, random_episodes(), network=partial(MLP, width=16), components=3).double()
    torch.nn.init.normal_(made.log_std, std=0.3)
    cond, x = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 4, 2, dtype=torch.float64)
    log_weight, mean, std = made.components(cond)
    for steps in (4, 2):
        weight = torch.zeros(5, 4, dtype=torch.float64)
        weight[:, :steps] = 1 / steps
        want = torch.distributions.MixtureSameFamily(
            torch.distributions.Categorical(logits=log_weight),
            torch.distributions.Independent(torch.distributions.Normal(mean[:, :, :steps], std[:, :steps]), 2),
        ).log_prob(x[:, :steps])
        torch.testing.assert_close(made.log_prob(cond, x, weight), want / (steps * 2))


def test_a_mixture_draws_its_components_as_often_as_it_says():
    made = policy(MixturePolicy, random_episodes(), network=partial(MLP, width=16), components=3)
    with torch.no_grad():
        made.log_std.fill_(-20.0)
        cond = torch.zeros(20_000, 3)
        log_weight, mean, _ = made.components(cond)
        x = made.draw(cond, torch.randn(20_000, *made.noise_shape))
        nearest = (x[:, None] - mean).flatten(2).norm(dim=2).argmin(1)
        assert torch.equal(made.draw(cond, None)[0], mean[0, log_weight[0].argmax()])
    share = torch.bincount(nearest, minlength=3) / 20_000
    torch.testing.assert_close(share, log_weight[0].exp(), rtol=0, atol=0.02)


@pytest.mark.learning
def test_a_mixture_keeps_two_modes():
    from robopolicy.algos.bc import BC
    from robopolicy.training.offline import offline
    from tests.fakes import NoTracker

    data = two_modes()
    made = policy(MixturePolicy, data, network=partial(MLP, width=64), components=4, horizon=2)
    algo = BC(made, steps=600, lr=3e-3)
    offline(algo=algo, episodes=data, steps=600, batch_size=256, seed=0, tracker=NoTracker(),
            checkpointer=MemoryCheckpoints())  # fmt: skip
    side = algo.policy.act({STATE: torch.randn(500, 1, 3)})[:, 0, 1]
    assert float((side.abs() - 0.01).abs().mean()) < 0.002
    assert 0.35 < float((side > 0).float().mean()) < 0.65


def test_policy_flow_ratio_by_hand():
    algo = policy_flow(noise=0.2)
    batch = first_batch(algo)
    fresh = policy_flow(noise=0.2)
    chunk, k = 7, 3
    moved = batch._replace(velocity=batch.velocity - 0.05)  # as if the new velocity were 0.05 higher than the old one
    extra = batch.extra[chunk]
    log_ratio = ((-0.5 * ((extra - 0.05) / 0.2).square() + 0.5 * (extra / 0.2).square()).mean()).item()
    _, stats = fresh.loss(moved, torch.tensor([chunk * 5 + k]))
    assert float(stats[2]) == pytest.approx(abs(torch.tensor(log_ratio).exp().item() - 1.0), rel=1e-3)


def test_brownian_residual_by_hand():
    """Nothing where v = (x_t − t·v̂)/(1 − t); a velocity 0.1 beside that costs 0.1²·(1 − t)² per element."""
    batch, rows = first_batch(policy_flow()), torch.arange(20)
    t = policy_flow().policy.times[rows % 5][:, None, None]
    x = (1 - t) * batch.noise[rows // 5] + t * batch.end[rows // 5]
    spreads = (x - t * batch.velocity[rows]) / (1 - t)
    for beside in (0.0, 0.1):
        loss = {}
        for weight in (0.0, 2.0):
            algo = policy_flow(brownian=weight)
            algo.policy.prediction = lambda cond, at, k, beside=beside: spreads + beside
            loss[weight] = float(algo.loss(batch, rows)[0].detach())
        want = 2.0 * 0.01 * float((1 - t).square().mean()) if beside else 0.0
        assert loss[2.0] - loss[0.0] == pytest.approx(want, abs=1e-6)


def test_policy_flow_needs_a_whole_and_ordinary_flow():
    with pytest.raises(ConfigError, match="all 5 steps of an ordinary flow"):
        PolicyFlow(make("flow", steps=3).policy)
    with pytest.raises(ConfigError, match="no noise_level"):
        PolicyFlow(base("flow", finetuned_steps=5, noise_level=0.5))
    with pytest.raises(ConfigError, match=r"expected policy\.prediction=velocity, found 'sample'"):
        PolicyFlow(base("flow", finetuned_steps=5, prediction="sample"))


@pytest.mark.parametrize("build", [partial(ppo, "mixture"), policy_flow], ids=["ppo", "policy_flow"])
def test_resume_gives_the_same_run_bit_for_bit(build: Any):
    options = dict(total_steps=8 * 12 * 4, save_every=96)
    algo, other, half = build(), build(seed=9), MemoryCheckpoints()
    _, _, whole = train(algo, **options)
    half.saved[192] = whole.saved[192]
    train(other, checkpoints=half, **options)
    assert torch.equal(weights(algo.policy), weights(other.policy))


@pytest.mark.learning
def test_policy_flow_improves_a_slow_base():
    from tests.algos.test_dppo import slow_base

    source = make("flow", steps=5, source=slow_base("flow")).policy
    algo = PolicyFlow(source, **{**SMALL, "clip": 0.1, "noise": 0.2, "actor_lr": 1e-3, "critic_lr": 3e-3, "epochs": 8,
                                 "minibatch": 512, "critic_warmup": 1})  # fmt: skip
    before = success(algo.policy)
    train(algo, num_envs=64, rollout_steps=24, total_steps=64 * 24 * 25)
    after = success(algo.policy)
    assert before < 0.6 and after > before + 0.25, (before, after)


# ---- several ranks -------------------------------------------------------------------------------------------------


class FaultyPoint(PointEnv):
    """Physics fails in every step of the ranks in `faulty`."""

    faulty: tuple[int, ...] = ()

    def step(self, action: torch.Tensor) -> Step:
        step = super().step(action)
        return step._replace(valid=torch.full_like(step.valid, ranks.rank() not in self.faulty))


def _learns_with_faults(kind: str, *faulty: int) -> list[float]:
    made: dict[str, Any] = {
        "ppo": partial(ppo, "gaussian"), "policy_flow": policy_flow, "dppo": partial(make, anchor=0.1), "grpo": grpo,
        "rpd": rpd,
    }  # fmt: skip
    algo = made[kind]()
    env = FaultyPoint(8)
    env.faulty = faulty
    on_policy(
        algo=algo, env=wrap_for(algo.policy, GroupedEnv(env, 4) if kind == "grpo" else env), tracker=NoTracker(),
        checkpointer=MemoryCheckpoints(), evaluate=None, total_steps=2 * 8 * 12 * 2, rollout_steps=12,
    )  # fmt: skip
    found = weights(algo.policy)
    assert bool(found.isfinite().all())
    return [float(found.double().sum()), float(algo.learner.updates)]


@pytest.mark.parametrize("kind", ["ppo", "policy_flow", "dppo", "grpo", "rpd"])
def test_a_rank_whose_physics_failed_learns_from_the_chunks_of_the_others(kind: str):
    results = in_ranks(_learns_with_faults, 2, kind, 1)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    assert results[0] == results[1] and results[0][1] == 2


def test_all_ranks_end_where_physics_failed_in_all():
    for error in in_ranks(_learns_with_faults, 2, "ppo", 0, 1):
        with pytest.raises(RobopolicyError, match="PPO: physics failed in all"):
            raise error

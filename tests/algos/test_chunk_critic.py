"""Off-policy learning of chunks on a point: the critic by hand, what each algorithm imitates, and that it learns."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from robopolicy.algos.aloe import ALOE
from robopolicy.algos.bc import BC
from robopolicy.algos.pa_rl import PARL
from robopolicy.buffers.chunk_replay_buffer import DEMONSTRATION, HUMAN, POLICY, REWIND, ChunkBatch, ChunkReplay
from robopolicy.core.errors import ConfigError, RobopolicyError, SpecError
from robopolicy.core.rng import episode_seeds
from robopolicy.core.types import STATE, Obs
from robopolicy.envs.wrap_for import wrap_for
from robopolicy.evaluation.rollout import evaluate
from robopolicy.networks.critics import CriticEnsemble
from robopolicy.policies.base import SEEN
from robopolicy.policies.denoising import ChunkDenoiser
from robopolicy.training.off_policy import OffPolicyCollector, off_policy
from tests.algos.test_dppo import base
from tests.fakes import MemoryCheckpoints, NoTracker, PointEnv, PointPolicy

GAMMA = 0.95
CRITIC = partial(CriticEnsemble, heads=3, width=32)
KINDS = [PARL, ALOE]


def policy_of(kind: str = "flow", *, source: ChunkDenoiser | None = None, steps: int = 5) -> ChunkDenoiser:
    policy = base(kind, finetuned_steps=steps)
    policy.network.load_state_dict((source or base(kind)).network.state_dict())
    policy.begin_finetuning()
    return policy.eval()


def make(algo: Any = PARL, kind: str = "flow", *, source: ChunkDenoiser | None = None, **options: Any) -> Any:
    torch.manual_seed(0)
    return algo(policy_of(kind, source=source), **{"critic": CRITIC, **options})


def batch_of(policy: ChunkDenoiser, count: int = 16, *, steps: int = 4, driver: int = POLICY) -> ChunkBatch:
    """Chunks of which `steps` of H = 4 belong to their episode."""
    generator = torch.Generator().manual_seed(1)
    seen, following = (torch.randn(count, policy.cond_dim, generator=generator) for _ in range(2))
    keep = (torch.arange(4) < steps).expand(count, 4)
    action = 0.05 * torch.randn(count, 4, 2, generator=generator) * keep[..., None]
    return ChunkBatch({SEEN: seen}, action, keep, torch.full((count, 4), driver), torch.full((count,), 0.5),
                      torch.full((count,), 0.9), {SEEN: following}, torch.zeros(count, dtype=torch.bool))  # fmt: skip


def say(critic: CriticEnsemble, *values: float) -> None:
    """Let head e say values[e], whatever it is asked."""
    with torch.no_grad():
        for p in critic.parameters():
            p.zero_()
        critic.last.bias.copy_(torch.tensor(values)[:, None, None])


def train(algo: Any, *, checkpoints: MemoryCheckpoints | None = None, **options: Any) -> tuple[Any, MemoryCheckpoints]:
    checkpoints = checkpoints or MemoryCheckpoints()
    settings = dict(
        total_steps=400, warmup_steps=100, critic_only_updates=5, updates_per_step=0.1, batch_size=16, demos=None,
        evaluate=None, tracker=NoTracker(), seed=1, replay=partial(ChunkReplay, capacity=20_000, gamma=GAMMA),
    )  # fmt: skip
    env = wrap_for(algo.policy, PointEnv(8))
    return off_policy(algo=algo, env=env, checkpointer=checkpoints, **{**settings, **options}), checkpoints


def resumed(make: Callable[[], Any]) -> tuple[Any, Any]:
    """Train one learner without a stop and one from its first checkpoint, and compare them; return both."""
    algo, other, half = make(), make(), MemoryCheckpoints()
    _, whole = train(algo, save_every=200)
    first = min(whole.saved)
    assert 100 < first < max(whole.saved) and int(whole.saved[first]["player"]["left"].sum()) > 0, "amid chunks"
    half.saved[first] = whole.saved[first]
    train(other, checkpoints=half, save_every=200)
    for part in ("policy", "learned", "critic", "target"):
        assert torch.equal(weights(getattr(algo, part)), weights(getattr(other, part))), part
    a, b = (c.latest() for c in (whole, half))
    assert torch.equal(a["algo"]["generator"], b["algo"]["generator"])
    assert torch.equal(a["replay"]["store"]["action"], b["replay"]["store"]["action"])
    return algo, other


def weights(policy: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in policy.parameters()])


# -- the critic --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pessimism", "want"), [(None, 0.5 + 0.9 * -1.0), (0.5, 0.5 + 0.9 * (2.0 - 0.5 * 6**0.5))])
def test_target_by_hand(pessimism: float | None, want: float):
    algo = make(target_subset=None, pessimism=pessimism)
    say(algo.target, 2.0, -1.0, 5.0)  # mean 2, deviation √6
    metrics = algo.update(batch_of(algo.policy), learned_steps=None)
    assert float(metrics["critic/target"]) == pytest.approx(want, rel=1e-5)


def test_the_target_takes_the_minimum_of_a_random_subset_of_heads():
    algo = make(target_subset=1, tau=0.0)
    say(algo.target, 2.0, -1.0, 5.0)
    seen = {round(float(algo.update(batch_of(algo.policy), learned_steps=None)["critic/target"]), 3)
            for _ in range(20)}  # fmt: skip
    assert seen == {round(0.5 + 0.9 * q, 3) for q in (2.0, -1.0, 5.0)}


def test_each_head_is_squared_apart():
    learner = make()
    say(learner.critic, 1.0, -1.0, 0.0)
    say(learner.target, 0.0, 0.0, 0.0)
    batch = batch_of(learner.policy)._replace(reward=torch.zeros(16))
    metrics = learner.update_critic(batch, torch.zeros(16, 4, 2))
    assert float(metrics["critic/loss"]) == pytest.approx(2.0 / 3.0)


@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_past_an_episode_s_end_reaches_neither_q_nor_the_imitation_loss(kind: Any):
    found = []
    for padding in (0.0, 7.0):
        algo = make(kind, policy_delay=1, seed=3)
        batch = batch_of(algo.policy, steps=2)
        action = torch.where(batch.keep[..., None], batch.action, padding)
        metrics = algo.update(batch._replace(action=action), learned_steps=0)
        found.append((float(metrics["critic/loss"]), float(metrics["actor/imitation"]), weights(algo.policy)))
    assert found[0][:2] == found[1][:2] and torch.equal(found[0][2], found[1][2])


def test_steps_that_are_not_played_are_nothing_to_q():
    learner = make()  # Ta = 3 of H = 4
    cond, chunk = torch.randn(5, learner.policy.cond_dim), torch.randn(5, 4, 2)
    other = chunk.clone()
    other[:, 3] += 1.0
    assert torch.equal(learner.q(cond, chunk), learner.q(cond, other))
    other[:, 2] += 1.0
    assert not torch.equal(learner.q(cond, chunk), learner.q(cond, other))
    many = torch.stack([chunk, other], dim=1)
    torch.testing.assert_close(learner.q(cond, many)[:, :, 0], learner.q(cond, chunk))
    more = torch.cat([cond, torch.randn(5, 7)], dim=1)  # what a VLA's cond holds for its expert alone
    assert torch.equal(learner.q(more, chunk), learner.q(cond, chunk))


# -- PA-RL -------------------------------------------------------------------------------------------------------------


def test_improving_never_lowers_q_and_stays_within_the_limits():
    algo = make(samples=6, keep=3, climb_steps=4, climb_size=0.3)
    cond = torch.randn(32, algo.policy.cond_dim)
    state = algo.generator.get_state()
    sampled = algo.sample(cond, 6)
    before = algo.q(cond, sampled).mean(0).detach().topk(3, dim=1).values
    algo.generator.set_state(state)
    chunk, q = algo.improve(cond)
    assert bool((q >= before).all()) and float((q - before).mean()) > 1e-4
    torch.testing.assert_close(q, algo.q(cond, chunk).mean(0).detach())
    assert float(chunk.abs().max()) <= 1.0 + 1e-6, "±1 are the limits of the point"
    assert torch.equal(chunk[:, :, 3:], sampled[:, :, 3:].gather(
        1, algo.q(cond, sampled).mean(0).topk(3, dim=1).indices[..., None, None].expand(-1, -1, 1, 2)
    )), "steps that are not played stay"  # fmt: skip


def test_a_step_that_would_lower_q_is_taken_back():
    algo = make(climb_steps=5, climb_size=50.0)
    algo.q = lambda cond, chunk: -chunk[:, :, :3].square().sum((2, 3))[None]  # highest at zero: any step is far
    chunk = torch.full((2, 1, 4, 2), 0.01)
    climbed, q = algo.climb(torch.zeros(2, algo.policy.cond_dim), chunk)
    assert torch.equal(climbed, chunk) and q.flatten().tolist() == pytest.approx([-6e-4] * 2)


def test_exploration_takes_the_best_or_draws_by_a_softmax():
    obs = {SEEN: torch.zeros(400, base("flow").cond_dim)}
    algo = make(samples=2, keep=2, climb_steps=0)
    pair = torch.stack([torch.full((400, 4, 2), 0.5), torch.full((400, 4, 2), -0.5)], dim=1)
    algo.sample = lambda cond, count, **kw: pair
    algo.q = lambda cond, chunk: chunk[:, :, 0, 0][None]
    assert float(algo.explore(obs, warmup=False).min()) == pytest.approx(0.05)
    algo.temperature = 1.0
    better = float((algo.explore(obs, warmup=False)[:, 0, 0] > 0).float().mean())
    assert better == pytest.approx(1 / (1 + math.exp(-1.0)), abs=0.08)


def test_where_an_episode_has_ended_nobody_is_imitated():
    algo = make(policy_delay=1)
    before = weights(algo.policy)
    over = batch_of(algo.policy)._replace(discount=torch.zeros(16))
    assert "actor/imitation" not in algo.update(over, learned_steps=0)
    assert torch.equal(before, weights(algo.policy))


# -- ALOE --------------------------------------------------------------------------------------------------------------


def test_weights_by_hand():
    algo = make(ALOE, beta=0.5, weight_clip=3.0, human_weight=2.0, demo_weight=0.7)
    batch = batch_of(algo.policy, 3, steps=3)
    driver = torch.tensor([[POLICY, HUMAN, REWIND, POLICY], [DEMONSTRATION] * 4, [POLICY] * 4])
    batch, advantage = batch._replace(driver=driver), torch.tensor([0.25, -9.0, 5.25])
    assert float(algo.deviation(advantage, batch)) == 2.5, "of the first and the last: a demonstration does not count"
    earned = math.exp(0.25 / (0.5 * 2.5))
    want = torch.tensor([[earned, 2.0, 0.0, 0.0], [0.7, 0.7, 0.7, 0.0], [3.0, 3.0, 3.0, 0.0]])
    torch.testing.assert_close(algo.weight(advantage, batch), want)
    torch.testing.assert_close(algo.weight(100 * advantage, batch), want)  # the unit of rewards says nothing


@pytest.mark.parametrize("advantage", [[0.0, 0.0], [0.3, 0.3]])
def test_chunks_that_are_equally_good_weigh_the_same(advantage: list[float]):
    algo = make(ALOE)
    batch = batch_of(algo.policy, 2)
    assert torch.equal(algo.weight(torch.tensor(advantage), batch), torch.ones(2, 4))


def test_effective_share_by_hand():
    algo = make(ALOE, policy_delay=1)
    batch = batch_of(algo.policy, 4, steps=3)
    algo.weight = lambda advantage, batch: torch.tensor([1.0, 1.0, 0.0, 2.0])[:, None] * batch.keep
    assert float(algo.update(batch, learned_steps=0)["actor/effective_share"]) == pytest.approx(16 / (4 * 6))


def test_advantage_is_pessimistic_and_over_the_policy_s_own_chunks():
    algo = make(ALOE, samples=2, pessimism=1.0)
    heads = torch.tensor([1.0, 3.0])  # times a number x: mean 2·x, deviation x, so the lower bound is x
    algo.sample = lambda cond, count: torch.stack([torch.full((1, 4, 2), 0.2), torch.full((1, 4, 2), 0.4)], 1)
    algo.q = lambda cond, chunk: heads.view(2, *[1] * (chunk.ndim - 2)) * chunk[..., 0, 0]
    found = algo.advantage(torch.zeros(1, 4), torch.full((1, 4, 2), 0.9))
    assert float(found) == pytest.approx(0.9 - 0.3)


def test_a_batch_in_which_nothing_is_to_be_imitated_leaves_the_policy_as_it_is():
    algo = make(ALOE, policy_delay=1)
    before = weights(algo.policy)
    algo.update(batch_of(algo.policy, driver=REWIND), learned_steps=0)
    assert torch.equal(before, weights(algo.policy))


# -- both, and their loop ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("made", ["flow", "ddpm"])
def test_before_learning_it_is_the_base_and_only_the_copy_learns(kind: Any, made: str):
    algo = make(kind, made, policy_delay=1)
    began = {n: p.clone() for n, p in algo.policy.named_parameters()}
    algo.update(batch_of(algo.policy), learned_steps=None)
    assert all(torch.equal(p, began[n]) for n, p in algo.policy.named_parameters()), "a critic-only update"
    algo.update(batch_of(algo.policy), learned_steps=0)
    moved = {n for n, p in algo.policy.named_parameters() if not torch.equal(p, began[n])}
    assert moved and all(n.startswith("finetuned.") for n in moved)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("average", [1.0, 0.1])
def test_resume_gives_the_same_run_bit_for_bit(kind: Any, average: float):
    options = {"average": average, "actor_warmup": 7}
    resumed(lambda: make(kind, **options))


@pytest.mark.parametrize("kind", KINDS)
def test_the_average_acts_and_the_learning_rate_rises(kind: Any):
    algo = make(kind, policy_delay=1, average=0.25, actor_warmup=10, actor_lr=1e-3)
    began = [p.clone() for p in algo.policy_params]
    algo.update(batch_of(algo.policy), learned_steps=0)
    moved = [(learned - p).detach() for p, learned in zip(began, algo.actor_params, strict=True)]
    assert max(float(m.abs().max()) for m in moved) == pytest.approx(1e-4, rel=1e-3), "Adam's first step, a tenth"
    for p, acting, move in zip(began, algo.policy_params, moved, strict=True):
        torch.testing.assert_close(acting, p + 0.25 * move)
    assert all(p.grad_fn is None for p in (*algo.target_params, *algo.policy_params)), "no graph of all updates"
    cond, state = torch.randn(5, algo.policy.cond_dim), algo.generator.get_state()
    noise = torch.randn(5, *algo.policy.noise_shape, generator=torch.Generator().manual_seed(0))
    algo.generator.manual_seed(0)
    torch.testing.assert_close(algo.sample(cond, 1)[:, 0], algo.policy.sample(cond, noise=noise).clamp(-1.0, 1.0))
    algo.generator.set_state(state)


class Counting:
    """Chunks whose steps tell when their env planned: [episode step at planning, place in the chunk]."""

    def __init__(self) -> None:
        self.policy, self.planned = policy_of(), []

    def explore(self, obs: Obs, *, warmup: bool) -> Tensor:
        self.planned.append(len(obs[SEEN]))
        place = torch.arange(4.0).expand(len(obs[SEEN]), 4)
        return 1e-3 * torch.stack([place, place], dim=-1)


def test_chunks_are_played_to_their_end_and_dropped_at_an_episode_s():
    algo = Counting()
    env = wrap_for(algo.policy, PointEnv(3, horizon=5))
    collector, played = OffPolicyCollector(algo, env), []
    collector.reset()
    for _ in range(10):
        _, step = collector.collect(warmup=False)
        played.append(round(float(step.executed[0, 0]) * 1e3))
    assert played == [0, 1, 2, 0, 1] * 2, "Ta = 3, then a new chunk; after 5 steps a new episode, and a new chunk"
    assert algo.planned == [3, 3, 3, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_that_is_not_finite_is_refused_and_changes_nothing(kind: Any):
    algo = make(kind)
    before = torch.cat([p.detach().flatten() for p in algo.critic_params])
    batch = batch_of(algo.policy)
    with pytest.raises(RobopolicyError, match=r"critic: loss nan .* rewards, actions and the base's normaliser"):
        algo.update(batch._replace(reward=torch.full((16,), torch.nan)), learned_steps=0)
    assert torch.equal(before, torch.cat([p.detach().flatten() for p in algo.critic_params]))


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_fit_is_refused(kind: Any):
    with pytest.raises(SpecError, match=r"found FlowPolicy without one\. Make it by policy=finetuned"):
        kind(base("flow"), critic=CRITIC)
    with pytest.raises(SpecError, match="found PointPolicy"):
        kind(PointPolicy(), critic=CRITIC)
    with pytest.raises(ConfigError, match=r"algo\.target_subset: expected at most algo\.critic\.heads=3, found 4"):
        make(kind, target_subset=4)
    with pytest.raises(ConfigError, match=r"algo\.keep=5: expected at most algo\.samples=3"):
        make(samples=3, keep=5)


def imitated(kind: str) -> ChunkDenoiser:
    """A base that goes the right way, and often too far or not far enough."""
    torch.manual_seed(0)
    policy = base(kind)
    algo = BC(policy, steps=300, lr=3e-3, warmup=10)
    for _ in range(300):
        state = torch.zeros(256, 1, 4)
        state[:, 0, :2] = 0.6 * (2.0 * torch.rand(256, 2) - 1.0)
        state[:, 0, 3] = 12 * torch.rand(256)
        way = -state[:, :, :2] * (0.1 + 0.3 * torch.rand(256, 1, 1)) + 0.02 * torch.randn(256, 1, 2)
        batch = {STATE: state, "action": way.expand(-1, 4, 2).clamp(-0.1, 0.1)}
        algo.update({**batch, "action_is_pad": torch.zeros(256, 4, dtype=torch.bool)})
    return algo.policy


def success(policy: ChunkDenoiser) -> float:
    return evaluate(policy, PointEnv(64, horizon=12), episode_seeds("validation", 0, 128)).metrics()["success_rate"]


@pytest.mark.parametrize("kind", KINDS)
def test_it_improves_a_base(kind: Any):
    source = imitated("flow")
    options = {PARL: dict(actor_lr=1e-3, climb_size=0.2), ALOE: dict(actor_lr=1e-3, beta=0.5)}[kind]
    fast = {"average": 0.05, "actor_warmup": 10}
    algo = make(kind, source=source, policy_delay=1, critic_lr=3e-3, noise_samples=2, **fast, **options)
    before = success(algo.policy)
    train(algo, total_steps=3_000, warmup_steps=800, critic_only_updates=60, updates_per_step=0.1, batch_size=64)
    after = success(algo.policy)
    assert before < 0.6 and after > before + 0.3, (before, after)

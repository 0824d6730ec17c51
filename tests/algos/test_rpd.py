"""RPD: a student held to its teacher, who is asked once a chunk; and that it learns faster than alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from robopolicy.algos.ppo import PPO
from robopolicy.algos.rpd import RPD
from robopolicy.core.errors import CheckpointError, SpecError
from robopolicy.core.types import STATE, Feature
from robopolicy.envs.wrap_for import wrap_for
from robopolicy.networks.mlp import MLP
from robopolicy.policies.base import Policy
from robopolicy.policies.gaussian import GaussianPolicy
from robopolicy.policies.normalizer import Normalizer
from robopolicy.policies.residual import ResidualPolicy
from robopolicy.training.on_policy import on_policy
from tests.algos.test_dppo import make as dppo
from tests.algos.test_dppo import success, weights
from tests.fakes import MemoryCheckpoints, NoTracker, PointEnv, PointPolicy, keep_batches

SMALL = {"critic": partial(MLP, width=32, depth=2), "gamma": 0.95, "minibatch": 64, "epochs": 2}
SECRET = "observation.secret"


class SecretPoint(PointEnv):
    """Shows the teacher alone where the point is, through a key that the student does not read."""

    def __init__(self, num_envs: int, **options: Any) -> None:
        super().__init__(num_envs, **options)
        self.spec = replace(self.spec, observation={**self.spec.observation, SECRET: Feature((2,))})

    def _obs(self):
        return {**super()._obs(), SECRET: self.position.clone()}


class Guide(PointPolicy):
    """A teacher that reads the secret over two frames, and moves further than any limit allows."""

    def __init__(self) -> None:
        super().__init__(chunk=2)
        self.spec = replace(self.spec, observation={SECRET: Feature((2,))}, n_obs_steps=2)

    def act(self, obs, *, noise=None, deterministic=False):
        self.calls += len(obs[SECRET])
        assert obs.keys() == {SECRET} and obs[SECRET].shape[1] == 2 and deterministic
        return (-10.0 * obs[SECRET][:, -1])[:, None].repeat(1, 3, 1)


def student(seed: int = 0, *, min_std: float = 0.01) -> GaussianPolicy:
    spec = PointPolicy(chunk=3).spec
    normalizer = Normalizer.from_limits(spec.observation, spec.action)
    normalizer._affine(STATE).set(torch.tensor([0.0, 0.0, 500.0, 6.0]), torch.tensor([0.3, 0.3, 500.0, 6.0]))
    torch.manual_seed(seed)
    return GaussianPolicy(spec, normalizer, network=partial(MLP, width=32), min_std=min_std)


def make(teacher: Policy | None = None, **options: Any) -> RPD:
    return RPD(student(), teacher or PointPolicy(gain=2.0), **{**SMALL, "anchor_final": 0.0, **options})


def train(algo: Any, env: PointEnv | None = None, checkpoints: Any = None, **options: Any) -> NoTracker:
    tracker = NoTracker()
    settings: dict[str, Any] = dict(total_steps=8 * 14 * 3, rollout_steps=14, evaluate=None)
    on_policy(
        algo=algo, env=wrap_for(algo.policy, env or PointEnv(8), teacher=getattr(algo, "teacher", None)),
        tracker=tracker, checkpointer=checkpoints or MemoryCheckpoints(), **{**settings, **options},
    )  # fmt: skip
    return tracker


def first_batch(algo: RPD, env: PointEnv | None = None) -> Any:
    seen = keep_batches(algo)
    algo.rows = train(algo, env).rows
    return seen[0]


def test_the_teacher_is_asked_once_a_chunk_in_what_it_alone_reads():
    guide = Guide()
    algo = make(guide, epochs=4)
    env = wrap_for(algo.policy, SecretPoint(8), teacher=guide)
    assert env.spec.history == 2, "the teacher reads two frames"
    batch = first_batch(algo, SecretPoint(8))
    assert guide.calls == sum(row["train/chunks"] for _, row in algo.rows) > 0, "whatever the number of epochs"
    state = batch.cond[:, :2] * 0.3  # the student's encoder passes the normalised state on
    want = (-10.0 * state).clamp(-0.1, 0.1) / 0.1  # what the env would have made of it
    torch.testing.assert_close(batch.teacher, want[:, None].expand(-1, 3, 2), atol=1e-4, rtol=0.0)


def test_loss_by_hand():
    batch = first_batch(make())
    algo, rows = make(), torch.tensor([3, 5])
    mean, _ = algo.policy.density(batch.cond[rows])
    mean = mean[:, :3].detach()
    assert batch.teacher.shape[1] == 3, "what is executed, though both predict four steps"
    algo.weight = 0.0
    plain, stats = algo.loss(batch, rows)
    assert float(stats[2]) < 1e-4, "the ratio is one before the first update"
    algo.weight = 0.5
    held, _ = algo.loss(batch, rows)
    want = ((mean - batch.teacher[rows]) ** 2).sum().item() / (2 * 3 * 2)
    assert held.item() - plain.item() == pytest.approx(0.5 * want, rel=1e-4)
    std = 2.718281828**-1 + 0.01
    kl = make(distance="kl")
    assert kl.apart(batch, rows).item() == pytest.approx(0.5 * want / std**2, rel=1e-4)


def test_gradients_of_the_distance_reach_means_alone_and_never_the_teacher():
    teacher = dppo("flow").policy
    algo = make(teacher, distance="kl")
    before = weights(teacher)
    batch = first_batch(algo)
    algo.policy.zero_grad()
    algo.apart(batch, torch.arange(10)).backward()
    assert algo.policy.log_std.grad is None and all(p.grad is not None for p in algo.policy.network.parameters())
    assert torch.equal(before, weights(teacher)) and not any(p.requires_grad for p in teacher.parameters())


def test_the_weight_falls_on_schedule():
    rows = [row for _, row in train(make(anchor=2.0, anchor_final=0.5)).rows]
    assert [row["train/anchor"] for row in rows] == pytest.approx([2.0, 2.0 * (1 - 0.5 / 3), 2.0 * (1 - 1 / 3)])
    assert all(row["train/teacher_distance"] > 0.0 for row in rows)


def test_without_weight_it_is_ppo():
    algo, plain = make(anchor=0.0), PPO(student(), critic_warmup=0, **SMALL)
    train(algo), train(plain)
    assert torch.equal(weights(algo.policy), weights(plain.policy))


def test_a_teacher_of_other_actions_is_refused():
    other = PointPolicy()
    other.spec = replace(other.spec, action=replace(other.spec.action, frame="base"), dt=0.2)
    with pytest.raises(SpecError, match=r"cannot teach(.|\n)*action.frame: the student has 'world'(.|\n)*dt: the st"):
        make(other)
    with pytest.raises(SpecError, match=r"policy and environment do not fit(.|\n)*secret"):
        wrap_for(student(), PointEnv(2), teacher=Guide())


def test_a_refined_teacher_brings_its_base_along():
    base = PointPolicy(gain=4.0)
    refined = ResidualPolicy(base.spec, student().normalizer, base, hidden=(8,))
    algo = make(refined)
    batch = first_batch(algo)
    assert batch.teacher.shape[1:] == (1, 2), "a residual looks one step ahead"
    first = batch.cond[:, 3] < -0.9  # episode step 0: base and student plan at the same moment
    want = (-batch.cond[first, :2] * 0.3).clamp(-0.1, 0.1) / 0.1
    assert bool(first.any())
    torch.testing.assert_close(batch.teacher[first, 0], want, atol=1e-4, rtol=0.0)
    with pytest.raises(SpecError, match="both have a policy underneath"):
        wrap_for(refined, PointEnv(2), teacher=refined)


def test_resume_is_bit_for_bit_and_with_the_same_teacher_only():
    options = dict(total_steps=8 * 14 * 4, save_every=1)
    algo, other, half, whole = (
        make(dppo("flow").policy),
        make(dppo("flow").policy, seed=9),
        MemoryCheckpoints(),
        MemoryCheckpoints(),
    )
    train(algo, checkpoints=whole, **options)
    half.saved[224] = whole.saved[224]
    train(other, checkpoints=half, **options)
    assert torch.equal(weights(algo.policy), weights(other.policy))
    wrong = dppo("flow").policy
    with torch.no_grad():
        next(wrong.parameters()).add_(0.1)
    with pytest.raises(CheckpointError, match="teacher: its weights are not those"):
        make(wrong).load_state_dict(whole.saved[224]["algo"])


@pytest.mark.learning
def test_a_student_passes_its_slow_teacher_and_what_it_learns_alone():
    teacher = PointPolicy(gain=0.45)
    options: dict[str, Any] = {**SMALL, "actor_lr": 2e-3, "critic_lr": 3e-3, "clip": 0.1, "minibatch": 256, "epochs": 6}
    held, alone = RPD(student(), teacher, anchor=1.0, anchor_final=0.1, **options), PPO(student(), **options)
    for algo in (held, alone):
        train(algo, PointEnv(64), total_steps=64 * 24 * 12, rollout_steps=24)
    taught, slow, single = success(held.policy), success(teacher), success(alone.policy)
    assert taught > slow + 0.2 and taught > single + 0.2, (taught, slow, single)

"""Training on envs that cannot save the episodes under way: it resumes with new ones, and learns nothing false."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from robopolicy.algos.residual import ResidualTD3
from robopolicy.buffers.collector import RolloutCollector
from robopolicy.buffers.replay_buffer import Replay
from robopolicy.core.errors import ConfigError
from robopolicy.core.types import STATE, Obs, Step, VecEnv
from robopolicy.envs.wrap_for import wrap_for
from robopolicy.envs.wrappers import HistoryEnv
from robopolicy.evaluation.rollout import evaluate
from robopolicy.networks.critics import CriticEnsemble
from robopolicy.policies.normalizer import Normalizer
from robopolicy.policies.residual import ResidualPolicy
from robopolicy.sim.gymnasium.adapter import GymVecEnv, adapt
from robopolicy.training.off_policy import off_policy
from robopolicy.training.on_policy import OnPolicyState
from robopolicy.utils.storage import read_state, write_state
from tests.algos.test_dppo import make as dppo
from tests.fakes import POINT_ACTION, MemoryCheckpoints, NoTracker, PointEnv, PointPolicy

N = 4


class Walk(gymnasium.Env):
    """PointEnv for one; state [x, y, a number of the episode, episode step]."""

    def __init__(self) -> None:
        self.observation_space = Box(-1e9, 1e9, (4,), np.float32)
        self.action_space = Box(-0.1, 0.1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.state = np.array([*self.np_random.uniform(-0.6, 0.6, 2), self.np_random.integers(1, 10**6), 0.0])
        return self.state.astype(np.float32), {}

    def step(self, action: Any) -> Any:
        self.state[:2] += action
        self.state[3] += 1
        done = bool(np.linalg.norm(self.state[:2]) < 0.05)
        return self.state.astype(np.float32), float(done), done, self.state[3] >= 12, {"success": done}


class Plain(VectorEnv):
    """A NEXT_STEP vector env of somebody else's."""

    def __init__(self) -> None:
        self.inner = SyncVectorEnv([Walk] * N)
        self.num_envs, self.metadata, self.spec = N, {"autoreset_mode": AutoresetMode.NEXT_STEP}, None
        self.single_observation_space = self.inner.single_observation_space
        self.single_action_space = self.inner.single_action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        assert not options
        return self.inner.reset(seed=seed)

    def step(self, actions: Any) -> Any:
        return self.inner.step(actions)


KINDS = ["disabled", "same_step", "plain"]


def walks(kind: str = "disabled", *, seed: int = 0) -> GymVecEnv:
    env = Plain() if kind == "plain" else SyncVectorEnv([Walk] * N, autoreset_mode=AutoresetMode[kind.upper()])
    return adapt(env, seed=seed, horizon=12, dt=0.1, action=POINT_ACTION)


def train(checkpoints: MemoryCheckpoints, env: VecEnv, *, total_steps: int = 200, **options: Any) -> tuple[Any, Any]:
    """The result, and the policy's weights."""
    torch.manual_seed(0)
    base = PointPolicy(gain=0.45, noise=0.02)
    base.spec = replace(base.spec, observation={STATE: env.spec.observation[STATE]})
    normalizer = Normalizer.from_limits(base.spec.observation, POINT_ACTION)
    policy = ResidualPolicy(base.spec, normalizer, base, hidden=(16,))
    algo = ResidualTD3(policy, critic=partial(CriticEnsemble, heads=2, width=16))
    result = off_policy(
        algo=algo, env=wrap_for(policy, env), replay=partial(Replay, capacity=4_000, n_step=3, gamma=0.95), demos=None,
        tracker=NoTracker(), checkpointer=checkpoints, evaluate=None, total_steps=total_steps, warmup_steps=40,
        critic_only_updates=2, updates_per_step=0.1, batch_size=16, **options,
    )  # fmt: skip
    return result, torch.cat([p.flatten() for p in policy.net.parameters()])


@pytest.mark.parametrize("kind", KINDS)
def test_off_policy_saves_and_goes_on_with_new_episodes(kind, tmp_path):
    whole = MemoryCheckpoints()
    train(whole, walks(kind), total_steps=120)
    saved = whole.saved[max(whole.saved)]
    write_state(saved, tmp_path)  # as a checkpoint has it
    outcomes = []
    for _ in range(2):
        half = MemoryCheckpoints()
        half.saved[max(whole.saved)] = read_state(tmp_path)
        result, weights = train(half, walks(kind))
        outcomes.append((result["steps"], weights))
    (steps, weights), (_, again) = outcomes
    assert 200 - N < steps <= 200, "an env that rests between two episodes takes fewer steps than there are envs"
    assert torch.equal(weights, again), "resumed twice, the same run"

    last, replay = saved["replay"]["added"] - 1, half.latest()["replay"]
    state, ended, valid = replay["obs"][STATE], saved["replay"]["store"]["ended"], replay["store"]["valid"]
    assert torch.equal(state[: last + 1], saved["replay"]["obs"][STATE])
    assert state[last + 1, :, 3].tolist() == [0.0] * N, "acts on what the reset returned, not on what was saved"
    assert not ended[last].all(), "some episodes were under way"
    assert not valid[last][~ended[last]].any(), "their next frame is another episode's"
    assert not set(state[last + 1 :, :, 2].flatten().tolist()) & set(state[: last + 1, :, 2].flatten().tolist())


def test_windows_do_not_cross_the_interruption():
    replay = Replay(capacity=100, num_envs=2, n_step=3, gamma=0.5)
    for t in range(8):
        if t == 4:
            replay.interrupt()
        obs = {STATE: torch.tensor([[float(t)], [10.0 + t]])}
        ended = torch.tensor([False, t == 3])
        replay.add(obs, Step(obs, {STATE: obs[STATE] + 0.5}, torch.zeros(2, 1), torch.ones(2).long(), torch.ones(2),
                             torch.zeros(2).bool(), ended, ended, torch.ones(2).bool(), {}))  # fmt: skip
    running, over = (replay.window(torch.tensor([2]), torch.tensor([i])) for i in (0, 1))
    assert (float(running.reward), float(running.discount), float(running.next_obs[STATE])) == (1.0, 0.5, 3.0)
    assert (float(over.reward), float(over.discount), float(over.next_obs[STATE])) == (1.5, 0.25, 13.5)
    drawn = replay.sample(500, torch.Generator().manual_seed(0)).obs[STATE].flatten().tolist()
    assert 3.0 not in drawn and 13.0 in drawn


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_a_function_of_the_seed(kind):
    weights = [train(MemoryCheckpoints(), walks(kind, seed=seed))[1] for seed in (0, 0, 1)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_reset_steps_are_not_counted_as_diverged_physics():
    checkpoints = MemoryCheckpoints()
    result, _ = train(checkpoints, walks("plain"))
    assert not checkpoints.latest()["replay"]["store"]["valid"].all(), "there were reset steps"
    assert "train_diverged" not in result


class Silent(Walk):
    """Says `goal_achieved`, which we don't know."""

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        return *rest, {"goal_achieved": info["success"]}


def silent(**how: Any) -> GymVecEnv:
    return adapt(SyncVectorEnv([Silent] * N, autoreset_mode=AutoresetMode.DISABLED), horizon=12, dt=0.1,
                 action=POINT_ACTION, **how)  # fmt: skip


def test_success_that_is_not_told_is_neither_learned_from_nor_evaluated():
    with pytest.raises(ConfigError, match=r"task\.success.*goal_achieved"):
        train(MemoryCheckpoints(), silent())
    policy = PointPolicy(gain=0.6)
    policy.spec = replace(policy.spec, observation={STATE: silent().spec.observation[STATE]})
    seeds = torch.arange(20)
    with pytest.raises(ConfigError, match=r"task\.success.*goal_achieved"):
        evaluate(policy, silent(), seeds)
    named = evaluate(policy, silent(success="goal_achieved"), seeds).successes()
    assert named == evaluate(policy, walks(), seeds).successes() and any(named)


class Explorer:
    """Plays PointPolicy and remembers its noise."""

    noise_shape = (4, 2)

    def __init__(self, env: VecEnv) -> None:
        self.policy = PointPolicy(gain=0.6, noise=0.02, chunk=3)
        self.policy.spec = replace(self.policy.spec, observation={STATE: env.spec.observation[STATE]})

    def explore(self, obs: Obs, noise: torch.Tensor) -> Any:
        return self.policy.act(obs, noise=noise), {"state": obs[STATE][:, -1], "noise": noise}


def collector(env: VecEnv) -> RolloutCollector:
    return RolloutCollector(Explorer(env), HistoryEnv(env, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_on_policy_explores_differently_in_every_env_and_episode(kind):
    actor = collector(walks(kind))
    actor.reset()
    rollout = actor.collect(40)
    noise = rollout.record["noise"].flatten(1)[rollout.valid[rollout.planned]]  # but for what a reset step ignores
    assert len(noise.unique(dim=0)) == len(noise) > N


@pytest.mark.parametrize("kind", KINDS)
def test_on_policy_goes_on_with_new_episodes(kind):
    actor = collector(walks(kind))
    actor.reset()
    before = actor.collect(7)
    other = collector(walks(kind))
    other.load_state_dict(actor.state_dict())
    assert other.obs[STATE][:, -1, 3].tolist() == [0.0] * N
    rollout = other.collect(7)
    assert bool(rollout.planned[0].all())
    numbers = [set(r.record["state"][:, 2].tolist()) for r in (before, rollout)]
    assert not numbers[0] & numbers[1]


class Forgetful:
    """A VecEnv that has nothing to save."""

    def __init__(self) -> None:
        self.env = PointEnv(N)
        self.spec, self.num_envs, self.device = replace(self.env.spec, resumable=False), N, self.env.device
        self.reset, self.step = self.env.reset, self.env.step

    @property
    def episode_seed(self) -> torch.Tensor:
        return self.env.episode_seed


def test_an_env_without_a_state_can_be_trained_on():
    half, whole = MemoryCheckpoints(), MemoryCheckpoints()
    train(whole, Forgetful(), total_steps=120)
    half.saved[120] = whole.latest()
    assert train(half, Forgetful())[0]["steps"] == 200


@pytest.mark.parametrize("env", [Forgetful, partial(PointEnv, N)])
def test_returns_of_lost_episodes_are_not_continued(env):
    """The scale of rewards is that of the returns of whole episodes."""
    algo = dppo()
    state = OnPolicyState(algo=algo, collector=RolloutCollector(algo, wrap_for(algo.policy, env())))
    state.begin(None)
    scale = algo.learner.estimator.reward_scale
    scale.returns = torch.full((N,), 5.0)
    state.begin(state.state_dict())
    assert scale.returns.sum() == (0.0 if env is Forgetful else 5.0 * N)
    algo.returns(state.collector.collect(3))
    assert scale.returns.shape == (N,)

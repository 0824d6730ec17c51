from __future__ import annotations

import pytest
import torch

from robopolicy.core.errors import SpecError
from robopolicy.core.rng import episode_seeds
from robopolicy.core.types import BASE_ACTION, STATE
from robopolicy.envs.chunk_executor import ChunkExecutor, ChunkQueue
from robopolicy.envs.wrap_for import wrap_for
from robopolicy.envs.wrappers import BaseActionEnv, HistoryEnv
from robopolicy.policies.diffusion import DiffusionPolicy
from tests import toy
from tests.fakes import PointEnv, PointPolicy


def run(env, policy, seeds, steps):
    """Drive chunks through the executor; every (seed, step) → state seen there."""
    executor = ChunkExecutor(policy, env.num_envs)
    obs, seen = env.reset(seeds), {}
    for _ in range(steps):
        for i in range(env.num_envs):
            seen[int(env.episode_seed[i]), int(executor.clock[i])] = obs[STATE][i, -1].tolist()
        step = env.step(executor.next_action(obs, env.episode_seed))
        executor.reset(step.ended)
        obs = step.obs
    return seen


def test_an_episode_does_not_depend_on_its_neighbours():
    seeds = episode_seeds("test", 0, 40)
    policy = PointPolicy(noise=0.05)
    few = run(wrap_for(policy, PointEnv(1)), policy, seeds, 60)
    many = run(wrap_for(policy, PointEnv(7)), policy, seeds, 20)
    common = few.keys() & many.keys()
    assert len(common) > 30
    assert all(few[k] == many[k] for k in common)


@pytest.mark.parametrize("together", [1, 3, 11])
def test_a_plan_is_the_same_to_the_bit_whatever_envs_plan_with_it(together: int):
    """A CPU sums products of few rows in another order; a film of four episodes has to be as its rows of 64 say."""
    policy = toy.policy(DiffusionPolicy, toy.random_episodes()).eval()
    obs, seed = {STATE: torch.randn(64, 1, 3, generator=torch.Generator().manual_seed(0))}, torch.arange(64)
    all_of_them = ChunkExecutor(policy, 64)
    all_of_them.next_action(obs, seed)
    some = ChunkExecutor(policy, 64)
    mask = torch.arange(64) % 64 < together
    some.next_action(obs, seed, mask=mask)
    assert torch.equal(some.queue[mask], all_of_them.queue[mask])


def test_executor_plans_once_per_chunk_and_anew_after_reset():
    policy = PointPolicy(chunk=3)
    executor = ChunkExecutor(policy, 2)
    obs, seed = {STATE: torch.ones(2, 1, 4)}, torch.tensor([1, 2])
    for _ in range(6):
        executor.next_action(obs, seed)
    assert policy.calls == 2
    executor.next_action(obs, seed)
    executor.reset(torch.tensor([True, False]))
    executor.next_action(obs, seed)
    assert policy.calls == 4 and executor.left.tolist() == [2, 1] and executor.clock.tolist() == [1, 8]


def test_masked_rows_do_not_advance():
    executor = ChunkExecutor(PointPolicy(chunk=3), 2)
    executor.next_action({STATE: torch.ones(2, 1, 4)}, torch.tensor([1, 2]), mask=torch.tensor([True, False]))
    assert executor.left.tolist() == [2, 0] and executor.clock.tolist() == [1, 0]


def test_history_repeats_the_first_frame_and_keeps_the_true_successor():
    env = HistoryEnv(PointEnv(3, horizon=4), 3)
    obs = env.reset(episode_seeds("test", 0, 9))
    frames = [obs[STATE][:, -1]]
    assert torch.equal(obs[STATE][:, 0], frames[0])
    for t in range(1, 5):
        step = env.step(torch.zeros(3, 2))
        frames.append(step.next_obs[STATE][:, -1])
        want = torch.stack([frames[max(0, t - 2)], frames[max(0, t - 1)], frames[t]], dim=1)
        assert torch.equal(step.next_obs[STATE], want)
    assert bool(step.truncated.all())
    assert torch.equal(step.obs[STATE][:, 0], step.obs[STATE][:, 2])  # the new episode knows nothing of the old
    assert not torch.equal(step.obs[STATE], step.next_obs[STATE])


def test_base_action_at_episode_edges():
    base = PointPolicy(chunk=3)
    env = BaseActionEnv(HistoryEnv(PointEnv(1, horizon=4), 1), base)
    obs = env.reset(episode_seeds("test", 0, 5))
    planned = obs[BASE_ACTION].clone()
    for t in range(1, 5):
        step = env.step(torch.zeros(1, 2))  # the point stays where it is
        if t == 2:  # still within the first chunk: the queue is popped, not planned anew
            assert torch.equal(step.next_obs[BASE_ACTION], planned)
    # The episode was cut after step 4: the successor's base action belongs to the old episode, obs to the new one.
    old, new = step.next_obs[STATE][:, -1, :2], step.obs[STATE][:, -1, :2]
    assert torch.allclose(step.next_obs[BASE_ACTION], -old / 4)
    assert torch.allclose(step.obs[BASE_ACTION], -new / 4)
    assert env.executor.clock.tolist() == [1] and env.executor.left.tolist() == [2]


def test_an_env_that_stacks_frames_already_is_refused():
    with pytest.raises(SpecError, match="single frames"):
        wrap_for(PointPolicy(), HistoryEnv(PointEnv(2), 2))


def test_resume_is_exact():
    def fresh():
        return BaseActionEnv(HistoryEnv(PointEnv(3, horizon=7), 2), PointPolicy(noise=0.02, n_obs_steps=2))

    env = fresh()
    obs = env.reset()
    for _ in range(10):
        obs = env.step(obs[BASE_ACTION]).obs
    other = fresh()
    other.reset()
    other.load_state_dict(env.state_dict())
    for _ in range(20):
        a, b = env.step(obs[BASE_ACTION]), other.step(obs[BASE_ACTION])
        assert all(torch.equal(a.obs[k], b.obs[k]) and torch.equal(a.next_obs[k], b.next_obs[k]) for k in a.obs)
        obs = a.obs


@pytest.mark.parametrize("shape", [(4, 2), (4, 1, 2), (4, 4, 1), (1, 4, 2), (2,)])
def test_chunks_of_another_shape_are_refused_by_name(shape):
    """torch would broadcast them: every env would play another's actions."""
    queue = ChunkQueue(lambda obs, rows, noise: torch.zeros(shape), 4, action_dim=2, n_action_steps=4)
    with pytest.raises(SpecError, match=r"act: expected chunks \[4 H 2\] with H ≥ n_action_steps=4, found \["):
        queue.next_action({}, torch.arange(4))
    longer = ChunkQueue(lambda obs, rows, noise: torch.zeros(4, 9, 2), 4, action_dim=2, n_action_steps=4)
    assert longer.next_action({}, torch.arange(4)).shape == (4, 2)

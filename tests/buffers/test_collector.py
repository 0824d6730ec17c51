"""Collecting: when envs plan, what is remembered, and that it is the same acting as in evaluation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from robopolicy.buffers.collector import Rollout, RolloutCollector
from robopolicy.core.types import STATE
from robopolicy.envs.chunk_executor import ChunkExecutor
from robopolicy.envs.wrappers import HistoryEnv
from tests.fakes import PointEnv, PointPolicy

TA = 3


class Explorer:
    """Plays PointPolicy, and remembers the state and the noise of every chunk."""

    noise_shape = (TA + 1, 2)

    def __init__(self, *, gain: float = 0.6) -> None:
        self.policy = PointPolicy(gain=gain, noise=0.02, chunk=TA)

    def explore(self, obs: dict[str, Tensor], noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return self.policy.act(obs, noise=noise), {"state": obs[STATE][:, -1], "noise": noise}


def collect(num_envs: int, *lengths: int, **options: Any) -> tuple[RolloutCollector, list[Rollout]]:
    collector = RolloutCollector(Explorer(), HistoryEnv(PointEnv(num_envs, **options), 1))
    collector.reset()
    return collector, [collector.collect(length) for length in lengths]


def test_envs_plan_at_the_start_after_ta_steps_and_after_an_end():
    _, (rollout,) = collect(8, 40)
    ended = rollout.terminated | rollout.truncated
    assert bool(rollout.terminated.any()) and bool(rollout.truncated.any())
    for n in range(8):
        age = 0
        for t in range(40):
            if t == 0 or ended[t - 1, n] or age == TA:
                age = 0
            assert bool(rollout.planned[t, n]) == (age == 0), (t, n)
            age += 1
    assert rollout.steps == 8 * 40
    assert len(rollout.success) == int(ended.sum())


def test_records_are_in_the_order_of_step_and_env():
    _, (rollout,) = collect(8, 30)
    state = rollout.record["state"]
    assert len(state) == int(rollout.planned.sum())
    # The episode clock in the state counts the steps since the last end of that very env.
    row = 0
    ended = rollout.terminated | rollout.truncated
    clock = torch.zeros(8)
    for t in range(30):
        for n in rollout.planned[t].nonzero()[:, 0].tolist():
            assert state[row, 3] == clock[n]
            row += 1
        clock = torch.where(ended[t], 0.0, clock + 1)


def test_successors_of_a_time_limit_are_the_true_ones():
    _, (rollout,) = collect(8, 40, horizon=7)
    assert int(rollout.truncated.sum()) == len(rollout.final_obs[STATE]) > 3
    assert rollout.final_obs[STATE][:, -1, 3].tolist() == [7.0] * len(rollout.final_obs[STATE])
    _, (short,) = collect(8, 2, horizon=7)
    assert short.final_obs[STATE].shape == (0, 1, 4)


def test_values_are_asked_of_the_frames_that_the_policy_reads():
    collector = RolloutCollector(Explorer(), HistoryEnv(PointEnv(4, horizon=5), 3))
    collector.reset()
    rollout = collector.collect(9)
    assert rollout.last_obs[STATE].shape == (4, 1, 4)
    assert rollout.final_obs[STATE][:, -1, 3].tolist() == [5.0] * int(rollout.truncated.sum()) != []
    assert rollout.final_obs[STATE].shape[1] == 1


def test_a_rollout_begins_with_new_chunks_and_goes_on_where_the_last_one_stopped():
    _, (a, b) = collect(4, 4, 5, horizon=50)
    assert bool(a.planned[[0, 3]].all()) and bool(b.planned[[0, 3]].all()) and not bool(b.planned[[1, 2]].any())
    assert torch.equal(b.record["state"][:4], a.last_obs[STATE][:, -1])


def test_training_acts_as_evaluation_does():
    """Same episodes, same noise, same actions: both are ChunkExecutor."""
    explorer = Explorer()
    env = HistoryEnv(PointEnv(4, horizon=9), 1)
    obs, executor, states = env.reset(), ChunkExecutor(explorer.policy, 4), []
    for _ in range(9):
        states.append(obs[STATE][:, -1])
        step = env.step(executor.next_action(obs, env.episode_seed))
        executor.reset(step.ended)
        obs = step.obs
    _, (rollout,) = collect(4, 9, horizon=9)
    assert torch.equal(rollout.record["state"], torch.stack(states)[rollout.planned])


def test_what_an_env_does_does_not_depend_on_its_neighbours():
    # Episodes of fixed length, so that env 0 gets the same first seed in both.
    (_, (few,)), (_, (many,)) = collect(1, 7, horizon=7), collect(6, 7, horizon=7)
    first = many.planned.nonzero()[:, 1] == 0
    for key in ("state", "noise"):
        assert torch.equal(few.record[key], many.record[key][first])


def test_collecting_resumes_bit_for_bit():
    collector, _ = collect(6, 11)
    state = collector.state_dict()
    want = collector.collect(13)
    other, _ = collect(6, 5)
    other.load_state_dict(state)
    found = other.collect(13)
    assert all(torch.equal(want.record[k], found.record[k]) for k in want.record)
    assert torch.equal(want.reward, found.reward) and torch.equal(want.planned, found.planned)
    assert torch.equal(want.last_obs[STATE], found.last_obs[STATE])


def test_rewards_of_failed_physics_are_not_counted(monkeypatch):
    step = PointEnv.step

    def broken(self: PointEnv, action: Tensor) -> Any:
        out = step(self, action)
        return out._replace(reward=torch.full_like(out.reward, torch.nan), valid=torch.zeros_like(out.valid))

    monkeypatch.setattr(PointEnv, "step", broken)
    _, (rollout,) = collect(2, 3)
    assert rollout.reward.tolist() == torch.zeros(3, 2).tolist() and not bool(rollout.valid.any())

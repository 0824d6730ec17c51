"""A dataset as an env: what a replay makes of it, by hand, and the same again after a stop."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from robopolicy.core.errors import CheckpointError, ConfigError, DataError, SpecError
from robopolicy.core.types import STATE, Step, VecEnv
from robopolicy.world_models.envs.recorded import RecordedEnv, make
from tests.world_models.point import walk


def steps(env: RecordedEnv, count: int) -> list[Step]:
    return [env.step(torch.zeros(env.num_envs, 2)) for _ in range(count)]


def test_it_answers_with_what_was_recorded() -> None:
    """Of an episode of three frames that times out and one of two that succeeds, whoever acts."""
    data = walk([3, 2], success=[False, True])
    env = RecordedEnv(data, 2)
    assert isinstance(env, VecEnv) and env.spec.horizon == 3
    found = set()
    for seed in range(40):
        obs = env.reset(torch.tensor([seed, seed + 1]))
        first = (obs[STATE][0] == data.obs[STATE][data.starts[:-1]]).all(1).nonzero()[0, 0]
        frame, taken = int(data.starts[first]), steps(env, 3 - int(first))
        for step in taken[:-1]:
            assert torch.equal(step.executed[0], data.action[frame]) and bool(step.valid[0]) and not bool(step.ended[0])
            assert torch.equal(step.next_obs[STATE][0], data.obs[STATE][frame + 1])
            frame += 1
        end = taken[-1]
        row = tuple(x[0].item() for x in (end.terminated, end.truncated, end.valid, end.success, end.steps, end.reward))
        assert row == [(False, True, False, False, 0, 0.0), (True, False, True, True, 1, 1.0)][int(first)]
        assert torch.equal(end.next_obs[STATE][0], data.obs[STATE][frame]), "not the next episode's"
        found.add(int(first))
    assert found == {0, 1}


def test_an_episode_ends_with_the_first_frame_that_terminates() -> None:
    """A recorder may go on after the task's end, and set the flags on all frames from there on."""
    data, flags = walk([6], success=[True]), torch.arange(6) >= 3
    env = RecordedEnv(replace(data, terminated=flags, success=flags, reward=flags.float()), 1)
    taken = steps(env, 8)
    assert [bool(step.ended[0]) for step in taken] == [False, False, False, True] * 2
    assert [float(step.reward[0]) for step in taken] == [0.0, 0.0, 0.0, 1.0] * 2
    assert torch.equal(taken[3].next_obs[STATE][0], data.obs[STATE][4]), "the frame after it is recorded"
    assert torch.equal(taken[3].obs[STATE][0], data.obs[STATE][0]), "a new episode begins"


def test_seeds_choose_and_it_goes_on_where_it_stopped() -> None:
    data = walk([4, 5, 6, 7])
    a, b = RecordedEnv(data, 2, seed=1), RecordedEnv(data, 2, seed=1)
    steps(a, 5)
    saved = a.state_dict()
    want = torch.stack([s.obs[STATE] for s in steps(a, 20)])
    b.load_state_dict(saved)
    assert torch.equal(torch.stack([s.obs[STATE] for s in steps(b, 20)]), want)
    assert not torch.equal(RecordedEnv(data, 9, seed=2).observe()[STATE], RecordedEnv(data, 9, seed=1).observe()[STATE])
    with pytest.raises(CheckpointError, match="Resume with the dataset it was saved under"):
        RecordedEnv(walk([4, 5], seed=3), 2).load_state_dict(saved)


def test_what_cannot_be_replayed() -> None:
    with pytest.raises(ConfigError, match=r"world\.dataset: needs a value"):
        make(num_envs=1)
    with pytest.raises(DataError, match="neither rewards nor successes"):
        RecordedEnv(replace(walk([3]), outcomes=False), 1)
    with pytest.raises(SpecError, match="must have shape"):
        RecordedEnv(walk([3]), 2).step(torch.zeros(2, 3))
    with pytest.raises(ConfigError, match=r"seeds must be \[M\]"):
        RecordedEnv(walk([3]), 2).reset(torch.zeros(1, dtype=torch.int64))

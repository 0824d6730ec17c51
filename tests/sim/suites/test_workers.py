"""Envs over processes answer as in one; what fails in a worker is told by name."""

from __future__ import annotations

import functools
import os

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from robopolicy.core.errors import ConfigError, RobopolicyError
from robopolicy.core.types import STATE
from robopolicy.sim.gymnasium.adapter import GymVecEnv
from robopolicy.sim.suites.base import global_random, seed32
from robopolicy.sim.suites.workers import vector_env


class Counter(gymnasium.Env):
    """State [seed, count]; success after `length` steps. Action 9 breaks it, -9 kills its process."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.observation_space, self.action_space = Box(-1e9, 1e9, (2,), np.float32), Box(-9.0, 9.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.count = -1 if seed is None else seed, 0
        return np.array([self.seed, 0], np.float32), {"success": False}

    def step(self, action):
        if action[0] == 9:
            raise ValueError("a joint came off")
        if action[0] == -9:
            os._exit(3)
        self.count += 1
        done = self.count >= self.length
        return np.array([self.seed, self.count], np.float32), float(done), done, False, {"success": done}


def make(processes: int, horizon: int = 5) -> GymVecEnv:
    envs = vector_env(functools.partial(Counter, 3), "counter", 5, horizon=horizon, processes=processes, length=3)
    return GymVecEnv(envs, horizon=horizon)


def played(env: GymVecEnv, steps: int) -> list[list[list[float]]]:
    seen = [env.reset(torch.arange(10, 22))[STATE].tolist()]
    for _ in range(steps):
        step = env.step(torch.zeros(5, 1))
        seen += [step.next_obs[STATE].tolist(), step.obs[STATE].tolist(), step.success.tolist(), step.reward.tolist()]
    return seen


@pytest.mark.slow  # two processes import torch
def test_processes_change_nothing():
    """Three envs in one worker, two in the other; resets of some, of all and of none of a worker's share."""
    one, many = make(0), make(2)
    assert one.spec == many.spec
    assert played(one, 8) == played(many, 8)
    assert many.step(torch.zeros(5, 1)).next_obs[STATE][:, 0].tolist()[0] == 20
    many.close()


@pytest.mark.slow
@pytest.mark.parametrize(("action", "said"), [(9.0, "a joint came off"), (-9.0, r"process died \(exit code 3\)")])
def test_a_worker_that_fails_is_told(action, said):
    env = make(2)
    env.reset(torch.arange(5))
    wild = torch.zeros(5, 1)
    wild[4] = action
    with pytest.raises(RobopolicyError, match=said):
        env.step(wild)


@pytest.mark.slow
def test_a_worker_that_died_between_steps_is_told():
    env = make(2)
    env.reset(torch.arange(5))
    worker = env.env._workers[1]
    worker.kill()
    worker.join()
    with pytest.raises(RobopolicyError, match=r"process died \(exit code -9\)"):
        env.step(torch.zeros(5, 1))


def test_a_number_of_workers_is_asked_for():
    with pytest.raises(ConfigError, match="processes: expected 0"):
        make(-1)


def test_time_limits_truncate():
    env = make(0, horizon=2)
    env.reset(torch.arange(5))
    env.step(torch.zeros(5, 1))
    step = env.step(torch.zeros(5, 1))
    assert step.truncated.all() and not step.terminated.any()


def test_seeds_of_32_bits_keep_the_splits_apart():
    numbers = torch.arange(1000).tolist()
    folded = [[seed32((split << 40) + n) for n in numbers] for split in (0, 1, 2)]
    assert [min(f) >> 30 for f in folded] == [0, 1, 2] == [max(f) >> 30 for f in folded]
    assert all(len(set(f)) == 1000 for f in folded)
    assert seed32((1 << 39) + 1) != seed32(1), "the upper bits count"
    assert seed32((3 << 40) - 1) < 2**32


def test_global_generators_are_as_they_were():
    np.random.seed(0)  # noqa: NPY002
    expected = np.random.RandomState(0).rand(2)
    first = np.random.rand()  # noqa: NPY002
    with global_random(7):
        inside = np.random.rand()  # noqa: NPY002
    with global_random(7):
        assert np.random.rand() == inside  # noqa: NPY002
    assert [first, np.random.rand()] == expected.tolist()  # noqa: NPY002

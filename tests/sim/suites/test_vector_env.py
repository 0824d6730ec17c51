"""A suite's envs have a time limit, and tell success; their seeds have 32 bits."""

from __future__ import annotations

import functools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.sim.gymnasium.adapter import GymVecEnv
from robopolicy.sim.gymnasium.farm import in_one_process
from robopolicy.sim.suites import vector_env as suites
from robopolicy.sim.suites.base import global_random, seed32
from robopolicy.sim.suites.vector_env import vector_env


class Counter(gymnasium.Env):
    """State [seed, count]; success after `length` steps."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.observation_space, self.action_space = Box(-1e9, 1e9, (2,), np.float32), Box(-9.0, 9.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.count = -1 if seed is None else seed, 0
        return np.array([self.seed, 0], np.float32), {"success": False}

    def step(self, action):
        self.count += 1
        done = self.count >= self.length
        return np.array([self.seed, self.count], np.float32), float(done), done, False, {"success": done}


def make(processes: int, horizon: int = 5) -> GymVecEnv:
    envs = vector_env(functools.partial(Counter, 3), "counter", 5, horizon=horizon, processes=processes, length=3)
    return GymVecEnv(envs, horizon=horizon)


def test_a_number_of_workers_is_asked_for():
    with pytest.raises(ConfigError, match="processes: expected 0"):
        make(-1)
    with pytest.raises(ConfigError, match=r"task\.farm=ray: set .*task\.processes=2"):
        vector_env(Counter, "counter", 5, horizon=5, processes=0, farm="ray")


def test_more_workers_than_envs_are_not_started(monkeypatch, caplog):
    started = []
    monkeypatch.setattr(suites, "Farm", lambda *given, **how: started.append(given[2]) or in_one_process(*given[:2]))
    make(7)
    assert started == [5] and "task.processes=7: 5 envs" in caplog.text


class SelfResetting(Counter):
    """Resets itself in the step that ends an episode."""

    def step(self, action):
        obs, reward, done, truncated, info = super().step(action)
        if done:
            info, obs = {**info, "final_observation": obs}, self.reset()[0]
        return obs, reward, done, truncated, info


@pytest.mark.parametrize("own", [False, True], ids=["vector env of strangers", "suite"])
def test_an_env_that_resets_itself_is_refused(own):
    one = functools.partial(SelfResetting, 2)
    envs = vector_env(one, "counter", 1, horizon=5, processes=0) if own else gymnasium.vector.SyncVectorEnv([one])
    env = GymVecEnv(envs, horizon=5)
    env.reset()
    env.step(torch.zeros(1, 1))
    with pytest.raises(SpecError, match=r"'final_observation'.*resetting"):
        env.step(torch.zeros(1, 1))


def test_time_limits_truncate():
    env = make(0, horizon=2)
    env.reset(torch.arange(5))
    env.step(torch.zeros(5, 1))
    step = env.step(torch.zeros(5, 1))
    assert step.truncated.all() and not step.terminated.any()


def test_seeds_of_32_bits_keep_the_splits_apart():
    numbers = torch.arange(1000).tolist()
    folded = [[seed32((split << 40) + n) for n in numbers] for split in range(4)]
    assert [min(f) >> 30 for f in folded] == [0, 1, 2, 3] == [max(f) >> 30 for f in folded]
    assert all(len(set(f)) == 1000 for f in folded)
    assert seed32((1 << 39) + 1) != seed32(1), "the upper bits count"
    assert seed32((4 << 40) - 1) < 2**32


def test_global_generators_are_as_they_were():
    np.random.seed(0)  # noqa: NPY002
    expected = np.random.RandomState(0).rand(2)
    first = np.random.rand()  # noqa: NPY002
    with global_random(7):
        inside = np.random.rand()  # noqa: NPY002
    with global_random(7):
        assert np.random.rand() == inside  # noqa: NPY002
    assert [first, np.random.rand()] == expected.tolist()  # noqa: NPY002


def test_no_env_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"num_envs: expected at least 1, found 0"):
        vector_env(functools.partial(Counter, 3), "counter", 0, horizon=5, processes=0)

"""Gymnasium ids as tasks: gym-pusht, Fetch, and what is not admitted."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from robopolicy.cli import main
from robopolicy.errors import ConfigError
from robopolicy.types import STATE
from sim.suites import gym


class Slide(gymnasium.Env):
    """Dense reward; success, not an end of its own, from the third step on."""

    def __init__(self, unit: str = "m") -> None:
        self.observation_space, self.action_space = Box(-9, 9, (1,), np.float32), Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.full(1, self.t, np.float32), -0.5, False, False, {"is_success": self.t >= 3}


gymnasium.register("Slide-v0", entry_point=Slide, max_episode_steps=6)


def test_success_ends_and_is_the_reward_unless_asked_otherwise():
    env = gym.make("Slide-v0", 1)
    env.reset(torch.tensor([1]))
    steps = [env.step(torch.zeros(1, 1)) for _ in range(3)]
    assert [s.reward.item() for s in steps] == [0, 0, 1] and [bool(s.terminated) for s in steps] == [False, False, True]
    env = gym.make("Slide-v0", 1, own_reward=True)
    env.reset(torch.tensor([1]))
    steps = [env.step(torch.zeros(1, 1)) for _ in range(6)]
    assert [s.reward.item() for s in steps] == [-0.5] * 6 and not any(s.terminated for s in steps)
    assert [bool(s.success) for s in steps] == [False, False, True, True, True, True] and bool(steps[5].truncated)


def test_a_task_is_another_with_other_options():
    digests = {gym.make("Slide-v0", 1, **how).spec.digest
               for how in ({}, {"horizon": 4}, {"options": {"unit": "cm"}}, {"own_reward": True})}  # fmt: skip
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"name": "Slid-v0"}, "no such Gymnasium id is registered. Did you mean 'Slide-v0'"),
        ({"name": "Slide-v0", "horizon": 7}, "expected 1 to 6 steps for Slide-v0, found 7"),
        ({"name": "Slide-v0", "package": "os"}, "package='os': expected one of gym_pusht, gymnasium_robotics, or"),
    ],
)
def test_what_is_wrong_is_named(how, said):
    with pytest.raises(ConfigError) as error:
        gym.make(num_envs=1, **how)
    assert said in str(error.value)


def test_a_task_without_an_expert_says_so(tmp_path, capsys):
    task = ["task=gymnasium", "task.name=Slide-v0"]
    assert main(["demos", *task, f"out={tmp_path}/data", "episodes=1", "num_envs=1"]) == 1
    assert "Slide-v0: has no scripted expert" in capsys.readouterr().err


def test_fetch_says_what_its_actions_mean():
    pytest.importorskip("gymnasium_robotics", reason="needs ./scripts/setup.sh suites")
    env = gym.make("FetchReach-v4", 1, package="gymnasium_robotics")
    assert (env.spec.action.names, env.spec.dt, env.spec.horizon) == (("dx", "dy", "dz", "gripper"), 0.04, 50)
    env.reset(torch.tensor([1]))
    before = env.step(torch.zeros(1, 4)).next_obs[STATE]
    after = env.step(torch.tensor([[0.0, 0.0, 1.0, 0.0]])).next_obs[STATE]
    moved = (after - before)[0, torch.tensor([3, 4, 5])]  # achieved_goal 0:3, desired_goal 3:6, observation 6:
    assert torch.equal(moved, torch.zeros(3)), "the goal stays"
    assert float((after - before)[0, 2]) > 0.003, "the hand rises"


def test_pusht_is_as_its_authors_made_it():
    pytest.importorskip("gym_pusht", reason="needs ./scripts/setup.sh suites")
    env = gym.make("gym_pusht/PushT-v0", 1, package="gym_pusht")
    assert (env.spec.dt, env.spec.horizon, env.spec.action.high) == (0.1, 300, (512.0, 512.0))
    assert env.reset(torch.tensor([1]))[STATE].shape == (1, 5)

"""Gymnasium both ways."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

import sim.gym_envs
from robopolicy.errors import ConfigError
from robopolicy.types import STATE, VecEnv
from sim.gym_adapter import GymVecEnv, adapt

sim.gym_envs.register()


class Counter(gymnasium.Env):
    """Counts its steps; ends after `length`; the observation is [seed, count]."""

    def __init__(self, length: int = 3, as_dict: bool = False):
        self.length, self.as_dict = length, as_dict
        box = Box(-1e9, 1e9, (2,), np.float32)
        image = Box(0, 255, (8, 6, 3), np.uint8)
        self.observation_space = Dict({"camera": image, "numbers": box}) if as_dict else box
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)

    def _obs(self):
        numbers = np.array([self.seed, self.count], np.float32)
        return {"camera": np.full((8, 6, 3), self.count, np.uint8), "numbers": numbers} if self.as_dict else numbers

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.count = -1 if seed is None else seed, 0
        return self._obs(), {}

    def step(self, action):
        self.count += 1
        ended = self.count >= self.length
        return self._obs(), 1.0, ended, ended, {"success": ended}


class Plain(VectorEnv):
    """A NEXT_STEP vector env of somebody else's, without reset masks."""

    def __init__(self, lengths):
        self.inner = SyncVectorEnv([lambda k=k: Counter(k) for k in lengths])
        self.num_envs, self.metadata = len(lengths), {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space = self.inner.single_observation_space
        self.single_action_space, self.spec = self.inner.single_action_space, None

    def reset(self, *, seed=None, options=None):
        assert not options
        return self.inner.reset(seed=seed)

    def step(self, actions):
        return self.inner.step(actions)


def counters(mode: AutoresetMode, lengths=(3, 5), **kw) -> GymVecEnv:
    return adapt(SyncVectorEnv([lambda k=k: Counter(k, **kw) for k in lengths], autoreset_mode=mode), horizon=9)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_successors_are_right_in_every_autoreset_mode(mode):
    env = counters(mode)
    assert isinstance(env, VecEnv)
    env.reset(torch.tensor([7, 8]))
    seen = [env.step(torch.zeros(2, 1)) for _ in range(6)]
    assert [s.next_obs[STATE][0, 1].item() for s in seen] == [1, 2, 3, 1, 2, 3]
    assert [s.obs[STATE][0, 1].item() for s in seen] == [1, 2, 0, 1, 2, 0]
    assert [s.next_obs[STATE][1, 1].item() for s in seen] == [1, 2, 3, 4, 5, 1]
    assert [s.terminated[0].item() for s in seen] == [False, False, True] * 2
    assert not any(s.truncated.any() for s in seen), "where both are set, the episode terminated"
    assert [s.success[0].item() for s in seen] == [False, False, True] * 2
    assert all(s.valid.all() and (s.steps == 1).all() for s in seen)
    assert seen[0].obs is seen[0].next_obs


def test_seeds_are_handed_out_where_the_mode_allows_it():
    env = counters(AutoresetMode.DISABLED)
    env.reset(torch.tensor([7, 8, 9]))
    for _ in range(3):
        step = env.step(torch.zeros(2, 1))
    assert step.obs[STATE][:, 0].tolist() == [9, 8] and env.episode_seed.tolist() == [9, 8]
    with pytest.raises(ConfigError, match="DISABLED"):
        counters(AutoresetMode.SAME_STEP).reset(torch.tensor([1, 2, 3]))


def test_the_reset_step_of_a_foreign_next_step_env_is_marked():
    env = adapt(Plain((2, 4)), horizon=9)
    env.reset(torch.tensor([1, 2]))
    seen = [env.step(torch.zeros(2, 1)) for _ in range(5)]
    assert [s.valid[0].item() for s in seen] == [True, True, False, True, True]
    assert [s.steps[0].item() for s in seen] == [1, 1, 0, 1, 1]
    assert seen[2].truncated[0] and seen[2].reward[0] == 0 and seen[2].obs[STATE][0, 1] == 0
    assert all(s.valid[1] for s in seen[:4])


def test_dict_observations_become_our_features():
    env = counters(AutoresetMode.SAME_STEP, as_dict=True)
    env.reset()
    step = [env.step(torch.zeros(2, 1)) for _ in range(3)][-1]
    assert step.next_obs["observation.images.camera"].shape == (2, 3, 8, 6)
    assert step.next_obs["observation.images.camera"][0].unique().tolist() == [3]
    assert step.obs["observation.images.camera"][0].unique().tolist() == [0]
    assert env.spec.observation[STATE].shape == (2,)


def test_a_native_task_survives_the_round_trip():
    env = adapt(gymnasium.make_vec("robopolicy/Pick-v0", num_envs=3, horizon=4), horizon=4)
    native = sim.make("pick", 3, horizon=4)
    seeds = torch.arange(3)
    assert torch.equal(env.reset(seeds)[STATE], native.reset(seeds)[STATE])
    for _ in range(4):
        a, b = env.step(torch.full((3, 5), 0.01)), native.step(torch.full((3, 5), 0.01))
        assert torch.equal(a.next_obs[STATE], b.next_obs[STATE]) and torch.equal(a.truncated, b.truncated)
    assert a.truncated.all()


@pytest.mark.filterwarnings("ignore")
def test_gymnasiums_own_checker_passes():
    from gymnasium.utils.env_checker import check_env

    env = gymnasium.make("robopolicy/Reach-v0", render_mode="rgb_array")
    check_env(env.unwrapped, skip_render_check=True)
    first, _ = env.reset(seed=5)
    again, _ = env.reset(seed=5)
    assert np.array_equal(first, again) and not np.array_equal(first, env.reset(seed=6)[0])
    assert env.render().shape == (240, 320, 3)
    env.close()

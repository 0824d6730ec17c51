"""Bring a Gymnasium environment: record a controller, imitate it, refine the imitation by reinforcement learning."""

from __future__ import annotations

import sys
from typing import ClassVar

import gymnasium
import numpy as np

import robopolicy as rp
from robopolicy.config.registry import register
from robopolicy.datasets.demonstrations import record_demos
from robopolicy.sim.gymnasium.adapter import GymVecEnv, adapt

SMALL = "--small" in sys.argv  # shows that it runs, and learns nothing


class Dock(gymnasium.Env):
    """A drifting boat must stop within 10 cm of the jetty, which is the origin."""

    metadata: ClassVar = {"render_modes": [], "render_fps": 10}  # 10 control steps a second
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)  # position m, velocity m/s
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)  # acceleration m/s²

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = np.concatenate([self.np_random.uniform(-1, 1, 2), self.np_random.uniform(-0.3, 0.3, 2)])
        return self.state.astype(np.float32), {}

    def step(self, action):
        self.state[2:] += 0.1 * action
        self.state[:2] += 0.1 * self.state[2:]
        done = bool(np.linalg.norm(self.state[:2]) < 0.1 and np.linalg.norm(self.state[2:]) < 0.1)
        return self.state.astype(np.float32), float(done), done, False, {"success": done}


@register("task", "dock")  # the name in configs and run directories
def dock(num_envs: int, seed: int = 0) -> GymVecEnv:
    return adapt(gymnasium.make_vec("Dock-v0", num_envs=num_envs), seed=seed, instructions="stop at the jetty")


class Controller:
    def reset(self, mask, *, episode_seed): ...

    def act(self, obs):
        state = obs["observation.state"]  # [N 4]
        return (-0.8 * state[:, :2] - 1.6 * state[:, 2:]).clamp(-1.0, 1.0)  # [N 2]


gymnasium.register("Dock-v0", entry_point=Dock, max_episode_steps=100)
task = {"_target_": "dock"}
record_demos(env=rp.make_env(task, num_envs=8), expert=Controller(), episodes=5 if SMALL else 20, out="data/dock")
how = {"task": task, "dataset": "data/dock", "tracker": "local"}
rp.train("runs/base", policy="gaussian", loop={"steps": 20 if SMALL else 300}, **how)
small = {"loop": {"total_steps": 400, "warmup_steps": 200, "critic_only_updates": 5}, "validation_episodes": 4}
rp.train("runs/refined", algo="residual", base="runs/base", num_envs=8, **how, **(small if SMALL else {}))
rp.compare("runs/base", "runs/refined", task=task, episodes=8 if SMALL else 200)

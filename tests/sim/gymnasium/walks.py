"""An env for workers, in a module that imports little: each worker imports it."""

from __future__ import annotations

import os

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from robopolicy.core.errors import ConfigError

RAISES = 9.0  # action that breaks an env


class Walk(gymnasium.Env):
    """A random walk of its seed and actions [seed, count, place]; success beyond 3; one action breaks it."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  as Gymnasium has it
    render_mode = "rgb_array"

    def __init__(self, broken: str = "") -> None:
        self.observation_space, self.action_space = Box(-1e9, 1e9, (3,), np.float32), Box(-9.0, 9.0, (1,), np.float32)
        if broken == "raises":
            raise ConfigError("the gripper is not on this machine")
        if broken == "dies":
            os._exit(7)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.count, self.place = seed or 0, 0, float(self.np_random.normal())
        return self._seen(), {"success": False}

    def step(self, action):
        if action[0] == RAISES:
            raise ValueError("a joint came off")
        self.count += 1
        self.place += float(action[0]) + float(self.np_random.normal())
        return self._seen(), self.place, self.place > 3, False, {"success": self.place > 3}

    def render(self):
        return np.full((4, 4, 3), self.count, np.uint8)

    def _seen(self):
        return np.array([self.seed % 1000, self.count, self.place], np.float32)

"""ManiSkill's own batched simulator as one vector env: N scenes in one PhysX on a GPU, stepped together.

The suite draws what a reset needs for all of its envs at once, from the first one's seed: so ended envs are reset one
by one here, and where an episode begins is a function of its seed. How it goes on is not, to the last digit: what PhysX
keeps of neighbours and earlier episodes may show.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from sim.suites.seeds import seed32


class ManiSkillBatch(VectorEnv):
    """N envs whose ended episodes wait to be reset (AutoresetMode.DISABLED), numbers on the CPU as everywhere.

    Args:
        inner: the suite's env of N scenes, or of the one that its CPU backend has.
        horizon: steps to truncation.
    """

    def __init__(self, inner: Any, horizon: int) -> None:
        self.inner, self.horizon, self.num_envs = inner, horizon, inner.num_envs
        self._age = np.zeros(self.num_envs, dtype=np.int64)
        obs, _ = inner.reset(seed=[0] * self.num_envs)
        self.single_observation_space = gymnasium.spaces.Box(-np.inf, np.inf, obs.shape[1:], np.float32)
        self.single_action_space = gymnasium.spaces.Box(-1.0, 1.0, inner.single_action_space.shape, np.float32)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {"render_fps": 20, "autoreset_mode": AutoresetMode.DISABLED}
        self._seen = obs.cpu().numpy().copy()

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        rows = (options or {}).get("reset_mask", np.ones(self.num_envs, dtype=bool))
        for i in rows.nonzero()[0].tolist():
            # The suite takes the first of N seeds for whichever envs are reset.
            seeds = None if seed is None else [seed32(seed[i])] * self.num_envs
            chosen = torch.tensor([i], device=self.inner.device)
            obs, _ = self.inner.reset(seed=seeds, options={"env_idx": chosen})
        if rows.any():
            self._seen = np.where(rows[:, None], obs.cpu().numpy(), self._seen)
        self._age[rows] = 0
        return self._seen.copy(), {}

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        sent = torch.from_numpy(np.asarray(actions, dtype=np.float32)).to(self.inner.device)
        obs, _, _, _, info = self.inner.step(sent)
        self._seen, self._age = obs.cpu().numpy().copy(), self._age + 1
        success = info["success"].cpu().numpy().astype(bool)
        return self._seen.copy(), success.astype(np.float64), success, self._age >= self.horizon, {"success": success}

    def close_extras(self, **_: Any) -> None:
        self.inner.close()

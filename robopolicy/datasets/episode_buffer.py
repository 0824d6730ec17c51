"""Collect the frames of running episodes and return whole episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robopolicy.core.types import TASK, EnvSpec, Obs, Step


@dataclass
class RecordedEpisode:
    """Finished episode of T frames; `valid` is False after a physics fault."""

    obs: Obs
    action: Tensor
    reward: Tensor
    success: Tensor
    terminated: bool
    valid: bool
    task: str
    seed: int

    def columns(self) -> dict[str, Any]:
        """Return the arguments of `DatasetWriter.add_episode`."""
        return {k: v for k, v in vars(self).items() if k != "valid"}


class EpisodeBuffer:
    """Collect frames of N running episodes and return whole ones. Memory: N × horizon frames."""

    def __init__(self, spec: EnvSpec, num_envs: int, keys: tuple[str, ...]) -> None:
        self.spec, self.keys = spec, keys
        self.age = torch.zeros(num_envs, dtype=torch.int64)  # [N] frames so far
        self._env = torch.arange(num_envs)
        self._store: dict[str, Tensor] = {}  # [horizon N ...]

    def add(self, obs: Obs, step: Step, *, episode_seed: Tensor) -> list[RecordedEpisode]:
        """Add one step of all envs and return the episodes that ended with it.

        Args:
            obs: [N ...] before the step. step: its result. Steps of length 0 (an env that was resetting) are ignored.
            episode_seed: [N] seeds of the running episodes.
        """
        row = {**{k: obs[k] for k in self.keys}, "action": step.executed, "reward": step.reward,
               "success": step.success, "valid": step.valid}  # fmt: skip
        for key, value in row.items():
            if key not in self._store:
                self._store[key] = value.new_zeros((self.spec.horizon + 1, *value.shape))
            self._store[key][self.age, self._env] = value
        self.age += step.steps > 0
        ended = (step.ended & (self.age > 0)).nonzero()[:, 0].tolist()
        episodes = [self._take(i, bool(step.terminated[i]), int(episode_seed[i]), self._task(obs, i)) for i in ended]
        self.age[ended] = 0
        return episodes

    def _task(self, obs: Obs, env: int) -> str:
        return self.spec.tasks[int(obs[TASK][env])] if TASK in obs else self.spec.tasks[0]

    def _take(self, env: int, terminated: bool, seed: int, task: str) -> RecordedEpisode:
        part = {k: v[: int(self.age[env]), env].clone() for k, v in self._store.items()}
        obs = {k: part[k] for k in self.keys}
        valid = bool(part["valid"].all())
        return RecordedEpisode(obs, part["action"], part["reward"], part["success"], terminated, valid, task, seed)

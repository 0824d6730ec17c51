"""Choose the next episodes of an env without a simulator: given seeds, then its own training stream."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from robopolicy.core.errors import ConfigError
from robopolicy.core.rng import episode_seeds


class SeedQueue:
    """Queue of episode seeds.

    Args:
        seed: names the training stream (`robopolicy.core.rng.episode_seeds("train", seed, …)`).
        num_envs: N, the least that `start` takes.
    """

    def __init__(self, seed: int, num_envs: int) -> None:
        self.seed, self.num_envs = seed, num_envs
        self._given, self._handed = torch.zeros(0, dtype=torch.int64), 0

    def start(self, seeds: Tensor | None) -> None:
        """Queue `seeds` [M] and drop earlier ones (None: continue the training stream).

        Raises:
            ConfigError: fewer than N of them, or not a vector.
        """
        if seeds is not None and (seeds.ndim != 1 or len(seeds) < self.num_envs):
            raise ConfigError(f"reset: seeds must be [M] with M >= {self.num_envs}, found {tuple(seeds.shape)}")
        self._given = torch.zeros(0, dtype=torch.int64) if seeds is None else seeds.to(torch.int64).cpu().clone()

    def next(self, count: int) -> Tensor:
        """Return seeds [count] of the next episodes."""
        seeds, self._given = self._given[:count], self._given[count:]
        if missing := count - len(seeds):
            seeds = torch.cat([seeds, episode_seeds("train", self.seed, missing, start=self._handed)])
            self._handed += missing
        return seeds

    def state_dict(self) -> dict[str, Any]:
        return {"given": self._given.clone(), "handed": self._handed, "seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._given, self._handed, self.seed = state["given"].clone(), int(state["handed"]), int(state["seed"])

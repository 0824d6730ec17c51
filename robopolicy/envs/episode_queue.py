"""Choose the next episodes of an env, and their random numbers, as a pure function of their seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robopolicy.core.errors import ConfigError
from robopolicy.core.rng import episode_seeds, keyed_uniform
from robopolicy.utils import ranks

_STREAM = 9001  # reset numbers; experts, policies and sensor noise use other streams
_BLOCK = 256  # training episodes drawn ahead at once: a Philox call costs the same for 1 and for 256


class EpisodeQueue:
    """Queue of episode seeds: first those given at `start`, then the env's own training stream.

    Once `share` was called, all ranks take from one stream, in the order of one rank with all envs. `next` is then an
    exchange between ranks: every rank calls it in every step, with 0 where no episode ended.

    Args:
        seed: names the training stream (`robopolicy.core.rng.episode_seeds("train", seed, …)`).
        ranges: name -> (low, high) of the uniform numbers of an episode.

    Raises:
        ConfigError: a bound that is not finite.
    """

    def __init__(self, seed: int, ranges: Mapping[str, tuple[float, float]]) -> None:
        self.seed = seed
        self.names = tuple(ranges)
        bounds = np.array(list(ranges.values()), dtype=np.float64).reshape(-1, 2)
        if not np.isfinite(bounds).all():
            name = self.names[int((~np.isfinite(bounds)).any(axis=1).argmax())]
            raise ConfigError(f"range of {name}: expected two finite numbers, found {tuple(ranges[name])}")
        self._low, self._span = bounds[:, 0], bounds[:, 1] - bounds[:, 0]
        self._given = torch.empty(0, dtype=torch.int64)
        self._count = 0  # training episodes handed out, in all ranks that share the stream
        self.shared = False
        self._block: tuple[int, NDArray[np.int64], NDArray[np.float64]] = (-1, np.empty(0, np.int64), np.empty(0))

    def start(self, seeds: Tensor | None, *, num_envs: int = 0) -> None:
        """Queue `seeds` [M] and drop earlier ones (None: continue the training stream).

        Raises:
            ConfigError: fewer than `num_envs` of them, or not a vector.
        """
        if seeds is not None and (seeds.ndim != 1 or len(seeds) < num_envs):
            raise ConfigError(f"reset: seeds must be [M] with M >= {num_envs}, found {tuple(seeds.shape)}")
        self._given = torch.empty(0, dtype=torch.int64) if seeds is None else seeds.to(torch.int64).cpu().clone()

    def share(self) -> None:
        """Take from one stream with the queues of all ranks, which have handed out equally many episodes."""
        self.shared, self._count = True, self._count * ranks.count()

    def reseed(self, seed: int) -> None:
        """Start another training stream."""
        self.seed, self._count = seed, 0
        self._given = self._given[:0]
        self._block = (-1, np.empty(0, np.int64), np.empty(0))

    def numbers(self, seeds: Tensor) -> NDArray[np.float64]:
        """[M K] numbers of the episodes `seeds` [M], scaled to their ranges."""
        if not self.names:
            return np.zeros((len(seeds), 0))
        unit = keyed_uniform(seeds, torch.zeros_like(seeds), (len(self.names),), stream=_STREAM)
        return unit.double().numpy() * self._span + self._low

    def next(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return seeds [count] and numbers [count K] of the next episodes."""
        if not len(self._given):
            return self._train(count)
        given, self._given = self._given[:count], self._given[count:]
        seeds, numbers = given.numpy(), self.numbers(given)
        if len(given) < count:
            more, more_numbers = self._train(count - len(given))
            seeds, numbers = np.concatenate([seeds, more]), np.concatenate([numbers, more_numbers])
        return seeds, numbers

    def _train(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        before, after = (0, 0) if not self.shared else _others(count)
        self._count += before
        parts: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []
        if not count:
            parts.append((np.empty(0, np.int64), np.empty((0, len(self.names)))))
        while count:
            block, at = divmod(self._count, _BLOCK)
            if self._block[0] != block:
                seeds = episode_seeds("train", self.seed, _BLOCK, start=block * _BLOCK)
                self._block = (block, seeds.numpy(), self.numbers(seeds))
            take = min(count, _BLOCK - at)
            parts.append((self._block[1][at : at + take], self._block[2][at : at + take]))
            self._count += take
            count -= take
        self._count += after
        if len(parts) == 1:
            return parts[0]
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

    def state_dict(self) -> dict[str, Any]:
        return {"given": self._given.clone(), "count": self._count, "seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reseed(int(state["seed"]))
        self._given, self._count = state["given"].clone(), int(state["count"])


def _others(count: int) -> tuple[int, int]:
    """Return how many episodes the ranks before this one take in this step, and those after it."""
    counts = ranks.gather_rows(torch.tensor([count])).tolist()
    return sum(counts[: ranks.rank()]), sum(counts[ranks.rank() + 1 :])

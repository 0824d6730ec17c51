"""Replay whose windows come with the chunk that was executed in them, and with who drove."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from robopolicy.buffers.replay_buffer import Replay
from robopolicy.config.schema import Count, Fraction
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import Obs, Step
from robopolicy.datasets.episodes import Episodes

POLICY, HUMAN, REWIND, DEMONSTRATION = range(4)  # who drove; the first three as in data.tables.DRIVERS


class ChunkBatch(NamedTuple):
    """B transitions over the up to Ta primitive steps of an executed chunk, and what was done up to step H."""

    obs: Obs  # [B ...] what the policy makes of the observation
    action: Tensor  # [B H Da] executed, physical units; 0 where `keep` is not
    keep: Tensor  # [B H] bool: the step belongs to the episode; always for step 0
    driver: Tensor  # [B H] int64: POLICY, HUMAN, REWIND or DEMONSTRATION
    reward: Tensor  # [B] Σ γⁱ rᵢ over the first Ta steps or fewer
    discount: Tensor  # [B] γ^steps·(1 − terminated): what multiplies the value of next_obs
    next_obs: Obs  # [B ...] after these steps

    def to(self, device: torch.device) -> ChunkBatch:
        """The same batch on `device`."""
        moved: list[Any] = [
            {k: v.to(device) for k, v in x.items()} if isinstance(x, dict) else x.to(device) for x in self
        ]
        return ChunkBatch(*moved)


class ChunkReplay(Replay):
    """Stores primitive steps, as Replay does, and forms chunks at sampling: they begin anywhere, not only where one
    was planned, so that every frame is learned from, a demonstration's too.

    Args:
        capacity: transitions over all envs. gamma: γ per primitive step.
        spec: of the policy; windows are Ta steps long, chunks H.
    """

    def __init__(self, *, capacity: Count, num_envs: Count, gamma: Fraction, spec: PolicySpec) -> None:
        super().__init__(capacity=capacity, num_envs=num_envs, n_step=spec.n_action_steps, gamma=gamma, spec=spec)
        self.chunks = spec

    def _empty(self, capacity: int) -> ChunkReplay:
        return ChunkReplay(capacity=capacity, num_envs=1, gamma=self.gamma, spec=self.chunks)

    def _allocate(self, obs: Obs, step: Step) -> None:
        super()._allocate(obs, step)
        self.store["driver"] = torch.full((self.rows, self.num_envs), POLICY)

    def window(self, age: Tensor, env: Tensor) -> ChunkBatch:  # type: ignore[override]
        """The windows that start at the `age`-th oldest rows [B] of envs `env` [B], and their chunks."""
        found = super().window(age, env)
        steps = age[:, None] + torch.arange(self.chunks.horizon)
        at, keep = self._steps(age, env, self.chunks.horizon)
        keep &= steps < self.size  # beyond the newest row the ring begins again
        action = self.store["action"].flatten(0, 1)[at].masked_fill(~keep[..., None], 0.0)
        driver = torch.take(self.store["driver"], at)
        return ChunkBatch(found.obs, action, keep, driver, found.reward, found.discount, found.next_obs)

    def of_episodes(self, episodes: Episodes, *, obs: Obs) -> ChunkReplay:
        """See Replay. Where a dataset does not say who drove, all of it is demonstrations."""
        replay = super().of_episodes(episodes, obs=obs)
        assert isinstance(replay, ChunkReplay)
        driver = torch.full((replay.rows, 1), DEMONSTRATION)
        if episodes.driver is not None:
            driver[: episodes.num_frames, 0] = episodes.driver
        replay.store["driver"] = driver
        return replay

"""Store experience whose windows contain the executed chunk and the driver of each step."""

from __future__ import annotations

import torch
from torch import Tensor

from robopolicy.buffers.batch import ChunkBatch
from robopolicy.buffers.replay_buffer import Replay
from robopolicy.config.schema import Count, Fraction
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import Obs, Step
from robopolicy.datasets.episodes import Episodes

POLICY, HUMAN, REWIND, DEMONSTRATION = range(4)  # drivers; the first three as in datasets.tables.DRIVERS


class ChunkReplay(Replay):
    """Stores primitive steps, as Replay does, and forms chunks at sampling.

    Chunks begin at any frame, planned or not. So every frame is learned from, in demonstrations too.

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
        """Form the windows that start at the `age`-th oldest rows [B] of envs `env` [B], and their chunks."""
        found = super().window(age, env)
        steps = age[:, None] + torch.arange(self.chunks.horizon)
        at, keep = self._steps(age, env, self.chunks.horizon)
        keep &= steps < self.size  # after the newest row the ring starts again
        action = self.store["action"].flatten(0, 1)[at].masked_fill(~keep[..., None], 0.0)
        driver = torch.take(self.store["driver"], at)
        return ChunkBatch(found.obs, action, keep, driver, found.reward, found.discount, found.next_obs)

    def of_episodes(self, episodes: Episodes, *, obs: Obs) -> ChunkReplay:
        """See Replay. A dataset without a driver column counts as demonstrations."""
        replay = super().of_episodes(episodes, obs=obs)
        assert isinstance(replay, ChunkReplay)
        driver = torch.full((replay.rows, 1), DEMONSTRATION)
        if episodes.driver is not None:
            driver[: episodes.num_frames, 0] = episodes.driver
        replay.store["driver"] = driver
        return replay

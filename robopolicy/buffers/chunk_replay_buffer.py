"""Store experience whose windows contain the executed chunk and the driver of each step."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from robopolicy.buffers.replay_buffer import Replay
from robopolicy.config.schema import Count, Fraction
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import Obs, Step

POLICY, HUMAN, REWIND, DEMONSTRATION = range(4)  # drivers; the first three as in datasets.tables.DRIVERS

_LOOK_BACK = 64  # rows in which an episode's begin is looked for first


class ChunkBatch(NamedTuple):
    """B transitions over the up to Ta primitive steps of an executed chunk, and the actions up to step H."""

    obs: Obs  # [B ...] replay features
    action: Tensor  # [B H Da] executed, physical units; 0 where `keep` is False
    keep: Tensor  # [B H] bool: the step belongs to the episode; always for step 0
    driver: Tensor  # [B H] int64: POLICY, HUMAN, REWIND or DEMONSTRATION
    reward: Tensor  # [B] Σ γⁱ rᵢ over the first Ta steps or fewer
    discount: Tensor  # [B] γ^steps·(1 − terminated): what multiplies the value of next_obs
    next_obs: Obs  # [B ...] after these steps
    success: Tensor  # [B] bool: their episode has ended, and with success

    def to(self, device: torch.device) -> ChunkBatch:
        """Copy the batch to `device`."""
        moved: list[Any] = [
            {k: v.to(device) for k, v in x.items()} if isinstance(x, dict) else x.to(device) for x in self
        ]
        return ChunkBatch(*moved)


class ChunkReplay(Replay):
    """Stores primitive steps, as Replay does, and forms chunks at sampling.

    Chunks begin at any frame, planned or not. So every frame is learned from, in demonstrations too.

    Args:
        capacity: transitions over all envs. gamma: γ per primitive step; None: by the horizon, see discount_of.
        spec: of the policy; windows are Ta steps long, chunks H. horizon: primitive steps of an episode.
    """

    def __init__(
        self,
        *,
        capacity: Count,
        num_envs: Count,
        gamma: Fraction | None = None,
        spec: PolicySpec,
        horizon: Count | None = None,
    ) -> None:
        super().__init__(
            capacity=capacity, num_envs=num_envs, n_step=spec.n_action_steps, gamma=gamma, spec=spec, horizon=horizon
        )
        self.chunks = spec

    def empty(self, capacity: int) -> ChunkReplay:
        return ChunkReplay(capacity=capacity, num_envs=1, gamma=self.gamma, spec=self.chunks)

    def _allocate(self, obs: Obs, step: Step) -> None:
        super()._allocate(obs, step)
        self.store["driver"] = torch.full((self.rows, self.num_envs), POLICY)
        self.store["success"] = torch.zeros(self.rows, self.num_envs, dtype=torch.bool)

    def add(self, obs: Obs, step: Step) -> None:
        """See Replay; the rows of an episode that ends with success are marked so."""
        super().add(obs, step)
        self.store["success"][(self.added - 1) % self.rows] = False
        for env in (step.ended & step.success & step.valid).nonzero()[:, 0].tolist():
            self.store["success"][self._newest_episode(env), env] = True

    def _newest_episode(self, env: int) -> Tensor:
        """Return the ring rows, the oldest first, of the episode that the newest row of `env` belongs to."""
        seen = _LOOK_BACK
        while True:
            at = self._row(torch.arange(max(0, self.size - seen), self.size))
            before = self.store["ended"][at[:-1], env].nonzero()[:, 0]
            if len(before) or seen >= self.size:
                return at[int(before[-1]) + 1 if len(before) else 0 :]
            seen *= 4

    def window(self, age: Tensor, env: Tensor) -> ChunkBatch:  # type: ignore[override]
        """Form the windows that start at the `age`-th oldest rows [B] of envs `env` [B], and their chunks."""
        found = super().window(age, env)
        steps = age[:, None] + torch.arange(self.chunks.horizon)
        at, keep = self._steps(age, env, self.chunks.horizon)
        keep &= steps < self.size  # after the newest row the ring starts again
        action = self.store["action"].flatten(0, 1)[at].masked_fill(~keep[..., None], 0.0)
        driver, success = torch.take(self.store["driver"], at), torch.take(self.store["success"], at[:, 0])
        return ChunkBatch(found.obs, action, keep, driver, found.reward, found.discount, found.next_obs, success)

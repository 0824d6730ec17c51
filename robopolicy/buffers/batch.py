"""Batches that off-policy algorithms learn from."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from robopolicy.core.types import Obs


class Batch(NamedTuple):
    """B transitions over up to n primitive steps."""

    obs: Obs  # [B ...] single frames
    action: Tensor  # [B Da] executed first action, physical units
    reward: Tensor  # [B] Σ γⁱ rᵢ over the window
    discount: Tensor  # [B] γ^steps·(1 − terminated): what multiplies the value of next_obs
    next_obs: Obs  # [B ...] the true successor after the window

    def to(self, device: torch.device) -> Batch:
        """Copy the batch to `device`."""
        obs = {k: v.to(device) for k, v in self.obs.items()}
        next_obs = {k: v.to(device) for k, v in self.next_obs.items()}
        return Batch(obs, self.action.to(device), self.reward.to(device), self.discount.to(device), next_obs)


class ChunkBatch(NamedTuple):
    """B transitions over the up to Ta primitive steps of an executed chunk, and the actions up to step H."""

    obs: Obs  # [B ...] replay features
    action: Tensor  # [B H Da] executed, physical units; 0 where `keep` is False
    keep: Tensor  # [B H] bool: the step belongs to the episode; always for step 0
    driver: Tensor  # [B H] int64: POLICY, HUMAN, REWIND or DEMONSTRATION
    reward: Tensor  # [B] Σ γⁱ rᵢ over the first Ta steps or fewer
    discount: Tensor  # [B] γ^steps·(1 − terminated): what multiplies the value of next_obs
    next_obs: Obs  # [B ...] after these steps

    def to(self, device: torch.device) -> ChunkBatch:
        """Copy the batch to `device`."""
        moved: list[Any] = [
            {k: v.to(device) for k, v in x.items()} if isinstance(x, dict) else x.to(device) for x in self
        ]
        return ChunkBatch(*moved)

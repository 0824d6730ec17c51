"""Recurrent cell of the RSSM, and the sequences that it follows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from robopolicy.world_models.models.image_codec import Through


class RecurrentCell(nn.Module):
    """Normalised GRU cell (DreamerV2): h [B U] from h, z [B Z·K] and inputs [B in_dim − Z·K]."""

    def __init__(self, in_dim: int, units: int, *, width: int) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Linear(in_dim, width), nn.LayerNorm(width), nn.SiLU())
        self.gates = nn.Sequential(nn.Linear(width + units, 3 * units), nn.LayerNorm(3 * units))

    def forward(self, h: Tensor, z: Tensor, inputs: Tensor, through: Through) -> Tensor:
        """Return the next h; `through` applies a network in its precision."""
        x = through(self.enter, torch.cat([z, inputs], dim=-1))
        reset, candidate, update = through(self.gates, torch.cat([x, h], dim=-1)).chunk(3, dim=-1)
        update = torch.sigmoid(update - 1.0)  # at first, remember
        return update * torch.tanh(torch.sigmoid(reset) * candidate) + (1.0 - update) * h


class Track(NamedTuple):
    """B sequences of S frames, followed from their first frames."""

    h: Tensor  # [B S U]
    z: Tensor  # [B S Z·K]
    state: Tensor  # [B S Ds]
    change: Tensor  # [B S Ds] predicted, in deviations of a step, from the state before; 0 at fresh frames
    prior: Tensor  # [B S Z K] log probabilities
    posterior: Tensor  # [B S Z K]

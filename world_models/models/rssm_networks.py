"""Networks of the RSSM: its recurrent cell, and an ensemble whose disagreement is the epistemic uncertainty.

The ensemble (Sekar et al. 2020, Plan2Explore) predicts the next latent from different initial weights, so its members
agree where there is data. The model's own spread cannot tell missing data from random data.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robopolicy.networks.critics import EnsembleLayerNorm, EnsembleLinear
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


class DisagreementEnsemble(nn.Module):
    """E networks of one hidden layer with different initial weights, [B in_dim] → [E B out_dim]."""

    def __init__(self, heads: int, in_dim: int, out_dim: int, *, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.norm = EnsembleLinear(heads, in_dim, width), EnsembleLayerNorm(heads, width)
        self.last = EnsembleLinear(heads, width, out_dim)

    def forward(self, x: Tensor) -> Tensor:
        guessed: Tensor = self.last(F.silu(self.norm(self.first(x.expand(self.heads, *x.shape)))))
        return guessed


def disagreement(log_p: Tensor) -> Tensor:
    """Return the mutual information [B] of member and outcome, in nats per variable, of log probabilities [E B Z K].

    Entropy of the mean minus mean entropy (Houlsby et al. 2011); randomness on which the members agree cancels.
    """
    p = log_p.exp()
    mean = p.mean(0)
    entropy = -(mean * mean.clamp_min(1e-12).log()).sum(-1)  # [B Z]
    return (entropy + (p * log_p).sum(-1).mean(0)).mean(-1).clamp_min(0.0)

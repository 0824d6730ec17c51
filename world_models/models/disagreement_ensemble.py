"""Estimate epistemic uncertainty by the disagreement of small networks (Sekar et al. 2020, Plan2Explore).

The networks predict the next latent from different initial weights, so they agree where there is data. The model's own
spread cannot tell missing data from random data.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from robopolicy.networks.critics import EnsembleLayerNorm, EnsembleLinear


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

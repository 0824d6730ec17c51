"""What a latent model does not know: small networks that guess its next step, and how much they differ.

They are trained on the same targets and begin differently, so they agree where there was data. A model's own spread
does not tell this: it is as wide where the data is random as where there was none (Sekar et al. 2020, Plan2Explore).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from robopolicy.networks.critics import EnsembleLayerNorm, EnsembleLinear


class DisagreementEnsemble(nn.Module):
    """E networks of one hidden layer, [B in_dim] → [E B out_dim], that begin differently."""

    def __init__(self, heads: int, in_dim: int, out_dim: int, *, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.norm = EnsembleLinear(heads, in_dim, width), EnsembleLayerNorm(heads, width)
        self.last = EnsembleLinear(heads, width, out_dim)

    def forward(self, x: Tensor) -> Tensor:
        guessed: Tensor = self.last(F.silu(self.norm(self.first(x.expand(self.heads, *x.shape)))))
        return guessed


def disagreement(log_p: Tensor) -> Tensor:
    """[B] nats per variable that members' predictions [E B Z K] tell of which member made them.

    Mutual information of member and outcome: entropy of the mean minus mean entropy (Houlsby et al. 2011). What all
    members hold for random does not count.
    """
    p = log_p.exp()
    mean = p.mean(0)
    entropy = -(mean * mean.clamp_min(1e-12).log()).sum(-1)  # [B Z]
    return (entropy + (p * log_p).sum(-1).mean(0)).mean(-1).clamp_min(0.0)

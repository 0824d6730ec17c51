"""Evaluate an ensemble of Q-functions by one batched matrix product per layer."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robopolicy.config.schema import Count, Natural
from robopolicy.networks.task_conditioned import TaskLayout, task_product


class EnsembleLinear(nn.Module):
    """`heads` independent linear layers: [E B in] → [E B out]. One `baddbmm` beats a list of modules about 1.7×."""

    def __init__(self, heads: int, in_dim: int, out_dim: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(in_dim)  # as nn.Linear
        self.weight = nn.Parameter(torch.empty(heads, in_dim, out_dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(heads, 1, out_dim).uniform_(-bound, bound))

    def forward(self, x: Tensor, heads: Tensor | None = None) -> Tensor:
        if heads is None:
            return torch.baddbmm(self.bias, x, self.weight)
        return torch.baddbmm(self.bias[heads], x, self.weight[heads])


class TaskEnsembleLinear(EnsembleLinear):
    """EnsembleLinear over [B D+T+R], with weights for each of T tasks; see TaskLayout."""

    def __init__(self, heads: int, in_dim: int, out_dim: int, *, layout: TaskLayout) -> None:
        super().__init__(heads, in_dim, out_dim)
        self.layout = layout

    def forward(self, x: Tensor, heads: Tensor | None = None) -> Tensor:
        weight, bias = (self.weight, self.bias) if heads is None else (self.weight[heads], self.bias[heads])
        return task_product(x, weight, self.layout) + bias


class EnsembleLayerNorm(nn.Module):
    """LayerNorm over features with its own gain and offset per head (Ball et al. 2023, RLPD: keeps Q bounded)."""

    def __init__(self, heads: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, 1, dim))
        self.bias = nn.Parameter(torch.zeros(heads, 1, dim))
        self.dim = dim

    def forward(self, x: Tensor, heads: Tensor | None = None) -> Tensor:
        x = F.layer_norm(x, (self.dim,))
        if heads is None:
            return torch.addcmul(self.bias, x, self.weight)
        return torch.addcmul(self.bias[heads], x, self.weight[heads])


class CriticEnsemble(nn.Module):
    """E Q-heads over the concatenation of a feature vector and an action (REDQ, Chen et al. 2021).

    Args:
        in_dim: size of features + action; with a `layout`, rows of the first layer's weight.
        heads: E. depth, width: hidden layers of every head.
        layout: of the features; the first layer then has weights for each task. The learner passes it.
    """

    def __init__(
        self,
        in_dim: int,
        *,
        heads: Count = 10,
        width: Count = 256,
        depth: Natural = 2,
        layout: TaskLayout | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.layout = heads, layout
        sizes = [in_dim] + [width] * depth
        first = EnsembleLinear if layout is None else partial(TaskEnsembleLinear, layout=layout)
        makers = [first] + [EnsembleLinear] * depth
        linears = [make(heads, a, b) for make, (a, b) in zip(makers, pairwise([*sizes, 1]), strict=True)]
        self.linears = nn.ModuleList(linears[:-1])
        self.norms = nn.ModuleList(EnsembleLayerNorm(heads, width) for _ in range(depth))
        self.last = linears[-1]

    def forward(self, features: Tensor, action: Tensor, heads: Tensor | None = None) -> Tensor:
        """Q [E B] of features [B C] and normalised actions [B Da]; `heads` [M] computes only those, Q [M B]."""
        x = torch.cat([features, action], dim=-1)
        if self.layout is None:
            x = x.expand(self.heads if heads is None else len(heads), *x.shape)
        for linear, norm in zip(self.linears, self.norms, strict=True):
            x = F.relu(norm(linear(x, heads), heads))
        return self.last(x, heads)[..., 0]

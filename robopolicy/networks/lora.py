"""Adapt any network by low-rank changes (LoRA, Hu et al. 2022), as parametrisations of its weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize


class LowRank(nn.Module):
    """W ↦ W + B·A, both factors of `rank`; B is zero at first. Convolutions are adapted as matrices [out in·kernel]."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        rows, columns = weight.shape[0], weight[0].numel()
        rank = min(rank, rows, columns)
        self.a = nn.Parameter(torch.randn(rank, columns) / math.sqrt(columns))
        self.b = nn.Parameter(torch.zeros(rows, rank))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + (self.b @ self.a).view_as(weight).to(weight.dtype)


def adapt[Network: nn.Module](network: Network, rank: int) -> Network:
    """Make all of `network` trainable (rank 0), or only low-rank changes of its layers' weights; in place."""
    network.requires_grad_(rank == 0)
    if rank:
        for layer in list(network.modules()):
            weight = getattr(layer, "weight", None)
            if isinstance(weight, Tensor) and weight.ndim > 1:
                parametrize.register_parametrization(layer, "weight", LowRank(weight, rank))
    return network


def plain_state(key: str) -> str:
    """Return the name that a parameter of an adapted network had before `adapt`."""
    return key.replace("parametrizations.weight.original", "weight")


def merged_state(network: nn.Module) -> dict[str, Tensor]:
    """Merge the low-rank changes into the weights, under the names before `adapt`."""
    state = {plain_state(k): v for k, v in network.state_dict().items() if ".parametrizations.weight.0." not in k}
    for name, layer in network.named_modules():
        if parametrize.is_parametrized(layer, "weight"):
            state[f"{name}.weight"] = layer.weight.detach()
    return state

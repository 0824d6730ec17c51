"""Lay out latents and encoded observations of LeRobot's VLAs as plain tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class NetworkLayout:
    """Latents of H steps of Dl numbers as rows of Da: the chunk first, then the padding of the network's actions.

    So the first rows of a latent are actions.
    """

    horizon: int  # H
    action_dim: int  # Da
    latent_dim: int  # Dl ≥ Da

    @property
    def rows(self) -> int:
        """R ≥ H."""
        return self.horizon + -(-self.horizon * (self.latent_dim - self.action_dim) // self.action_dim)

    def pack(self, latent: Tensor) -> Tensor:
        """Convert [B H Dl] to [B R Da]; the last row is padded with zeros."""
        rest = latent[..., self.action_dim :].flatten(1)
        rest = F.pad(rest, (0, (self.rows - self.horizon) * self.action_dim - rest.shape[1]))
        return torch.cat([latent[..., : self.action_dim], rest.unflatten(1, (-1, self.action_dim))], dim=1)

    def unpack(self, x: Tensor) -> Tensor:
        """Convert [B R Da] to [B H Dl]."""
        size = self.horizon * (self.latent_dim - self.action_dim)
        rest = x[:, self.horizon :].flatten(1)[:, :size].unflatten(1, (self.horizon, -1))
        return torch.cat([x[:, : self.horizon], rest], dim=-1)


class Sizes(NamedTuple):
    """Sizes of a prefix: cond [B C] holds F features, the mask of P tokens, and their keys and values."""

    width: int  # D of the language model; F = D + Ds
    state: int  # Ds, of the padded state
    layers: int  # L
    heads: int  # of keys and values
    head_dim: int  # d

    @property
    def features(self) -> int:
        return self.width + self.state

    def tokens(self, numbers: int, *, compact: bool) -> int:
        """Return P of cond with C = `numbers`."""
        each = self.layers * 2 * self.heads * self.head_dim
        return (numbers - self.features) // (1 + each // (2 if compact else 1))

"""How latents and encoded observations of LeRobot's VLAs are laid out as the numbers that algorithms carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class NetworkLayout:
    """Latents of H steps of Dl numbers as rows of Da: the chunk first, then what the network pads its actions with.

    So whatever reads the first rows of a latent reads actions, and the rest of it is carried along.
    """

    horizon: int  # H
    action_dim: int  # Da
    latent_dim: int  # Dl ≥ Da

    @property
    def rows(self) -> int:
        """R ≥ H."""
        return self.horizon + -(-self.horizon * (self.latent_dim - self.action_dim) // self.action_dim)

    def pack(self, latent: Tensor) -> Tensor:
        """[B R Da] from [B H Dl]; the last row is filled up with zeros."""
        rest = latent[..., self.action_dim :].flatten(1)
        rest = F.pad(rest, (0, (self.rows - self.horizon) * self.action_dim - rest.shape[1]))
        return torch.cat([latent[..., : self.action_dim], rest.unflatten(1, (-1, self.action_dim))], dim=1)

    def unpack(self, x: Tensor) -> Tensor:
        """[B H Dl] from [B R Da]."""
        size = self.horizon * (self.latent_dim - self.action_dim)
        rest = x[:, self.horizon :].flatten(1)[:, :size].unflatten(1, (self.horizon, -1))
        return torch.cat([x[:, : self.horizon], rest], dim=-1)


class Sizes(NamedTuple):
    """Of a prefix: cond [B C] holds F features, then for each of P tokens whether it counts, its keys and values."""

    width: int  # D of the language model; F = D + Ds
    state: int  # Ds, of the padded state
    layers: int  # L
    heads: int  # whose keys and values are kept
    head_dim: int  # d

    @property
    def features(self) -> int:
        return self.width + self.state

    def tokens(self, numbers: int, *, compact: bool) -> int:
        """P of cond of so many numbers C."""
        each = self.layers * 2 * self.heads * self.head_dim
        return (numbers - self.features) // (1 + each // (2 if compact else 1))

"""The interface of learned dynamics: encode, step, decode and a loss. Randomness comes from the caller.

Everything that differs between an ensemble on states, a recurrent latent model and a transformer lies behind it;
success, trust and the imagined env know no more than this.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from robopolicy.types import EnvSpec, Metrics, Obs


class Imagined(NamedTuple):
    """One imagined step of B states."""

    latent: Tensor  # [B C]
    doubt: Tensor  # [B] how far the model knows that it does not know; calibrated by `World.bound`


class Dynamics(nn.Module):
    """p(next latent | latent, action), stepped one primitive action at a time.

    `latent_dim` C · `feature_dim`: size of `features` · `unroll`: steps of a training sequence · `heads`: members that
    each want sequences of their own.
    """

    spec: EnvSpec
    latent_dim: int
    feature_dim: int
    unroll: int
    heads: int = 1

    @abstractmethod
    def encode(self, obs: Obs) -> Tensor:
        """Latent [B C] of observations [B To ...]."""

    @abstractmethod
    def decode(self, latent: Tensor) -> Obs:
        """Single frames [B ...] of latents [B C]."""

    @abstractmethod
    def features(self, latent: Tensor) -> Tensor:
        """[... feature_dim] normalised, for what is learned on latents [... C]."""

    @abstractmethod
    def step(self, latent: Tensor, action: Tensor, *, episode: Tensor, draw: Tensor | None) -> Imagined:
        """The next latent.

        Args:
            latent: [B C]. action: [B Da] physical units, within limits.
            episode: [B] uniform number that stays the same for an episode (which member dreams it).
            draw: [B] uniform number of this step; None: the likeliest outcome.
        """

    @abstractmethod
    def loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Loss of "state" [E B L+1 Ds], "action" [E B L Da] and "valid" [E B L] bool."""

    def outside(self, latent: Tensor) -> Tensor:
        """[B] bool: far from all that the data has shown."""
        return torch.zeros(len(latent), dtype=torch.bool, device=latent.device)

    def rank(self, error: Tensor) -> None:
        """Take note of the members' held-out `error` [E], where some shall dream and others only doubt."""

    def member_errors(self, batch: dict[str, Tensor]) -> Tensor:
        """[E] held-out error of each member, for `rank`."""
        return torch.zeros(self.heads)

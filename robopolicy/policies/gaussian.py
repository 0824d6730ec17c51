"""Model a chunk by a diagonal Gaussian: the plain behaviour-cloning baseline."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from robopolicy.config.schema import NonNegative, Positive
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import Metrics, Obs
from robopolicy.networks.encoders import ObservationEncoder
from robopolicy.networks.mlp import MLP_3
from robopolicy.policies.base import LikelihoodPolicy
from robopolicy.policies.denoising_chain import gaussian_log_prob
from robopolicy.policies.normalizer import ACTION, Normalizer


class GaussianPolicy(LikelihoodPolicy):
    """Predicts the mean [H Da]; the learned deviation per step and dimension is independent of the observation.

    It averages over modes. Noise: [H Da].

    Args:
        network: makes the mean's network from its input and output sizes.
        encoder: makes the whole observation encoder from the spec; ObservationEncoder when None.
        min_std: floor of the deviation, normalised units; keeps the likelihood bounded on noiseless data.
        initial_std: deviation above the floor before training; reinforcement starts from it.
        imitate_std: False: imitation changes only the mean. Imitating varied demonstrations gives a large deviation,
            with which a student hardly succeeds and which reinforcement lowers slowly.
        **options: see ObservationEncoder.
    """

    def __init__(
        self,
        spec: PolicySpec,
        normalizer: Normalizer,
        *,
        network: Callable[[int, int], nn.Module] = MLP_3,
        encoder: Callable[..., nn.Module] | None = None,
        min_std: NonNegative = 0.01,
        initial_std: Positive = 1.0 / math.e,
        imitate_std: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self.spec, self.normalizer, self.min_std, self.imitate_std = spec, normalizer, min_std, imitate_std
        self.noise_shape = (spec.horizon, spec.action.dim)
        made: Any = (encoder or ObservationEncoder)(spec, **options)
        self.encoder, self.cond_dim = made, made.out_dim
        self.network = network(self.cond_dim, math.prod(self.noise_shape))
        self.log_std = nn.Parameter(torch.full(self.noise_shape, math.log(initial_std)))

    def mean_std(self, obs: Obs, *, augment: bool = False) -> tuple[Tensor, Tensor]:
        """Mean [B H Da] and deviation [H Da] in normalised units."""
        return self.density(self.encoder(self.normalizer.observation(obs), augment=augment))

    def density(self, cond: Tensor) -> tuple[Tensor, Tensor]:
        """Mean [B H Da] and deviation [H Da] in normalised units, from cond [B C]."""
        return self.network(cond).view(-1, *self.noise_shape), self.log_std.exp() + self.min_std

    def draw(self, cond: Tensor, noise: Tensor | None) -> Tensor:
        """See LikelihoodPolicy."""
        mean, std = self.density(cond)
        return mean if noise is None else mean + std * noise

    def log_prob(self, cond: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """See LikelihoodPolicy."""
        (mean, std), count = self.density(cond), weight.shape[1]
        return (gaussian_log_prob(x[:, :count], mean[:, :count], std[:count]).mean(-1) * weight).sum(-1)

    def loss(self, batch: dict[str, Any]) -> tuple[Tensor, Metrics]:
        """Negative log-likelihood per element of actions that are not padding."""
        action = self.normalizer.normalize(ACTION, batch[ACTION])
        mean, std = self.mean_std(batch, augment=True)
        std = std if self.imitate_std else std.detach()
        keep = ~batch["action_is_pad"]
        nll = (0.5 * ((action - mean) / std).square() + std.log() + 0.5 * math.log(2 * math.pi)).mean(-1)  # [B H]
        return (nll * keep).sum() / keep.sum(), {}

"""Model a chunk by a mixture of diagonal Gaussians, which keeps modes apart that one Gaussian averages."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from robopolicy.config.schema import Count, NonNegative
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import Metrics
from robopolicy.networks.encoders import ObservationEncoder
from robopolicy.networks.mlp import MLP_3
from robopolicy.policies.base import LikelihoodPolicy
from robopolicy.policies.denoising_chain import gaussian_log_prob
from robopolicy.policies.normalizer import ACTION, Normalizer


class MixturePolicy(LikelihoodPolicy):
    """Predicts G chunks and their probabilities; the learned deviations are independent of the observation.

    Noise: [H·Da + 1]; the last number chooses the component, by its quantile.

    Args:
        network: makes the network of means and logits from its input and output sizes.
        components: G.
        min_std: floor of the deviations, normalised units.
        **options: see ObservationEncoder.
    """

    def __init__(
        self,
        spec: PolicySpec,
        normalizer: Normalizer,
        *,
        network: Callable[[int, int], nn.Module] = MLP_3,
        components: Count = 5,
        min_std: NonNegative = 0.01,
        **options: Any,
    ) -> None:
        super().__init__()
        self.spec, self.normalizer, self.min_std = spec, normalizer, min_std
        self.shape = (components, spec.horizon, spec.action.dim)
        self.noise_shape = (spec.horizon * spec.action.dim + 1,)
        self.encoder = ObservationEncoder(spec, **options)
        self.cond_dim = self.encoder.out_dim
        self.network = network(self.cond_dim, math.prod(self.shape) + components)
        self.log_std = nn.Parameter(torch.full(self.shape, -1.0))

    def components(self, cond: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute log-probabilities [B G], means [B G H Da] and deviations [G H Da], normalised units."""
        logits, mean = self.network(cond).split([self.shape[0], math.prod(self.shape)], dim=1)
        return logits.log_softmax(1), mean.view(-1, *self.shape), self.log_std.exp() + self.min_std

    def draw(self, cond: Tensor, noise: Tensor | None) -> Tensor:
        """See LikelihoodPolicy; None: the mean of the likeliest component."""
        log_weight, mean, std = self.components(cond)
        rows = torch.arange(len(cond), device=cond.device)
        if noise is None:
            return mean[rows, log_weight.argmax(1)]
        place = torch.special.ndtr(noise[:, -1:])
        chosen = (log_weight.exp().cumsum(1) < place).sum(1).clamp_(max=self.shape[0] - 1)
        return mean[rows, chosen] + std[chosen] * noise[:, :-1].view(-1, *self.shape[1:])

    def log_prob(self, cond: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """See LikelihoodPolicy."""
        log_weight, mean, std = self.components(cond)
        count, steps = weight.shape[1], weight.count_nonzero(1)[:, None]
        each = gaussian_log_prob(x[:, None, :count], mean[:, :, :count], std[:, :count]).sum(-1)  # [B G Ta]
        joint = (each * (weight > 0)[:, None]).sum(-1)  # [B G]
        return ((log_weight + joint).logsumexp(1, keepdim=True) / (steps * x.shape[2]))[:, 0]

    def loss(self, batch: dict[str, Any]) -> tuple[Tensor, Metrics]:
        """Negative log-likelihood per element of actions that are not padding."""
        action = self.normalizer.normalize(ACTION, batch[ACTION])
        cond = self.encoder(self.normalizer.observation(batch), augment=True)
        return -self.log_prob(cond, action, (~batch["action_is_pad"]).to(action.dtype)).mean(), {}

    def loss_items(self, batch: dict[str, Any]) -> int:
        """Count the chunks, whose mean `loss` is."""
        return len(batch[ACTION])

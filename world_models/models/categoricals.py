"""Z categorical variables of K classes: samples that gradients pass through, and divergences with a side each.

Hafner et al. 2021 (DreamerV2): discrete latents, KL balance; 2023 (DreamerV3): 1% uniform mixed in, free nats.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from robopolicy.core.rng import keyed_uniform

_STREAM = 9401


def mixed(logits: Tensor, uniform: float) -> Tensor:
    """Log probabilities [... Z K] of which a share `uniform` is spread evenly: with a share none is impossible."""
    if uniform == 0.0:
        return logits.log_softmax(-1)  # finite where a probability is too small for a float
    probability = (1.0 - uniform) * logits.softmax(-1) + uniform / logits.shape[-1]
    return probability.log()


def drawn(log_p: Tensor, unit: Tensor) -> Tensor:
    """One-hot samples [... Z K] by inversion of uniform numbers `unit` [... Z]."""
    index = (log_p.exp().cumsum(-1) < unit[..., None]).sum(-1).clamp_(max=log_p.shape[-1] - 1)
    return F.one_hot(index, log_p.shape[-1]).to(log_p.dtype)


def likeliest(log_p: Tensor) -> Tensor:
    """One-hot [... Z K] of the likeliest classes."""
    return F.one_hot(log_p.argmax(-1), log_p.shape[-1]).to(log_p.dtype)


def straight_through(log_p: Tensor) -> Tensor:
    """One-hot samples [... Z K] from the global generator, whose gradient is that of the probabilities."""
    probability = log_p.exp()
    sample = drawn(log_p.detach(), torch.rand(log_p.shape[:-1], device=log_p.device))
    return sample + (probability - probability.detach())  # in this order the sum is exactly 0 or 1


def keyed(draw: Tensor, count: int) -> Tensor:
    """Return `count` uniform numbers [B count] that follow from one [B]; NaN where that is."""
    unit = keyed_uniform(draw.nan_to_num(0.0).view(torch.int32).long(), torch.zeros_like(draw).long(), (count,),
                         stream=_STREAM)  # fmt: skip
    return torch.where(draw.isnan()[:, None], torch.nan, unit)


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p ‖ q) [...] in nats, summed over the Z variables of log probabilities [... Z K]."""
    return (p.exp() * (p - q)).sum((-2, -1))


def balanced(posterior: Tensor, prior: Tensor, *, balance: float, free: float) -> tuple[Tensor, Tensor]:
    """Return the balanced KL loss [...] and the KL [...].

    The prior gets the share `balance` of the gradient, the posterior the rest. Each has none below `free` nats.
    """
    to_prior = divergence(posterior.detach(), prior)
    to_posterior = divergence(posterior, prior.detach())
    loss = balance * to_prior.clamp_min(free) + (1.0 - balance) * to_posterior.clamp_min(free)
    return loss, to_prior.detach()

"""Describe the fine-tuned end of a denoising chain as a stochastic process: samples, log-probs and exploration noise.

A ChainNoise gives every deviation that sampling or scoring uses.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from robopolicy.config.schema import Count, NonNegative, Positive
from robopolicy.core.errors import ConfigError


class DenoisingChain(NamedTuple):
    """The last K' denoising steps of B chunks, normalised units, never clamped."""

    x: Tensor  # [B K'+1 H Da]: step k goes from x[:, k] to x[:, k+1]; x[:, -1] is the chunk
    log_prob: Tensor  # [B K' Ta Da]: of each element of the executed slice of x[:, k+1]


class ChainNoise(nn.Module):
    """Exploration deviation of each step, computed from the sampler's own deviation.

    Constructed with `cond_dim`, `action_dim` Da and `steps` K'; it reads the first `cond_dim` numbers of cond.
    """

    @abstractmethod
    def sampling(self, std: Tensor, k: Tensor | int, cond: Tensor) -> Tensor:
        """Return the deviation for sampling; broadcasts to [B H Da].

        Args:
            std: the sampler's own, broadcasts to [B H Da]. k: fine-tuned step, 0 the noisiest … K'−1, one or [B].
            cond: [B C].
        """

    def likelihood(self, std: Tensor, k: Tensor | int, cond: Tensor) -> Tensor:
        """Return the deviation for scoring, by default that of sampling."""
        return self.sampling(std, k, cond)

    def check(self, std: Tensor) -> None:
        """Raise ConfigError where the sampler's deviations `std` [K' ...] add noise that exploration did not have."""


class FloorNoise(ChainNoise):
    """max(the sampler's, floor): scheduled noise (DPPO, Ren et al. 2024).

    Args:
        floor: of the deviation of every fine-tuned step, normalised units. The last step of DDPM and every step of a
            deterministic sampler have deviation 0.
        likelihood_floor: another floor for scoring, as in the published furniture settings (0.04 and 0.1); sampling and
            scoring then differ slightly. None: `floor`.
    """

    def __init__(
        self,
        *,
        cond_dim: int = 0,
        action_dim: int = 0,
        steps: int = 0,
        floor: NonNegative = 0.1,
        likelihood_floor: NonNegative | None = None,
    ) -> None:
        super().__init__()
        self.floor, self.likelihood_floor = floor, floor if likelihood_floor is None else likelihood_floor
        if min(self.floor, self.likelihood_floor) < 0.0:
            raise ConfigError(f"noise: expected floor, likelihood_floor ≥ 0, found {floor}, {likelihood_floor}")

    def sampling(self, std: Tensor, k: Tensor | int, cond: Tensor) -> Tensor:
        return std.clamp_min(self.floor)

    def likelihood(self, std: Tensor, k: Tensor | int, cond: Tensor) -> Tensor:
        return std.clamp_min(self.likelihood_floor)


class LearnedNoise(ChainNoise):
    """A deviation per step, observation and action dimension, learned with the policy (ReinFlow, Zhang et al. 2025).

    log σ lies between log `low` and log `high` and starts in the middle. For deterministic samplers.

    Args:
        low, high: bounds of σ, normalised units; published: 0.08 to 0.14 for manipulation.
        width: of its hidden layer.
    """

    def __init__(
        self,
        *,
        cond_dim: int,
        action_dim: int,
        steps: int,
        low: Positive = 0.08,
        high: Positive = 0.14,
        width: Count = 64,
    ) -> None:
        super().__init__()
        if not 0.0 < low <= high:
            raise ConfigError(f"noise: needs 0 < low ≤ high, found low={low} and high={high}")
        self.centre = 0.5 * (math.log(low) + math.log(high))
        self.reach = 0.5 * (math.log(high) - math.log(low))
        self.cond = nn.Linear(cond_dim, width)
        self.step = nn.Embedding(steps, width)
        self.out = nn.Linear(width, action_dim)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def check(self, std: Tensor) -> None:
        """Raise ConfigError where the sampler is stochastic: the policy would be deployed with untrained noise."""
        if bool((std > 0.0).any()):
            raise ConfigError(
                f"algo.noise: LearnedNoise explores in place of the sampler's own noise (deviations up to "
                f"{float(std.max()):.2g}), with which the policy is evaluated and deployed. Take a sampler without: "
                "policy.sampling={sampler: ddim, eta: 0}, or noise_level: 0 of a flow; or keep FloorNoise."
            )

    def sampling(self, std: Tensor, k: Tensor | int, cond: Tensor) -> Tensor:
        index = torch.as_tensor(k, device=cond.device).expand(len(cond))
        h = torch.tanh(self.cond(cond[:, : self.cond.in_features]) + self.step(index))
        return (self.centre + self.reach * torch.tanh(self.out(h))).exp()[:, None]


def gaussian_log_prob(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """log N(x; mean, std²) of each element; `std` broadcasts."""
    return -0.5 * ((x - mean) / std).square() - std.log() - 0.5 * math.log(2.0 * math.pi)


def check_stochastic(std: Tensor) -> None:
    """Raise ConfigError unless every step of the deviations [K' ...] is stochastic."""
    dead = (std.reshape(len(std), -1).amin(1) <= 0.0).nonzero()[:, 0].tolist()
    if dead:
        raise ConfigError(
            f"the sampler is deterministic in fine-tuned steps {dead} of {len(std)}: nothing is drawn there, so there "
            "is no likelihood to learn from. Give the chain noise: algo.noise.floor=0.1, or a stochastic sampler "
            "(sampler=ddpm, ddim with eta>0, flow with noise_level>0)."
        )

"""Choose the initial noise of a frozen denoising chain (DSRL, Wagenmaker et al. 2025)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from robopolicy.config.schema import Count, Node, Positive
from robopolicy.core.errors import ConfigError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import Obs
from robopolicy.policies.base import Policy
from robopolicy.policies.diffusion import DiffusionPolicy
from robopolicy.policies.finetuning import chain_of
from robopolicy.policies.frozen_chain import FrozenChainPolicy, around, zero_ended
from robopolicy.policies.normalizer import ACTION, Normalizer

_MAX_LOG_STD = 2.0


class SteeredPolicy(FrozenChainPolicy):
    """chunk = chain(w), w = μ(cond) + σ(cond) · noise: a small network chooses the distribution of the chain's start.

    |μ| < bound and σ ∈ (e⁻², e²). The network's last layer starts at zero, so before training w is the noise itself and
    this policy is its base without the noise of later steps. The chain is frozen and deterministic (DDIM, Euler steps).
    `deterministic=true` starts the chain at μ.

    Args:
        policy: node of the frozen diffusion, flow or VLA policy.
        hidden: widths of the network's hidden layers.
        bound: of each element of μ; w has deviation 1 where nothing is steered.

    Raises:
        ConfigError: `policy` is of another kind, has a fine-tuned copy, or draws noise in later steps.
    """

    noise_shape: tuple[int, ...]  # (H, Da)

    def __init__(
        self,
        spec: PolicySpec,
        normalizer: Normalizer,
        *,
        policy: Node,
        hidden: tuple[Count, ...] = (256, 256),
        bound: Positive = 1.5,
    ) -> None:
        super().__init__(spec, normalizer, policy)
        self.noise_shape, self.bound = self.chain.noise_shape, bound
        if len(self.noise_shape) != 2:
            raise ConfigError(
                "policy.policy: expected a frozen diffusion, flow or VLA policy whose chain draws no noise after "
                f"its start, found {policy}. Make it by policy=steered from such a base."
            )
        self.net = zero_ended([self.cond_dim, *hidden], 2 * spec.horizon * spec.action.dim)

    def distribution(self, cond: Tensor) -> tuple[Tensor, Tensor]:
        """Compute μ and log σ [B H Da] of the chain's start at cond [B C]."""
        found = self.net(cond[:, : self.cond_dim]).unflatten(1, (2, *self.noise_shape))
        return self.bound * torch.tanh(found[:, 0] / self.bound), _MAX_LOG_STD * torch.tanh(found[:, 1] / _MAX_LOG_STD)

    def steer(self, cond: Tensor, noise: Tensor) -> Tensor:
        """Return the chain's start w [B H Da] for cond [B C] and standard normal noise [B H Da]."""
        mean, log_std = self.distribution(cond)
        return mean + log_std.exp() * noise

    def sample(self, cond: Tensor, *, noise: Tensor | None = None) -> Tensor:
        """Return chunks [B H Da], normalised, from cond [B C] and noise [B H Da]; None: drawn."""
        return self.chain.sample(cond, noise=self.steer(cond, self.chain.draw(cond, noise)))

    @torch.no_grad()
    def act(self, obs: Obs, *, noise: Tensor | None = None, deterministic: bool = False) -> Tensor:
        """[B H Da] physical units. A pure function of `obs` and `noise`; deterministic: noise zero, so w = μ."""
        cond = self.encode(obs)
        if deterministic:
            noise = cond.new_zeros(len(cond), *self.noise_shape)
        return self.normalizer.unnormalize(ACTION, self.sample(cond, noise=noise))


def make_steered(
    base: Policy,
    *,
    hidden: tuple[Count, ...] = (256, 256),
    bound: Positive = 1.5,
    sampling: dict[str, Any] | None = None,
) -> FrozenChainPolicy:
    """Return a policy that steers a frozen copy of `base`; before training it samples as `base` does without noise in
    later steps. A steered base is returned unchanged.

    Args:
        base: diffusion, flow or VLA policy. hidden, bound: see SteeredPolicy.
        sampling: changes of the base's sampler: `sampling_steps`. The chain is made deterministic in any case.

    Raises:
        SpecError, ConfigError: see `around`; also where `sampling` asks for noise.
    """
    options = {"hidden": list(hidden), "bound": bound}
    if isinstance(base, SteeredPolicy):
        return around(base, SteeredPolicy, "steered", options, sampling or {})
    still: dict[str, Any] = {"noise_level": 0.0}
    if isinstance(chain_of(base), DiffusionPolicy):
        still = {"sampler": "ddim", "eta": 0.0}
    return around(base, SteeredPolicy, "steered", options, {**still, **(sampling or {})})

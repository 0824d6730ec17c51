"""Edit the chunks of a frozen denoiser and play the best by a critic (EXPO, Dong et al. 2025, arXiv 2507.07986)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from robopolicy.config.schema import Count, Node, NonNegative, Positive
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import Obs
from robopolicy.networks.critics import CriticEnsemble
from robopolicy.policies.base import Policy
from robopolicy.policies.frozen_chain import FrozenChainPolicy, around, zero_ended
from robopolicy.policies.normalizer import ACTION, Normalizer


class EditedPolicy(FrozenChainPolicy):
    """Draws `samples` chunks of a frozen chain, edits each, and plays the one of these 2N that its critic prefers.

    edited = chunk + bound · tanh(f(cond, chunk)) on the steps that are executed. f's last layer starts at zero. So does
    the critic's, and equal scores choose the first chunk: before training this policy is its base.
    A chunk's score is mean − confidence·deviation over the critic's heads, of the gain over the drawn chunks' mean.

    Args:
        policy: node of the frozen diffusion, flow or VLA policy.
        critic: makes the ensemble from its input size.
        samples: N. hidden: widths of f's hidden layers.
        bound: of each element of an edit, in normalised units.
        confidence: deviations of the heads that are taken off a chunk's gain where chunks are compared.

    Raises:
        ConfigError: `policy` is of another kind, or has a fine-tuned copy.
    """

    noise_shape: tuple[int, ...]  # (N, *noise_shape of the chain)

    def __init__(
        self,
        spec: PolicySpec,
        normalizer: Normalizer,
        *,
        policy: Node,
        critic: Callable[[int], CriticEnsemble],
        samples: Count = 8,
        hidden: tuple[Count, ...] = (256, 256),
        bound: Positive = 0.2,
        confidence: NonNegative = 1.0,
    ) -> None:
        super().__init__(spec, normalizer, policy)
        self.noise_shape = (samples, *self.chain.noise_shape)
        self.bound, self.confidence, self.played = bound, confidence, spec.n_action_steps
        size = self.played * spec.action.dim
        self.net = zero_ended([self.cond_dim + size, *hidden], size)
        self.critic = critic(self.cond_dim + size).requires_grad_(False)
        for parameter in self.critic.last.parameters():
            nn.init.zeros_(parameter)

    @property
    def follows_noise(self) -> bool:
        """See Policy: a chunk is chosen among those of many noises."""
        return False

    @property
    def limits(self) -> Tensor:
        """[2 Da] limits of actions, normalised."""
        action = self.spec.action
        return self.normalizer.normalize(ACTION, torch.tensor([action.low, action.high], device=self.times.device))

    def edits(self, cond: Tensor, chunk: Tensor) -> Tensor:
        """Compute the edits [B Ta Da] of chunks [B H Da] at cond [B C], each element within ±bound."""
        part = chunk[:, : self.played]
        found = self.net(torch.cat([cond[:, : self.cond_dim], part.flatten(1)], dim=1))
        return self.bound * torch.tanh(found).view_as(part)

    def edit(self, cond: Tensor, chunk: Tensor) -> Tensor:
        """Return edited chunks [B H Da] within the limits, from chunks [B H Da] within them."""
        part = (chunk[:, : self.played] + self.edits(cond, chunk)).clamp(*self.limits)
        return torch.cat([part, chunk[:, self.played :]], dim=1)

    def draw(self, cond: Tensor, noise: Tensor) -> Tensor:
        """Draw chunks [B N H Da] of the chain, within the limits, from noise [B N *]."""
        each = cond.repeat_interleave(noise.shape[1], dim=0)
        chunk = self.chain.sample(each, noise=noise.flatten(0, 1))
        return chunk.clamp(*self.limits).unflatten(0, noise.shape[:2])

    def candidates(self, cond: Tensor, noise: Tensor) -> Tensor:
        """Return chunks [B 2N H Da] at cond [B C] from noise [B N *]: those drawn, then each of them edited."""
        drawn = self.draw(cond, noise)
        each = cond.repeat_interleave(noise.shape[1], dim=0)
        edited = self.edit(each, drawn.flatten(0, 1)).unflatten(0, noise.shape[:2])
        return torch.cat([drawn, edited], dim=1)

    def scores(self, cond: Tensor, chunk: Tensor) -> Tensor:
        """Score candidates [B 2N H Da] at cond [B C]: [B 2N]."""
        many = chunk.shape[1]
        each = cond[:, : self.cond_dim].repeat_interleave(many, dim=0)
        q = self.critic(each, chunk[:, :, : self.played].reshape(len(each), -1)).unflatten(1, (-1, many))  # [E B 2N]
        gain = q - q[..., : many // 2].mean(dim=-1, keepdim=True)
        return gain.mean(dim=0) - self.confidence * gain.std(dim=0, correction=0)

    @torch.no_grad()
    def sample(self, cond: Tensor, *, noise: Tensor | None = None) -> Tensor:
        """Return the preferred chunks [B H Da], normalised, from cond [B C] and noise [B N *]; None: drawn."""
        if noise is None:
            noise = torch.randn(len(cond), *self.noise_shape, device=cond.device, dtype=cond.dtype)
        chunk = self.candidates(cond, noise)
        best = self.scores(cond, chunk).argmax(dim=1)
        return chunk[torch.arange(len(chunk), device=chunk.device), best]

    @torch.no_grad()
    def act(self, obs: Obs, *, noise: Tensor | None = None, deterministic: bool = False) -> Tensor:
        """[B H Da] physical units. A pure function of `obs` and `noise`; deterministic: noise zero, so N = 1."""
        cond = self.encode(obs)
        if deterministic:
            noise = cond.new_zeros(len(cond), 1, *self.chain.noise_shape)
        return self.normalizer.unnormalize(ACTION, self.sample(cond, noise=noise))


def make_edited(
    base: Policy,
    *,
    critic: Node,
    samples: Count = 8,
    hidden: tuple[Count, ...] = (256, 256),
    bound: Positive = 0.2,
    confidence: NonNegative = 1.0,
    sampling: dict[str, Any] | None = None,
) -> FrozenChainPolicy:
    """Return a policy that edits chunks of a frozen copy of `base`. An edited base is returned unchanged.

    Args:
        base: diffusion, flow or VLA policy. critic, samples, hidden, bound, confidence: see EditedPolicy.
        sampling: changes of the base's sampler, e.g. `sampling_steps`.

    Raises:
        SpecError, ConfigError: see `around`.
    """
    options = {"critic": dict(critic), "samples": samples, "hidden": list(hidden), "bound": bound,
               "confidence": confidence}  # fmt: skip
    return around(base, EditedPolicy, "edited", options, sampling or {})

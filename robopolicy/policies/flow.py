"""FlowPolicy: conditional flow matching over chunks along straight lines (Lipman et al. 2023; Liu et al. 2023)."""

from __future__ import annotations

from typing import Literal, Unpack

import torch
from torch import Tensor

from robopolicy.errors import ConfigError
from robopolicy.normalize import Normalizer
from robopolicy.policies.denoising import ChunkDenoiser, Common, stratified
from robopolicy.spec import PolicySpec


class FlowPolicy(ChunkDenoiser):
    """x_t = (1−t)·noise + t·action; the network predicts the velocity action − noise.

    One convention of time for training, sampling and scoring: t is the share of data, 0 pure noise, 1 the action.
    Sampling takes Euler steps at t = 0, 1/S, …, (S−1)/S; the grid is the buffer `times`, and nothing else computes it
    (ReinFlow samples and scores on different grids: ALGORITHMS 12.6). Noise: [H Da], the initial latent.

    Args:
        sampling_steps: S Euler steps.
        time_distribution: of training times: "uniform", or "beta": 1 − t ~ Beta(1.5, 1), which favours noisy latents
            (π0, Black et al. 2024, appendix B).
        **common: see Common.
    """

    def __init__(
        self,
        spec: PolicySpec,
        normalizer: Normalizer,
        *,
        sampling_steps: int = 10,
        time_distribution: Literal["uniform", "beta"] = "uniform",
        **common: Unpack[Common],
    ) -> None:
        super().__init__(spec, normalizer, **common)
        if sampling_steps < 1:
            raise ConfigError(f"sampling_steps must be at least 1, found {sampling_steps}")
        self.time_distribution = time_distribution
        self.noise_shape = (spec.horizon, spec.action.dim)
        self.register_buffer("times", torch.arange(sampling_steps) / sampling_steps, persistent=False)  # [S]

    def corrupt(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A point of the line from noise to action at a random time per chunk, and the line's direction."""
        t = stratified(action.shape[0], action.device)
        if self.time_distribution == "beta":
            t = 1.0 - t.pow(1.0 / 1.5)  # inverse of Beta(1.5, 1)'s distribution function u = s^1.5
        noise = torch.randn_like(action)
        velocity = action - noise
        return torch.addcmul(noise, t[:, None, None], velocity), t, velocity

    def sample(self, cond: Tensor, *, noise: Tensor | None = None) -> Tensor:
        """[B H Da] normalised, from cond [B C] and noise [B H Da]."""
        x = self.draw(cond, noise)
        from_cond, from_time = self.network.embed_cond(cond), self.network.embed_time(self.times)
        for i in range(len(self.times)):
            x = torch.add(x, self.network.denoise(x, from_cond + from_time[i]), alpha=1.0 / len(self.times))
        return x

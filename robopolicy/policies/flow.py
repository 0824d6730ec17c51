"""Predict chunks by conditional flow matching along straight lines (Lipman et al. 2023; Liu et al. 2023)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from robopolicy.config.schema import Count, NonNegative
from robopolicy.core.errors import ConfigError
from robopolicy.core.rng import normal_like
from robopolicy.core.specs import PolicySpec
from robopolicy.networks.denoiser import stratified
from robopolicy.policies.denoising import ChunkDenoiser
from robopolicy.policies.normalizer import Normalizer


class FlowPolicy(ChunkDenoiser):
    """x_t = (1−t)·noise + t·action; the network predicts the velocity action − noise, or the action.

    Training, sampling and scoring share one convention of time: t = 0 is pure noise, t = 1 the action. Sampling takes
    Euler steps at t = 0, 1/S, …, (S−1)/S, the buffer `times`. Scoring uses the same grid (ReinFlow's differs:
    ALGORITHMS 12.6). Noise: [H Da], the initial latent; with a `noise_level` [S+1 H Da], one more array per step.

    Args:
        sampling_steps: S Euler steps.
        prediction: "velocity", or "sample": the network predicts the action. Prefer "sample" for one step, where a
            velocity network must cancel the noise exactly.
        noise_level: 0: the ordinary differential equation. Above 0: the stochastic one with the same marginals, and
            this factor on its deviation; see step_table.
        time_distribution: of training times: "uniform", or "beta": 1 − t ~ Beta(1.5, 1), which favours noisy latents
            (π0, Black et al. 2024, appendix B).
        **common: see ChunkDenoiser.
    """

    steps: Tensor  # [3 S 1 1] see step_table

    def __init__(
        self,
        spec: PolicySpec,
        normalizer: Normalizer,
        *,
        sampling_steps: Count = 10,
        prediction: Literal["velocity", "sample"] = "velocity",
        noise_level: NonNegative = 0.0,
        time_distribution: Literal["uniform", "beta"] = "uniform",
        **common: Any,
    ) -> None:
        if sampling_steps < 1:
            raise ConfigError(f"sampling_steps must be at least 1, found {sampling_steps}")
        super().__init__(spec, normalizer, sampling_steps, **common)
        self.target, self.time_distribution = prediction, time_distribution
        self._ends_there = prediction == "sample" and not noise_level
        self.noise_shape = (spec.horizon, spec.action.dim)
        if noise_level:
            self.noise_shape = (sampling_steps + 1, *self.noise_shape)
        self.register_buffer("times", torch.arange(sampling_steps) / sampling_steps, persistent=False)  # [S]
        table = step_table(self.times, noise_level, of_sample=prediction == "sample")
        self.register_buffer("steps", table[:, :, None, None], persistent=False)

    def corrupt(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Draw a point on the line from noise to action at a random time per chunk, and its regression target."""
        t = stratified(action.shape[0], action.device, each=self.noise_samples)
        if self.time_distribution == "beta":
            t = 1.0 - t.pow(1.0 / 1.5)  # inverse of Beta(1.5, 1)'s distribution function u = s^1.5
        noise = normal_like(action)
        velocity = action - noise
        return torch.addcmul(noise, t[:, None, None], velocity), t, velocity if self._by_velocity else action

    def noised(self, action: Tensor, noise: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """See ChunkDenoiser."""
        velocity = action - noise
        x = torch.addcmul(noise, self.times[index, None, None], velocity)
        return x, velocity if self._by_velocity else action

    def mean_std(self, x: Tensor, prediction: Tensor, index: int | Tensor) -> tuple[Tensor, Tensor]:
        """Mean [B H Da] and standard deviation (broadcasts) of the next latent.

        Args:
            x: [B H Da] latent. prediction: [B H Da] of the network at `x`.
            index: sampling step, 0 the noisiest … S−1, one for all or [B].
        """
        if self._ends_there and isinstance(index, int) and index == len(self.times) - 1:
            return prediction, self.steps[2, index]  # 0·x + 1·prediction
        from_x, from_prediction, std = self.steps[:, index]
        return torch.addcmul(from_x * x, from_prediction, prediction), std

    def level(self, index: int) -> tuple[float, float]:
        """t and 1 − t."""
        t = float(self.times[index])
        return t, 1.0 - t

    def clean(self, x: Tensor, prediction: Tensor, index: int | Tensor) -> Tensor:
        """Return the action that `prediction` [B H Da] at x [B H Da] implies."""
        return torch.addcmul(x, self._rest(index), prediction) if self._by_velocity else prediction

    def toward(self, x: Tensor, clean: Tensor, index: int | Tensor) -> tuple[Tensor, Tensor]:
        """`mean_std` of the prediction that leads from x [B H Da] to `clean` [B H Da]."""
        return self.mean_std(x, self.expecting(clean, x, index), index)

    def expecting(self, clean: Tensor, x: Tensor, index: int | Tensor) -> Tensor:
        """Return the network output at x [B H Da] that implies the action `clean` [B H Da]."""
        return (clean - x) / self._rest(index) if self._by_velocity else clean

    @property
    def _by_velocity(self) -> bool:
        return self.target == "velocity"

    def _rest(self, index: int | Tensor) -> Tensor:
        return (1.0 - self.times[index])[..., None, None]


def step_table(times: Tensor, noise_level: float, *, of_sample: bool = False) -> Tensor:
    """Coefficients [3 S] of each step: mean = a·x + b·velocity, deviation σ·√dt; `of_sample`: a·x + b·action.

    With the score −(x − t·v)/(1−t), which the straight line has, the stochastic equation of the same marginals is
    dx = [v − ½σ²·(x − t·v)/(1−t)]·dt + σ·dw (Flow-GRPO, Liu et al. 2025, eq. 8; π_RL's Flow-SDE), here with
    σ² = noise_level²·(1−t)/t and t in that ratio at least one step, since it diverges at pure noise.
    """
    t, dt = times.double(), 1.0 / len(times)
    ratio = noise_level**2 / t.clamp_min(dt)  # σ²/(1−t)
    from_x, from_velocity = 1 - 0.5 * dt * ratio, dt * (1 + 0.5 * t * ratio)
    if of_sample:  # velocity = (action − x) / (1 − t)
        from_velocity = from_velocity / (1 - t)
        from_x = from_x - from_velocity
    return torch.stack([from_x, from_velocity, (dt * (1 - t) * ratio).sqrt()]).float()

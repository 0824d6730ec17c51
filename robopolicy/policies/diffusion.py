"""Denoise action chunks by DDPM (Ho et al. 2020; Chi et al. 2023), sampled by DDPM or DDIM."""

from __future__ import annotations

import logging
import math
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from robopolicy.config.schema import Count, Fraction, Positive
from robopolicy.core.errors import CheckpointError, ConfigError
from robopolicy.core.rng import normal_like
from robopolicy.core.specs import PolicySpec
from robopolicy.networks.denoiser import stratified
from robopolicy.policies.denoising import ChunkDenoiser
from robopolicy.policies.normalizer import Normalizer

Prediction = Literal["epsilon", "sample", "v_prediction"]
Sampler = Literal["ddpm", "ddim"]
Schedule = Literal["squaredcos_cap_v2", "linear", "scaled_linear"]
_PURE = 0.01  # ᾱ up to which x counts as noise alone
_log = logging.getLogger(__name__)


class DiffusionPolicy(ChunkDenoiser):
    """Denoises a chunk in K steps with a cosine schedule; `ChunkDenoiser.loss` is its training loss.

    One step of either sampler is Gaussian with mean c₀·x̂₀ + c₁·x and a standard deviation that depends on the step
    alone. Both come from the table `steps`; a test compares them with the `step` of diffusers' schedulers. Latents are
    never clamped, but the *prediction* x̂₀ inside the mean is, to ±`clip`. The mean stays a
    deterministic function of x, so likelihoods stay exact.

    Noise: [S+1 H Da] for DDPM (the initial latent, then one array a step; the last has no effect because the last
    step's deviation is zero), [H Da] for DDIM with η = 0.

    Args:
        denoising_steps: K, the length of the training schedule.
        prediction: the network's output: the noise ε, the clean chunk, or v = √ᾱ·ε − √(1−ᾱ)·x₀.
        sampler: "ddpm", or "ddim" (Song et al. 2021) with ε taken from the clamped x̂₀.
        eta: of DDIM; 0 is deterministic, 1 draws as DDPM does.
        sampling_steps: S ≤ K, K when None; evenly spaced from the noisiest step downwards ("trailing", Lin et al.
            2024), so that sampling starts where x is pure noise.
        schedule: of ᾱ, see `noise_schedule`. Warns where K steps of it leave more than noise.
        clip: bound of x̂₀ in normalised units.
        **common: see ChunkDenoiser.

    Raises:
        ConfigError: sampling_steps outside 1…K.
    """

    alpha_bar: Tensor  # [K] ᾱ, from the least noisy step to the noisiest
    levels: Tensor  # [2 S] √ᾱ and √(1−ᾱ) of the sampling steps
    steps: Tensor  # [5 S 1 1] see step_table

    def __init__(
        self,
        spec: PolicySpec,
        normalizer: Normalizer,
        *,
        denoising_steps: Count = 10,
        prediction: Prediction = "sample",
        sampler: Sampler = "ddpm",
        eta: Fraction = 0.0,
        sampling_steps: Count | None = None,
        schedule: Schedule = "squaredcos_cap_v2",
        clip: Positive = 1.0,
        **common: Any,
    ) -> None:
        count = denoising_steps if sampling_steps is None else sampling_steps
        super().__init__(spec, normalizer, count, **common)
        if not 1 <= count <= denoising_steps:
            raise ConfigError(f"sampling_steps must lie between 1 and denoising_steps={denoising_steps}, found {count}")
        alpha_bar, timesteps = noise_schedule(schedule, denoising_steps), trailing(denoising_steps, count)
        self.target, self.clip = prediction, clip
        self.denoising_steps = denoising_steps
        self.noise_shape = (spec.horizon, spec.action.dim)
        if sampler == "ddpm" and eta not in (0.0, 1.0):
            _log.warning("eta=%g: only sampler=ddim reads it. Set that too, or leave eta out", eta)
        eta = 1.0 if sampler == "ddpm" else eta
        if eta:
            self.noise_shape = (count + 1, *self.noise_shape)
        if alpha_bar[-1] > _PURE:
            _log.warning(
                "schedule=%s: after %d denoising_steps ᾱ is %.2g, so sampling starts at noise that training never had. "
                "Take schedule=squaredcos_cap_v2, or denoising_steps=1000",
                schedule, denoising_steps, alpha_bar[-1],
            )  # fmt: skip
        self.register_buffer("alpha_bar", alpha_bar)
        self.register_buffer("times", timesteps / denoising_steps, persistent=False)  # [S] in [0, 1)
        now = alpha_bar[timesteps]
        self.register_buffer("levels", torch.stack([now, 1.0 - now]).sqrt(), persistent=False)  # [2 S]
        table = step_table(alpha_bar, timesteps, prediction=prediction, eta=eta)
        self.register_buffer("steps", table[:, :, None, None], persistent=False)
        self.register_load_state_dict_pre_hook(_check_schedule)

    def corrupt(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Forward process at a random step per chunk (Ho et al. 2020, eq. 4); steps are balanced within the batch."""
        step = (stratified(action.shape[0], action.device, each=self.noise_samples) * self.denoising_steps).long()
        alpha_bar, noise = self.alpha_bar[step, None, None], normal_like(action)
        x, target = self._mixed(action, noise, alpha_bar.sqrt(), (1.0 - alpha_bar).sqrt())
        return x, step / self.denoising_steps, target

    def noised(self, action: Tensor, noise: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """See ChunkDenoiser."""
        return self._mixed(action, noise, *self.levels[:, index, None, None])

    def _mixed(self, action: Tensor, noise: Tensor, signal: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
        target = {
            "epsilon": lambda: noise,
            "sample": lambda: action,
            "v_prediction": lambda: signal * noise - spread * action,
        }[self.target]()
        return signal * action + spread * noise, target

    def mean_std(self, x: Tensor, prediction: Tensor, index: int | Tensor) -> tuple[Tensor, Tensor]:
        """Mean [B H Da] and standard deviation (broadcasts) of the next latent.

        Args:
            x: [B H Da] latent. prediction: [B H Da] of the network at `x`.
            index: sampling step, 0 the noisiest … S−1, one for all or [B].
        """
        return self.toward(x, self.clean(x, prediction, index), index)

    def level(self, index: int) -> tuple[float, float]:
        """√ᾱ and √(1−ᾱ)."""
        return float(self.levels[0, index]), float(self.levels[1, index])

    def clean(self, x: Tensor, prediction: Tensor, index: int | Tensor) -> Tensor:
        """x̂₀ [B H Da], before its clamp."""
        from_x, from_prediction = self.steps[:2, index]
        return torch.addcmul(from_x * x, from_prediction, prediction)

    def toward(self, x: Tensor, clean: Tensor, index: int | Tensor) -> tuple[Tensor, Tensor]:
        """Mean [B H Da] and standard deviation of the next latent for x̂₀ [B H Da], which is clamped here."""
        c0, c1, std = self.steps[2:, index]
        return torch.addcmul(c0 * clean.clamp(-self.clip, self.clip), c1, x), std


def noise_schedule(schedule: Schedule, steps: int) -> Tensor:
    """Return ᾱ [K] of K steps, under diffusers' names of a `beta_schedule`.

    "squaredcos_cap_v2" is a squared cosine (Nichol and Dhariwal 2021, eq. 17). The others go from β = 1e-4 to 0.02:
    "linear" in β (Ho et al. 2020), "scaled_linear" in √β.
    """
    if schedule == "squaredcos_cap_v2":
        cosine = [math.cos((k / steps + 0.008) / 1.008 * math.pi / 2) ** 2 for k in range(steps + 1)]
        beta = torch.tensor([min(1 - after / now, 0.999) for now, after in pairwise(cosine)])
    elif schedule == "linear":
        beta = torch.linspace(1e-4, 0.02, steps)
    else:
        beta = torch.linspace(1e-4**0.5, 0.02**0.5, steps) ** 2
    return torch.cumprod(1.0 - beta, dim=0)


def trailing(steps: int, count: int) -> Tensor:
    """Return `count` of K `steps` as int64 [S], evenly spaced from the noisiest, K − 1, downwards (Lin et al. 2024)."""
    return torch.from_numpy(np.round(np.arange(steps, 0, -steps / count)).astype(np.int64))[:count] - 1


def step_table(alpha_bar: Tensor, timesteps: Tensor, *, prediction: Prediction, eta: float) -> Tensor:
    """Coefficients [5 S] of each sampling step: x̂₀ = a·x + b·prediction, mean = c₀·x̂₀ + c₁·x, deviation σ.

    DDIM's general form (Song et al. 2021, eq. 12 and 16) with ε = (x − √ᾱ·x̂₀) / √(1−ᾱ); η = 1 is DDPM's posterior
    (Ho et al. 2020, eq. 7) exactly, η = 0 the deterministic sampler.
    """
    now = alpha_bar.double()[timesteps]
    following = torch.cat([now[1:], now.new_ones(1)])  # ᾱ after the step; the last one arrives at the clean chunk
    signal, spread = now.sqrt(), (1.0 - now).sqrt()
    from_x, from_prediction = {
        "epsilon": (1.0 / signal, -spread / signal),
        "sample": (torch.zeros_like(signal), torch.ones_like(signal)),
        "v_prediction": (signal, -spread),
    }[prediction]
    std = eta * ((1.0 - following) / (1.0 - now) * (1.0 - now / following)).sqrt()
    c1 = (1.0 - following - std**2).clamp_min(0.0).sqrt() / spread
    c0 = following.sqrt() - c1 * signal
    return torch.stack([from_x, from_prediction, c0, c1, std]).float()


def _check_schedule(module: DiffusionPolicy, state: dict[str, Any], prefix: str, *_: Any) -> None:
    saved, own = state.get(prefix + "alpha_bar"), module.alpha_bar
    if saved is not None and (saved.shape != own.shape or not torch.allclose(saved.to(own.device), own)):
        raise CheckpointError(
            f"the checkpoint was trained with another noise schedule: {len(saved)} denoising steps ending at "
            f"ᾱ={saved[-1]:.4g}, this policy has {len(own)} ending at ᾱ={own[-1]:.4g}. "
            "Set denoising_steps and schedule as in training; sampling_steps and sampler may differ."
        )

"""What diffusion and flow policies share: encoding, the masked regression loss, and `act`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Required, TypedDict, Unpack

import torch
from torch import Tensor, nn

from robopolicy.networks.denoiser import Denoiser
from robopolicy.networks.encoder import ObservationEncoder
from robopolicy.normalize import ACTION, Normalizer
from robopolicy.policies.base import DenoisingPolicy
from robopolicy.spec import PolicySpec
from robopolicy.types import Metrics, Obs


class Common(TypedDict, total=False):
    """Keywords of every ChunkDenoiser.

    network: makes the Denoiser from `horizon`, `action_dim` and `cond_dim`.
    state_encoder, image_encoder, image_shift: see ObservationEncoder.
    noise_samples: noised chunks per observation in a training batch. Where encoding is the cost (images), more of
        them are nearly free (Mini-Diffuser, Hu et al. 2025).
    """

    network: Required[Callable[..., Denoiser]]
    state_encoder: Callable[[int], nn.Module] | None
    image_encoder: Callable[[tuple[int, ...]], nn.Module] | None
    image_shift: int
    noise_samples: int


class ChunkDenoiser(DenoisingPolicy):
    """A Denoiser over chunks behind an observation encoder. Subclasses say how to corrupt and how to sample."""

    def __init__(self, spec: PolicySpec, normalizer: Normalizer, **common: Unpack[Common]) -> None:
        super().__init__()
        self.spec, self.normalizer = spec, normalizer
        self.noise_samples = common.pop("noise_samples", 1)
        network = common.pop("network")
        self.encoder = ObservationEncoder(spec, **common)
        self.network = network(horizon=spec.horizon, action_dim=spec.action.dim, cond_dim=self.encoder.out_dim)

    def encode(self, obs: Obs) -> Tensor:
        """cond [B C] from obs [B To ...] in physical units; it is normalised here."""
        return self.encoder(self.normalizer.observation(obs))

    @torch.no_grad()
    def act(self, obs: Obs, *, noise: Tensor | None = None, deterministic: bool = False) -> Tensor:
        """[B H Da] physical units. A pure function of `obs` and `noise`; deterministic: all noise zero."""
        cond = self.encode(obs)
        if deterministic:
            noise = cond.new_zeros(cond.shape[0], *self.noise_shape)
        return self.normalizer.unnormalize(ACTION, self.sample(cond, noise=noise))

    def loss(self, batch: dict[str, Any]) -> tuple[Tensor, Metrics]:
        """Mean squared error of the network's prediction, over all elements of actions that are not padding."""
        action = self.normalizer.normalize(ACTION, batch[ACTION])  # [B H Da]
        keep = ~batch["action_is_pad"]  # [B H]
        cond = self.encoder(self.normalizer.observation(batch), augment=True)
        if self.noise_samples > 1:
            action, keep, cond = (x.repeat_interleave(self.noise_samples, dim=0) for x in (action, keep, cond))
        x, t, target = self.corrupt(action)
        error = (self.network(x, t, cond) - target).square().mean(-1)  # [B H]
        return (error * keep).sum() / keep.sum(), {}

    @abstractmethod
    def corrupt(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Noised chunk [B H Da], its time [B] in [0, 1] and the regression target [B H Da] of a clean chunk."""

    def draw(self, cond: Tensor, noise: Tensor | None) -> Tensor:
        """`noise` [B *noise_shape] as given, or from torch's global generator."""
        shape = (cond.shape[0], *self.noise_shape)
        if noise is None:
            return torch.randn(shape, device=cond.device, dtype=cond.dtype)
        if tuple(noise.shape) != shape:
            raise ValueError(f"noise must have shape [B *noise_shape] = {shape}, found {tuple(noise.shape)}")
        return noise


def stratified(batch: int, device: torch.device) -> Tensor:
    """[B] numbers in [0, 1), one in each of B equal intervals: uniform one by one, but of less variance together."""
    return ((torch.arange(batch, device=device) + torch.rand((), device=device)) / batch).clamp_(max=1.0 - 1e-6)

"""Interface of denoising networks, and the layers that they share."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robopolicy.core.rng import draw_rows
from robopolicy.networks.sizes import check_multiple


class Denoiser(nn.Module):
    """prediction [B H Da] = f(x [B H Da], t [B] in [0, 1], cond [B C]); the policy chooses the regression target.

    The embedding of (t, cond) is a sum of two terms. A sampler therefore embeds the observation once per chain and
    all its times in one small batch, instead of both at every denoising step.

    Args:
        cond_dim: C. time_dim: size of the sinusoidal time features; 0: the network ignores t.
        embed_dim: P, size of the embedding that `denoise` consumes.
    """

    def __init__(self, *, cond_dim: int, time_dim: int, embed_dim: int, activation: nn.Module) -> None:
        super().__init__()
        check_multiple("time_dim", time_dim, 2)
        self.embed_dim = embed_dim
        self.time = nn.Sequential(
            TimeFeatures(time_dim),
            nn.Linear(time_dim, 4 * time_dim),
            activation,
            nn.Linear(4 * time_dim, time_dim),
            activation,
            nn.Linear(time_dim, embed_dim, bias=False),
        ) if time_dim else None  # fmt: skip
        self.cond = nn.Linear(cond_dim, embed_dim)

    def embed_time(self, t: Tensor) -> Tensor:
        """[B P] from t [B]."""
        return self.time(t) if self.time is not None else t.new_zeros(len(t), self.embed_dim)

    def embed_cond(self, cond: Tensor) -> Tensor:
        """[B P] from cond [B C]."""
        return self.cond(cond)

    @abstractmethod
    def denoise(self, x: Tensor, embedding: Tensor) -> Tensor:
        """[B H Da] from x [B H Da] and the embedding [B P]."""

    def forward(self, x: Tensor, t: Tensor, cond: Tensor) -> Tensor:
        """[M H Da] from x [M H Da], t [M] and cond [B C]; each S = M/B consecutive rows share a cond."""
        from_cond = self.embed_cond(cond)
        if len(x) > len(from_cond):
            from_cond = from_cond.repeat_interleave(len(x) // len(from_cond), dim=0)
        return self.denoise(x, self.embed_time(t) + from_cond)


def sees_time(network: nn.Module) -> bool:
    """Return False for a Denoiser with time_dim=0, True for every other network."""
    return not (isinstance(network, Denoiser) and getattr(network, "time", network) is None)


class TimeFeatures(nn.Module):
    """sin and cos of t [B] at `dim`/2 geometrically spaced periods (π0, Black et al. 2024, appendix B).

    The shortest period is below the spacing of 100 denoising steps, the longest above the whole interval.
    """

    frequency: Tensor  # [dim/2] radians

    def __init__(self, dim: int, *, min_period: float = 4e-3, max_period: float = 4.0) -> None:
        super().__init__()
        if dim % 2:
            raise ValueError(f"time features come in pairs: dim must be even, found {dim}")
        fraction = torch.linspace(0.0, 1.0, dim // 2, dtype=torch.float64)
        period = min_period * (max_period / min_period) ** fraction
        self.register_buffer("frequency", (2 * math.pi / period).float(), persistent=False)

    def forward(self, t: Tensor) -> Tensor:
        angle = t[:, None] * self.frequency
        return torch.cat([angle.sin(), angle.cos()], dim=-1)


class Mish(nn.Module):
    """x · tanh(softplus(x)) (Misra 2020).

    On a CPU it is 3× faster than PyTorch's: one sigmoid replaces three transcendental functions. With q = sigmoid(−x),
    tanh(softplus(x)) = (1 − q²) / (1 + q²).
    """

    def forward(self, x: Tensor) -> Tensor:
        return _FastMish.apply(x) if x.numel() > 16_384 and not x.is_cuda else F.mish(x)


class _FastMish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        q = x.neg().sigmoid_()
        square = q * q
        w = (1.0 - square).div_(square.add_(1.0))
        ctx.save_for_backward(x, q, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, q, w = ctx.saved_tensors
        # d/dx [x·w] = w + x · (1 − w²) · sigmoid(x)
        slope = (1.0 - w * w).mul_(x).mul_(1.0 - q).add_(w)
        return slope.mul_(grad)


def stratified(batch: int, device: torch.device, *, each: int = 1) -> Tensor:
    """Draw [B] numbers in [0, 1), one in each of B equal intervals: uniform, with less variance as a set.

    Each group of `each` consecutive rows, the chunks of one observation, covers the whole interval.
    """

    def draw(rows: int) -> Tensor:
        t = ((torch.arange(rows, device=device) + torch.rand((), device=device)) / rows).clamp_(max=1.0 - 1e-6)
        return t.view(each, -1).T.flatten()

    return draw_rows(draw, batch)

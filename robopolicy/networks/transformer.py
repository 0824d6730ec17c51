"""Transformer denoiser: one token per step of the chunk, conditioned through AdaLN-zero (DiT, Peebles & Xie 2023)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robopolicy.config.schema import Count, Natural
from robopolicy.networks.denoiser import Denoiser
from robopolicy.networks.sizes import check_multiple


class Transformer(Denoiser):
    """Bidirectional attention over the H steps; observation and time enter as shift, scale and gate of every block.

    Args:
        width: token size, a multiple of `heads`. depth: blocks. ratio: hidden size of the feed-forward part / width.
        heads: of attention.
    """

    def __init__(
        self,
        *,
        horizon: int,
        action_dim: int,
        cond_dim: int,
        width: Count = 128,
        depth: Natural = 4,
        heads: Count = 4,
        ratio: Count = 4,
        time_dim: Natural = 128,
    ) -> None:
        super().__init__(cond_dim=cond_dim, time_dim=time_dim, embed_dim=width, activation=nn.SiLU())
        self.action = nn.Linear(action_dim, width)
        self.position = nn.Parameter(0.02 * torch.randn(horizon, width))
        self.blocks = nn.ModuleList(ModulatedBlock(width, heads, ratio) for _ in range(depth))
        self.modulation = nn.Linear(width, 2 * width)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.out = nn.Linear(width, action_dim)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def denoise(self, x: Tensor, embedding: Tensor) -> Tensor:
        """[B H Da] from x [B H Da] and embedding [B width]."""
        h = self.action(x) + self.position
        context = F.silu(embedding)[:, None]
        for block in self.blocks:
            h = block(h, context)
        shift, scale = self.modulation(context).chunk(2, dim=-1)
        return self.out(modulate(self.norm(h), shift, scale))


class ModulatedBlock(nn.Module):
    """Attention and feed-forward, each x + gate · f(scale, shift of LayerNorm(x)); gates start at zero."""

    def __init__(self, width: int, heads: int, ratio: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.feed = feed_forward(width, ratio)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = nn.Linear(width, 6 * width)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """[B L width] from x [B L width] and context [B 1 width]."""
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(context).chunk(6, dim=-1)
        x = torch.addcmul(x, gate1, self.attention(modulate(self.norm(x), shift1, scale1)))
        return torch.addcmul(x, gate2, self.feed(modulate(self.norm(x), shift2, scale2)))


class Attention(nn.Module):
    """Multi-head self-attention [B L width] → [B L width]; `mask` [B 1 L L] is True where a row sees a column."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        check_multiple("width", width, heads, "heads")
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # [B heads L width/heads] each
        seen = attention(q, k, v, mask)
        return self.out(seen.transpose(1, 2).reshape(batch, length, width))


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Scaled dot-product attention [B heads L d], `mask` True where a row sees a column; every row sees one.

    PyTorch's, except in bfloat16 on a CPU: there plain products train several times faster (seven to eleven times with
    16 tokens on a CPU with AVX-512 BF16). They store L × L scores.
    """
    if q.dtype is not torch.bfloat16 or q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    score = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    if mask is not None:
        score = score.masked_fill(~mask, -torch.inf)
    return score.softmax(-1) @ v


def feed_forward(width: int, ratio: int) -> nn.Sequential:
    """[… width] → [… width] through one hidden layer of `ratio`·width."""
    return nn.Sequential(nn.Linear(width, ratio * width), nn.GELU(), nn.Linear(ratio * width, width))


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """x · (1 + scale) + shift."""
    return torch.addcmul(shift, x, 1.0 + scale)

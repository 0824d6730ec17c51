"""Denoise chunks that attend to a prefix (prefix.py), whose keys and values are computed once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robopolicy.config.schema import Count, Natural
from robopolicy.networks.denoiser import Denoiser
from robopolicy.networks.precision import Precision, computing
from robopolicy.networks.sizes import check_multiple
from robopolicy.networks.transformer import feed_forward, modulate


@dataclass(frozen=True)
class Context:
    """Keys and values that all denoising steps and all chunks of an observation share.

    Adding a time [… width] sets it, so that samplers treat a Context like the embedding vectors of other denoisers.
    """

    keys: Tensor  # [depth B heads P d]
    values: Tensor  # [depth B heads P d]
    bias: Tensor  # [B 1 1 P]: 0 for a token, −inf for padding
    time: Tensor | None = None  # [M width] or [width]

    def __add__(self, time: Tensor) -> Context:
        return replace(self, time=time)

    def __len__(self) -> int:
        return len(self.bias)


class ActionExpert(Denoiser):
    """Denoises action tokens, one per step, that attend to the prefix and to one another; AdaLN-zero adds the time.

    x may hold S chunks per observation (two-level batching: Mini-Diffuser, Hu et al. 2025): M = B·S rows, grouped by
    observation. Keys and values of the prefix are computed and stored once per observation.

    Args:
        cond_dim: C = S + P·(token_dim + 1), as Prefix has it. token_dim: size of a prefix token. summary_dim: S.
        width: of an action token, a multiple of `heads`. depth: blocks. ratio: hidden size of the feed-forward / width.
        precision: of the computation; the result is float32.
        heads: of attention.
    """

    def __init__(
        self,
        *,
        horizon: int,
        action_dim: int,
        cond_dim: int,
        token_dim: int,
        summary_dim: int = 0,
        width: Count = 128,
        depth: Count = 4,
        heads: Count = 4,
        ratio: Count = 4,
        time_dim: Natural = 128,
        precision: Precision = "float32",
    ) -> None:
        super().__init__(cond_dim=token_dim, time_dim=time_dim, embed_dim=width, activation=nn.SiLU())
        check_multiple("width", width, heads, "heads")
        self.token_dim, self.summary_dim, self.depth, self.heads = token_dim, summary_dim, depth, heads
        self.precision: Precision = precision
        self.cond = nn.Linear(token_dim, depth * 2 * width)  # keys and values of every block
        self.action = nn.Linear(action_dim, width)
        self.position = nn.Parameter(0.02 * torch.randn(horizon, width))
        self.blocks = nn.ModuleList(ExpertBlock(width, heads, ratio) for _ in range(depth))
        self.modulation = nn.Linear(width, 2 * width)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.out = nn.Linear(width, action_dim)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def embed_cond(self, cond: Tensor) -> Context:  # type: ignore[override]
        """Compute the prefix's keys and values from cond [B C]."""
        cond = cond[:, self.summary_dim :]
        batch, count = len(cond), cond.shape[1] // (self.token_dim + 1)
        tokens, mask = cond[:, : count * self.token_dim].reshape(batch, count, -1), cond[:, count * self.token_dim :]
        with computing(self.precision, cond.device):
            both = self.cond(tokens).view(batch, count, self.depth, 2, self.heads, -1)
        keys, values = both.permute(3, 2, 0, 4, 1, 5)  # [depth B heads P d] each
        bias = torch.zeros_like(mask, dtype=both.dtype).masked_fill(mask < 0.5, -torch.inf)
        time = None if self.time is not None else cond.new_zeros(1, self.embed_dim)
        return Context(keys, values, bias[:, None, None], time)

    def denoise(self, x: Tensor, embedding: Context) -> Tensor:  # type: ignore[override]
        """[M H Da] from x [M H Da] and the context of B = M/S observations, its time set."""
        assert embedding.time is not None
        if len(x) % len(embedding):
            raise ValueError(f"{len(x)} chunks cannot be shared out evenly to {len(embedding)} observations")
        h = self.action(x) + self.position
        context = F.silu(embedding.time.expand(len(x), -1))[:, None]
        with computing(self.precision, x.device):
            for block, key, value in zip(self.blocks, embedding.keys, embedding.values, strict=True):
                h = block(h, context, key, value, embedding.bias)
            shift, scale = self.modulation(context).chunk(2, dim=-1)
            h = modulate(self.norm(h), shift, scale)
        return self.out(h.float())

    def forward(self, x: Tensor, t: Tensor, cond: Tensor) -> Tensor:
        """[M H Da] from x [M H Da], t [M] and cond [B C]; M is a multiple of B."""
        return self.denoise(x, self.embed_cond(cond) + self.embed_time(t))


class ExpertBlock(nn.Module):
    """Joint attention and feed-forward, each x + gate · f(scale, shift of LayerNorm(x)); gates start at zero."""

    def __init__(self, width: int, heads: int, ratio: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = feed_forward(width, ratio)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = nn.Linear(width, 6 * width)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def forward(self, x: Tensor, context: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        """[M H width] from x, the time's context [M 1 width] and the prefix's key, value [B heads P d]."""
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(context).chunk(6, dim=-1)
        qkv = self.qkv(modulate(self.norm(x), shift1, scale1))
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # [M heads H d] each
        seen = attend(q, k, v, key, value, bias).transpose(1, 2).flatten(2)
        x = torch.addcmul(x, gate1, self.out(seen))
        return torch.addcmul(x, gate2, self.feed(modulate(self.norm(x), shift2, scale2)))


def attend(q: Tensor, k: Tensor, v: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Let each chunk attend to its observation's prefix and to itself, by one softmax: [M heads H d].

    Scores against the prefix are one product per observation, with the queries of all its chunks as rows. Scores within
    a chunk are one product per chunk. Chunks cannot attend to each other.

    Args:
        q, k, v: [M heads H d]. key, value: [B heads P d]. bias: [B 1 1 P], added to the prefix's scores.
    """
    length, size = q.shape[2:]
    batch, prefix = len(key), key.shape[2]
    each = len(q) // batch

    def together(x: Tensor) -> Tensor:  # [M heads H …] → [B heads S·H …]
        return x.unflatten(0, (batch, each)).transpose(1, 2).flatten(2, 3)

    def apart(x: Tensor) -> Tensor:  # and back
        return x.unflatten(2, (each, length)).transpose(1, 2).flatten(0, 1)

    q = q * size**-0.5
    far = together(q) @ key.transpose(-1, -2) + bias  # [B heads S·H P]
    near = together(q @ k.transpose(-1, -2))  # [B heads S·H H]
    far, near = torch.cat([far, near], dim=-1).softmax(-1).split([prefix, length], dim=-1)
    return apart(far @ value) + apart(near) @ v

"""Predict the changes of a chunk by a causal transformer with several modes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from robopolicy.networks.precision import Precision, computing
from robopolicy.networks.transformer import Attention, feed_forward
from robopolicy.world_models.models.state_transform import round_up


class Member(nn.Module):
    """Transformer with causal attention over the steps of a chunk, and M modes of its outcome."""

    def __init__(
        self, in_dim: int, out_dim: int, *, chunk: int, modes: int, width: int, depth: int, attention_heads: int,
        precision: Precision,
    ) -> None:  # fmt: skip
        super().__init__()
        self.enter = nn.Linear(in_dim, width)
        self.position = nn.Parameter(0.02 * torch.randn(chunk, width))
        self.attention = nn.ModuleList(Attention(width, attention_heads) for _ in range(depth))
        self.feed = nn.ModuleList(feed_forward(width, 2) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth + 1))
        self.change = nn.Linear(width + in_dim, round_up(modes * out_dim))
        self.odds = nn.Linear(width, round_up(modes))
        self.modes, self.out_dim = modes, out_dim
        self.precision: Precision = precision
        self.register_buffer("before", torch.ones(chunk, chunk, dtype=torch.bool).tril()[None, None], persistent=False)
        with torch.no_grad():  # at first all modes are alike, and next to nothing moves
            self.change.weight.mul_(0.1)
            each = self.change.weight[: modes * out_dim].view(modes, out_dim, -1)
            each.copy_(each[:1].expand_as(each).clone())
            for parameter in (self.change.bias, self.odds.weight, self.odds.bias):
                parameter.zero_()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Changes [B H M Ds] of every step in deviations of one, and logits [B M], of inputs x [B H F]."""
        h = self.enter(x) + self.position
        with computing(self.precision, x.device):  # layers that read or move a state stay float32
            for i, (attend, feed) in enumerate(zip(self.attention, self.feed, strict=True)):
                h = h + attend(self.norms[2 * i](h), self.before)
                h = h + feed(self.norms[2 * i + 1](h))
        h = self.norms[-1](h)
        change = self.change(torch.cat([h, x], dim=-1))[..., : self.modes * self.out_dim]
        return change.unflatten(-1, (self.modes, self.out_dim)), self.odds(h[:, 0])[..., : self.modes]

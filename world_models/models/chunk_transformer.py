"""Predict the dynamics of action chunks by a causal transformer over a state and H actions.

A one-step model feeds its own error back after every action. Here nothing is fed back within a chunk: the change at
every step follows from the first state of the chunk and the actions so far. So a chunk is one pass in training, and
errors compound once in H steps. Random outcomes, as whether a grasp holds, are drawn once a chunk too: the
mode stays the same for all of its steps. Similar model: Trajectory Transformer (Janner et al. 2021); here states are
continuous and outcomes a mixture.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from robopolicy.config.schema import Count, Positive
from robopolicy.core.errors import ConfigError
from robopolicy.core.types import STATE, EnvSpec, Metrics
from robopolicy.networks.precision import Precision, computing
from robopolicy.networks.transformer import Attention, feed_forward
from robopolicy.world_models.models.dynamics import History, Imagined, StateDynamics, by_blocks, unrolled_metrics
from robopolicy.world_models.models.state_transform import StateTransform, check_sizes, hyperbolic, round_up


class Latent(NamedTuple):
    """Where an imagined episode is, and inside which chunk."""

    state: Tensor  # [... Ds]
    begun: Tensor  # [... Ds] the state that the chunk began in
    done: Tensor  # [... H Da] the chunk's actions so far, as the network sees them
    taken: Tensor  # [...] how many these are, 0 to H
    luck: Tensor  # [...] uniform number of the chunk, −1 for the likeliest outcome; of no meaning where none is taken


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


class ChunkTransformer(StateDynamics):
    """E members over the changes of the state [Ds] along H actions.

    A mode's density is hyperbolic, with a spread for every step of the chunk and number. Its odds follow from the state
    and the first action, so they are the same whether the others are known yet or not. What is drawn for the first step
    of a chunk holds for the whole chunk; later values of `draw` are ignored.

    Args:
        chunk: H. chunks: in a row in a training sequence, each from where the one before was imagined to end.
        heads: E; one of them dreams an episode, all of them estimate uncertainty. modes: M.
        width, depth, attention_heads: of each transformer.
        min_spread: floor of a mode's spread, in deviations of a step. periods, fine: see StateTransform.
        block: rows computed at once when stepping. Padded to it, a row's result does not depend on how many there are.
        precision: of the transformers' blocks; layers that read or move a state are float32.

    Raises:
        ConfigError: a width or block with which it would, or that attention_heads does not divide.
    """

    unroll_key = "chunks"

    def __init__(
        self,
        spec: EnvSpec,
        *,
        chunk: Count = 8,
        chunks: Count = 2,
        heads: Count = 3,
        modes: Count = 4,
        width: Count = 96,
        depth: Count = 2,
        attention_heads: Count = 4,
        min_spread: Positive = 0.02,
        periods: dict[str, Positive] | None = None,
        fine: Positive = 8.0,
        block: Count = 64,
        precision: Precision = "float32",
    ) -> None:
        super().__init__()
        check_sizes({"width": width, "block": block})
        if width % attention_heads:
            raise ConfigError(f"world_model.width: expected a multiple of {attention_heads=}, found {width}")
        self.spec, self.chunk_size, self.unroll = spec, chunk, chunk * chunks
        self.heads, self.modes, self.min_spread, self.block = heads, modes, min_spread, block
        self.state_transform = StateTransform(spec.observation[STATE], spec.action, periods=periods, fine=fine)
        self.size, self.action_dim = self.state_transform.size, spec.action.dim
        self.latent_dim = 2 * self.size + chunk * self.action_dim + 2
        self.feature_dim = self.state_transform.feature_dim
        self.members = nn.ModuleList(
            Member(self.state_transform.in_dim, self.size, chunk=chunk, modes=modes, width=width, depth=depth,
                   attention_heads=attention_heads, precision=precision) for _ in range(heads)
        )  # fmt: skip
        start = torch.linspace(math.log(0.1), math.log(1.0), modes)[:, None] + 0.5 * torch.arange(1, chunk + 1).log()
        self.log_spread = nn.Parameter(start.T[None, :, :, None].repeat(heads, 1, 1, self.size))  # [E H M Ds]

    # -- Dynamics ----------------------------------------------------------------------------------------------------
    def encode(self, history: History) -> Tensor:
        """Encode frames; every frame begins a chunk."""
        state = history.obs[STATE]
        done = state.new_zeros(*state.shape[:-1], self.chunk_size, self.action_dim)
        nothing = state.new_zeros(state.shape[:-1])
        return self._join(Latent(state, state, done, nothing, nothing))

    def mixed(self, latent: Tensor, other: Tensor, swap: Tensor) -> Tensor:
        """States by their numbers; what a chunk was about is dropped."""
        state = self.state(torch.where(swap, other, latent))
        return torch.cat([self.state_transform.derive(state), torch.zeros_like(latent[..., self.size :])], dim=-1)

    @torch.no_grad()
    def step(self, latent: Tensor, action: Tensor, *, episode: Tensor, draw: Tensor | None) -> Imagined:
        draw = torch.full_like(episode, torch.nan) if draw is None else draw
        return Imagined(*by_blocks(self._step_block, latent, action, draw, self._who(episode), block=self.block))

    def loss(self, batch: dict[str, Any]) -> tuple[Tensor, Metrics]:
        """Return −log p per predicted number and transition, of whole chunks of the mode that they were."""
        nll, error = self._unrolled(batch)
        valid = batch["valid"]
        loss = nll.sum() / valid.sum().clamp_min(1)
        return loss, unrolled_metrics(loss.detach(), error, valid)

    # -- inside ------------------------------------------------------------------------------------------------------
    def _split(self, latent: Tensor) -> Latent:
        size = self.chunk_size * self.action_dim
        state, begun, done, taken, luck = latent.split([self.size, self.size, size, 1, 1], dim=-1)
        done = done.unflatten(-1, (self.chunk_size, self.action_dim))
        return Latent(state, begun, done, taken[..., 0], luck[..., 0])

    @staticmethod
    def _join(latent: Latent) -> Tensor:
        rest = [latent.done.flatten(-2), latent.taken[..., None], latent.luck[..., None]]
        return torch.cat([latent.state, latent.begun, *rest], dim=-1)

    def _who(self, episode: Tensor) -> Tensor:
        """Return the member [B] that imagines."""
        return (episode * self.heads).long().clamp_(max=self.heads - 1)

    def _step_block(self, latent: Tensor, action: Tensor, draw: Tensor, member: Tensor) -> tuple[Tensor, Tensor]:
        at = self._split(latent)
        begins = (at.taken == 0) | (at.taken >= self.chunk_size)
        begun = torch.where(begins[:, None], at.state, at.begun)
        k = torch.where(begins, 0, at.taken.long())
        luck = torch.where(begins, draw.nan_to_num(-1.0), at.luck)
        rows = torch.arange(len(latent), device=latent.device)
        done = torch.where(begins[:, None, None], 0.0, at.done)
        done[rows, k] = self.state_transform.units(action)
        change, uncertainty = self._predicted(begun, done, member, luck)
        state = self.state_transform.advance(at.state, change[rows, k])
        return self._join(Latent(state, begun, done, (k + 1).to(latent), luck)), uncertainty[rows, k]

    def _predicted(self, begun: Tensor, done: Tensor, member: Tensor, luck: Tensor) -> tuple[Tensor, Tensor]:
        """Return changes [B H Ds] by `member` [B] with `luck` [B] (< 0: the likeliest), and the uncertainty [B H]."""
        means, expected = [], []
        x = self._inputs(begun, done)
        rows = torch.arange(len(begun), device=begun.device)
        for one in self.members:
            change, logits = one(x)
            weight = logits.softmax(-1)
            drawn = (weight.cumsum(-1) < luck[:, None]).sum(-1).clamp_(max=self.modes - 1)
            mode = torch.where(luck < 0, weight.argmax(-1), drawn)
            means.append(change[rows, :, mode])
            expected.append((weight[:, None, :, None] * change).sum(2) * self.state_transform.predicted)
        uncertainty = torch.stack(expected).std(0, correction=0).amax(-1)  # of one member, nothing
        return torch.stack(means)[member, rows], uncertainty

    def _inputs(self, begun: Tensor, done: Tensor) -> Tensor:
        """Return [B H F], at every step the state that the chunk began in, and its action."""
        features = self.state_transform.features(begun)[:, None].expand(-1, self.chunk_size, -1)
        return torch.cat([features, done], dim=-1)

    def _unrolled(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return −log p [E B chunks] per predicted number, and the mean absolute error [E B L] of the best mode.

        The error is in deviations of the state.
        """
        state, valid, number = batch[STATE], batch["valid"], self.state_transform.predicted.sum()
        spread = self.min_spread + self.log_spread.exp()
        nll, error = [], []
        for e, member in enumerate(self.members):
            at = state[e, :, 0]
            parts = zip(state[e, :, 1:].split(self.chunk_size, 1), batch["action"][e].split(self.chunk_size, 1),
                        valid[e].split(self.chunk_size, 1), strict=True)  # fmt: skip
            for true, action, there in parts:
                change, logits = member(self._inputs(at, self.state_transform.units(action)))
                reached = self.state_transform.advance(at[:, None, None], change.cumsum(1))  # [B H M Ds]
                missed = self.state_transform.difference(reached, true[:, :, None])
                each = (hyperbolic(missed, spread[e]) * self.state_transform.predicted).sum(-1)
                joint = logits.log_softmax(-1) - torch.where(there[:, :, None], each, 0.0).sum(1)  # [B M]
                nll.append(torch.where(there.any(1), -joint.logsumexp(-1), 0.0) / number)
                best = joint.argmax(-1)[:, None, None, None].expand(-1, self.chunk_size, 1, self.size)
                way = reached.gather(2, best)[:, :, 0]
                error.append((self.state_transform.wrap(way - true).abs() / self.state_transform.std).mean(-1).detach())
                at = way[:, -1]
        shape = (self.heads, -1)
        return (torch.stack(nll).unflatten(0, shape).transpose(1, 2),
                torch.stack(error).unflatten(0, shape).transpose(1, 2).flatten(2))  # fmt: skip

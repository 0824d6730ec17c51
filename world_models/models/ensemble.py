"""Ensemble of dynamics on states, whose members are mixtures over phases of contact.

A Gaussian over the next state fails where a grasp either holds or slips: its mean is a cube that half follows the hand,
and its samples shake a held cube loose. Here every member is a mixture of M phases. A phase has its own dynamics, a
linear part and a network, and its own constant spread. A rollout draws the phase and takes its *mean*. Free motion has
a narrow phase, and an object at rest stays at rest. The next phase is the uncertain part of a contact.

Training uses short open-loop unrolls, which follow the phase that explains the data best.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robopolicy.config.schema import Count, Positive
from robopolicy.core.types import STATE, EnvSpec, Metrics
from robopolicy.networks.critics import EnsembleLayerNorm, EnsembleLinear
from robopolicy.world_models.models.dynamics import History, Imagined, StateDynamics, by_blocks, unrolled_metrics
from robopolicy.world_models.models.state_transform import StateTransform, check_sizes, hyperbolic, round_up


class PhaseEnsemble(StateDynamics):
    """E members × M phases over the change of the state [Ds].

    The density of a phase is hyperbolic, exp(1 − √(1 + z²)) per number up to a constant: Gaussian near its mean, with
    tails that keep a rare hard contact from ruling the gradient.

    Args:
        heads: E. elites: the best of them on held-out data, which dream; all of them estimate uncertainty.
        width, depth: hidden layers. phases: M.
        unroll: L steps of a training sequence.
        min_spread: floor of a phase's spread, in deviations of a step.
        periods, fine: see StateTransform.
        block: rows computed at once when stepping. Padded to it, a row's result does not depend on how many there are.

    Raises:
        ConfigError: a width or block with which it would.
    """

    order: Tensor

    def __init__(
        self,
        spec: EnvSpec,
        *,
        heads: Count = 5,
        elites: Count = 5,
        width: Count = 128,
        depth: Count = 3,
        phases: Count = 4,
        unroll: Count = 6,
        min_spread: Positive = 0.02,
        periods: dict[str, Positive] | None = None,
        fine: Positive = 8.0,
        block: Count = 64,
    ) -> None:
        super().__init__()
        check_sizes({"width": width, "block": block})
        self.spec = spec
        self.state_transform = StateTransform(spec.observation[STATE], spec.action, periods=periods, fine=fine)
        self.heads, self.elites, self.phases = heads, min(elites, heads), phases
        self.unroll, self.min_spread, self.block = unroll, min_spread, block
        size, in_dim = spec.observation[STATE].shape[0], self.state_transform.in_dim
        self.latent_dim, self.feature_dim = size, self.state_transform.feature_dim
        sizes = [in_dim] + [width] * depth
        self.linears = nn.ModuleList(EnsembleLinear(heads, a, b) for a, b in pairwise(sizes))
        self.norms = nn.ModuleList(EnsembleLayerNorm(heads, width) for _ in range(depth))
        self.last = EnsembleLinear(heads, width + in_dim, round_up(phases * size + phases))
        with torch.no_grad():  # all phases begin with the same small prediction; their spreads tell them apart
            self.last.weight.mul_(0.1)
            mean = self.last.weight[..., : phases * size].view(heads, -1, phases, size)
            mean.copy_(mean[:, :, :1].expand_as(mean).clone())
            self.last.weight[..., phases * size :] = 0.0
            self.last.bias.zero_()
        start = torch.linspace(math.log(0.1), math.log(1.0), phases)
        self.log_spread = nn.Parameter(start[None, :, None].repeat(heads, 1, size))
        self.register_buffer("order", torch.arange(heads))  # members, the best first

    # -- Dynamics ----------------------------------------------------------------------------------------------------
    def encode(self, history: History) -> Tensor:
        return history.obs[STATE]

    def mixed(self, latent: Tensor, other: Tensor, swap: Tensor) -> Tensor:
        return self.state_transform.derive(torch.where(swap, other, latent))

    @torch.no_grad()
    def step(self, latent: Tensor, action: Tensor, *, episode: Tensor, draw: Tensor | None) -> Imagined:
        member = self.order[(episode * self.elites).long().clamp_(max=self.elites - 1)]
        if draw is None:
            draw = torch.full_like(episode, torch.nan)
        return Imagined(*by_blocks(self._step_block, latent, action, draw, member, block=self.block))

    def _step_block(self, latent: Tensor, action: Tensor, draw: Tensor, member: Tensor) -> tuple[Tensor, Tensor]:
        mean, logits = self.predict(latent.expand(self.heads, *latent.shape), action.expand(self.heads, *action.shape))
        weight = logits.softmax(-1)
        # Numbers that follow from others, or never change, are not trained: the members' say on them is noise.
        expected = (weight[..., None] * mean).sum(2) * self.state_transform.predicted  # [E B Ds]
        uncertainty = expected.std(0, correction=0).amax(-1) if self.heads > 1 else latent.new_zeros(len(latent))
        rows = torch.arange(len(latent), device=latent.device)
        chosen = weight[member, rows]  # [B M]
        drawn = (chosen.cumsum(-1) < draw[:, None]).sum(-1).clamp_(max=self.phases - 1)
        phase = torch.where(draw.isnan(), chosen.argmax(-1), drawn)
        return self.state_transform.advance(latent, mean[member, rows, phase]), uncertainty

    def loss(self, batch: dict[str, Any]) -> tuple[Tensor, Metrics]:
        """Return −log p per predicted number and transition, over an open-loop unroll of the phases that fit best."""
        nll, error = self._unrolled(batch)
        valid = batch["valid"]
        assert nll.shape == valid.shape, f"loss {tuple(nll.shape)} of transitions {tuple(valid.shape)}"
        loss = torch.where(valid, nll, 0.0).sum() / valid.sum().clamp_min(1)
        return loss, unrolled_metrics(loss.detach(), error.detach(), valid)

    @torch.no_grad()
    def member_errors(self, batch: dict[str, Any]) -> Tensor:
        nll, _ = self._unrolled(batch)
        return torch.where(batch["valid"], nll, 0.0).sum(dim=(1, 2)) / batch["valid"].sum(dim=(1, 2)).clamp_min(1)

    def rank(self, error: Tensor) -> None:
        self.order.copy_(error.argsort(stable=True))

    # -- inside ------------------------------------------------------------------------------------------------------
    def predict(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Means [E B M Ds] of the phases, in deviations of a step, and their logits [E B M]; inputs are [E B ...]."""
        x = self.state_transform.inputs(state, action)
        h = x
        for linear, norm in zip(self.linears, self.norms, strict=True):
            h = F.silu(norm(linear(h)))
        out = self.last(torch.cat([h, x], dim=-1))
        size = self.phases * self.latent_dim
        mean, logits = out[..., :size], out[..., size : size + self.phases]
        return mean.unflatten(-1, (self.phases, self.latent_dim)), logits

    @property
    def spread(self) -> Tensor:
        """Return [E 1 M Ds] of the phases, in deviations of a step."""
        return self.min_spread + self.log_spread.exp()[:, None]

    def _unrolled(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return −log p [E B L] per predicted number, and mean absolute error [E B L] in deviations of the state."""
        state, transform = batch[STATE], self.state_transform
        counts = transform.predicted
        spread, number = self.spread, counts.sum()
        at, nll, error = state[:, :, 0], [], []
        for k in range(batch["action"].shape[2]):
            mean, logits = self.predict(at, batch["action"][:, :, k])
            missed = transform.difference(at, state[:, :, k + 1])[:, :, None] - mean
            log_p = -(hyperbolic(missed, spread) * counts).sum(-1)
            joint = logits.log_softmax(-1) + log_p  # [E B M]
            nll.append(-joint.logsumexp(-1) / number)
            best = joint.argmax(-1)[..., None, None].expand(-1, -1, 1, self.latent_dim)
            at = transform.advance(at, mean.gather(2, best)[:, :, 0])
            error.append((transform.wrap(at - state[:, :, k + 1]).abs() / transform.std).mean(-1))
        return torch.stack(nll, dim=-1), torch.stack(error, dim=-1)

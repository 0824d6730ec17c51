"""Plain PPO (Schulman et al. 2017) on chunks, for policies whose density is known: Gaussian and mixture.

It is DPPO's baseline, with the same loop, critic, advantages and mean over executed elements. A chunk is one sample.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from robopolicy.algos.advantage_estimator import Advantages
from robopolicy.algos.ppo_core import Learner, PolicyGradient, PPOConfig
from robopolicy.algos.returns import clipped_loss
from robopolicy.buffers.collector import Record, Rollout
from robopolicy.config.schema import Count, Positive
from robopolicy.core.types import Metrics, Obs
from robopolicy.networks.mlp import MLP_3
from robopolicy.policies.base import LikelihoodPolicy
from robopolicy.policies.normalizer import ACTION


class ChunkSamples(NamedTuple):
    """D chunks of a rollout."""

    cond: Tensor  # [D C]
    x: Tensor  # [D H Da] normalised samples
    log_prob: Tensor  # [D] mean over executed elements, before the update
    advantages: Advantages  # [D]
    teacher: Tensor | None = None  # [D Tt Da] normalised, within the limits; Tt: steps that both policies predict


class PPO(PolicyGradient):
    """Fine-tunes all of `policy` except its encoder.

    Args:
        clip: PPO's clip of the ratio.
        critic, minibatch, **options: see PPOConfig.
    """

    def __init__(
        self,
        policy: LikelihoodPolicy,
        *,
        clip: Positive = 0.05,
        critic: Callable[[int, int], nn.Module] = MLP_3,
        minibatch: Count = 260,
        **options: Any,
    ) -> None:
        config = PPOConfig(critic=critic, minibatch=minibatch, **options)
        self.policy = policy
        parameters = policy.density_parameters()
        self.clip = torch.tensor(clip, device=parameters[0].device)
        self.learner = Learner.with_critic(parameters, policy.cond_dim, config)

    @torch.no_grad()
    def explore(self, obs: Obs, noise: Tensor) -> tuple[Tensor, Record]:
        """See Explorer: sample the policy."""
        cond = self.encode(obs)
        x = self.policy.draw(cond, noise.to(cond.device))
        return self.policy.normalizer.unnormalize(ACTION, x).to(noise.device), {"cond": cond, "x": x}

    @torch.no_grad()
    def returns(self, rollout: Rollout) -> ChunkSamples:
        """Compute advantages and old log-probs."""
        advantages = self.estimate(rollout)
        cond, x = (rollout.record[name][advantages.keep] for name in ("cond", "x"))
        parts = zip(*(v.split(self.learner.config.minibatch) for v in (cond, x, advantages.weight)), strict=True)
        return ChunkSamples(cond, x, torch.cat([self.policy.log_prob(*part) for part in parts]), advantages)

    def update(self, batch: ChunkSamples, *, progress: float) -> Metrics:
        """Run all epochs over one rollout; see Learner.update."""
        samples = torch.arange(len(batch.cond), device=batch.cond.device)
        return self.learner.update(samples, partial(self.loss, batch), batch.cond, batch.advantages, progress=progress)

    def loss(self, batch: ChunkSamples, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the clipped objective of chunks `rows` [B], and its STATS."""
        log_prob = self.policy.log_prob(batch.cond[rows], batch.x[rows], batch.advantages.weight[rows])
        return clipped_loss(log_prob - batch.log_prob[rows], batch.advantages.advantage[rows], self.clip)

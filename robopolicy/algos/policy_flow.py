"""PolicyFlow (Yang et al. 2026): PPO for flow policies without the likelihood of a path.

The action is the flow's end plus Gaussian noise of a learned deviation: a = φ(z) + n. Moving the velocity field by
δ = v − v̂ moves that Gaussian, so the importance ratio is taken as N(n; δ, σ²) / N(n; 0, σ̂²), with δ at one point
x_t = (1−t)·z + t·φ̂(z) of the straight line (eq. 10). Sampling solves the flow's equation once; learning never does.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from robopolicy.algos.advantage_estimator import Advantages
from robopolicy.algos.ppo_core import Learner, PolicyGradient, PPOConfig
from robopolicy.algos.returns import clipped_loss
from robopolicy.buffers.collector import Record, Rollout
from robopolicy.config.schema import NonNegative, Positive
from robopolicy.core.errors import ConfigError
from robopolicy.core.types import Metrics, Obs
from robopolicy.policies.denoising_chain import gaussian_log_prob
from robopolicy.policies.flow import FlowPolicy
from robopolicy.policies.normalizer import ACTION


class Lines(NamedTuple):
    """D chunks with S points each on the line from noise to action: sample m is point m mod S of chunk ⌊m/S⌋."""

    cond: Tensor  # [D C]
    noise: Tensor  # [D H Da] z, start of the flow
    end: Tensor  # [D H Da] φ̂(z), end of the flow
    extra: Tensor  # [D Ta Da] n, added exploration noise
    log_prob: Tensor  # [D] of n, mean over executed elements, under the sampling policy
    velocity: Tensor  # [M H Da] v̂, of the sampling network
    advantages: Advantages  # [D]


class PolicyFlow(PolicyGradient):
    """Fine-tunes the whole flow of `policy`; log-probs are averaged over the executed chunk, as in DPPO.

    Args:
        clip: PPO's.
        noise: deviation of n at the beginning, normalised units; learned per action dimension. Evaluation has none.
        brownian: weight of the Brownian regulariser, per element: the mean square of
            η = (1−t)·v − (x_t − t·v̂), which is zero where the flow spreads as a diffusing particle would (eq. 16).
        entropy: weight of the mean log deviation of n.
        **options: see PPOConfig.

    Raises:
        ConfigError: the flow is stochastic, does not predict velocities, or only a part of it is fine-tuned.
    """

    def __init__(
        self,
        policy: FlowPolicy,
        *,
        clip: Positive = 0.05,
        noise: Positive = 0.1,
        brownian: NonNegative = 0.0,
        entropy: NonNegative = 0.0,
        **options: Any,
    ) -> None:
        self.steps = len(policy.times)
        if policy.finetuned_steps != self.steps or len(policy.noise_shape) != 2:
            raise ConfigError(
                f"PolicyFlow fine-tunes all {self.steps} steps of an ordinary flow: "
                f"policy.finetuned_steps={self.steps} "
                f"and no noise_level; found finetuned_steps={policy.finetuned_steps}, "
                f"noise of shape {policy.noise_shape}"
            )
        if policy.target != "velocity":
            raise ConfigError(f"base: expected policy.prediction=velocity, found {policy.target!r}. Use algo=dppo")
        self.policy, self.brownian, self.entropy = policy, brownian, entropy
        device = policy.finetuned_parameters()[0].device
        self.log_std = nn.Parameter(torch.full((policy.spec.action.dim,), math.log(noise), device=device))
        parameters = [*policy.finetuned_parameters(), self.log_std]
        self.learner = Learner.with_critic(parameters, policy.cond_dim, PPOConfig(**options))
        self.clip = torch.tensor(clip, device=device)

    @property
    def noise_shape(self) -> tuple[int, ...]:
        return (2, *self.policy.noise_shape)

    @torch.no_grad()
    def explore(self, obs: Obs, noise: Tensor) -> tuple[Tensor, Record]:
        """See Explorer."""
        cond, std = self.encode(obs), self.log_std.exp()
        start, extra = noise.to(cond.device).unbind(1)
        end, extra = self.policy.sample(cond, noise=start), std * extra
        chunk = self.policy.normalizer.unnormalize(ACTION, end + extra).to(noise.device)
        extra = extra[:, : self.policy.spec.n_action_steps]
        log_prob = gaussian_log_prob(extra, torch.zeros_like(extra), std).mean(-1)
        return chunk, {"cond": cond, "noise": start, "end": end, "extra": extra, "log_prob": log_prob}

    @torch.no_grad()
    def returns(self, rollout: Rollout) -> Lines:
        """Compute advantages, and the velocities of the sampling flow."""
        record = rollout.record
        advantages = self.estimate(rollout)
        cond, noise, end, extra = (record[k][advantages.keep] for k in ("cond", "noise", "end", "extra"))
        log_prob = (record["log_prob"][advantages.keep] * advantages.weight).sum(-1)
        lines = Lines(cond, noise, end, extra, log_prob, noise, advantages)
        every = torch.arange(len(cond) * self.steps, device=cond.device)
        velocity = torch.cat([self._velocity(lines, rows)[0] for rows in every.split(self.learner.config.minibatch)])
        return lines._replace(velocity=velocity)

    def _velocity(self, lines: Lines, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the fine-tuned flow's velocity [B H Da] at samples `rows` [B]; also return x and t [B 1 1]."""
        chunk, k = rows // self.steps, rows % self.steps
        t = self.policy.times[k][:, None, None]
        x = torch.lerp(lines.noise[chunk], lines.end[chunk], t)
        return self.policy.prediction(lines.cond[chunk], x, k), x, t

    def update(self, batch: Lines, *, progress: float) -> Metrics:
        """Run all epochs over one rollout; see Learner.update."""
        samples = torch.arange(len(batch.velocity), device=batch.cond.device)
        found = self.learner.update(samples, partial(self.loss, batch), batch.cond, batch.advantages, progress=progress)
        return found | {"noise": float(self.log_std.detach().exp().mean())}

    def loss(self, batch: Lines, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the clipped objective (eq. 13) of samples `rows` [B] with the Brownian regulariser."""
        chunk, count = rows // self.steps, self.policy.spec.n_action_steps
        velocity, x, t = self._velocity(batch, rows)
        shift = (velocity - batch.velocity[rows])[:, :count]
        log_prob = gaussian_log_prob(batch.extra[chunk], shift, self.log_std.exp()).mean(-1)  # [B Ta]
        log_ratio = (log_prob * batch.advantages.weight[chunk]).sum(-1) - batch.log_prob[chunk]
        loss, stats = clipped_loss(log_ratio, batch.advantages.advantage[chunk], self.clip)
        if self.brownian:
            residual = (1.0 - t) * velocity - (x - t * batch.velocity[rows])
            loss = loss + self.brownian * residual.square().mean()
        if self.entropy:
            loss = loss - self.entropy * self.log_std.mean()
        return loss, stats

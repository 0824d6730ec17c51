"""PPO through the denoising chain (DPPO, Ren et al. 2024): each denoising step is a decision of its own.

Differences from the published code, each held by a test: latents are never clamped, so samples and scores agree; time
limits bootstrap from the true successor; a single fine-tuned step has a clip; log-probs are not clamped. For speed, old
log-probs are computed while sampling, and the frozen network and the encoder run once per chunk. The critic learns each
chunk once an epoch, not once per denoising step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from robopolicy.algos.advantage_estimator import Advantages
from robopolicy.algos.ppo_core import ActorConfig, Learner, PolicyGradient, PPOConfig
from robopolicy.algos.returns import clip_schedule, clipped_loss, denoising_discount
from robopolicy.buffers.collector import Record, Rollout
from robopolicy.config.schema import Fraction, Natural, NonNegative, Positive
from robopolicy.core.errors import ConfigError
from robopolicy.core.types import Metrics, Obs
from robopolicy.policies.base import DenoisingPolicy
from robopolicy.policies.denoising_chain import ChainNoise, FloorNoise, gaussian_log_prob
from robopolicy.policies.normalizer import ACTION


@dataclass(frozen=True)
class DenoisingConfig(ActorConfig):
    """Options of every PPO through a denoising chain; see DPPO.

    Args:
        noise: makes the chain's exploring deviation; see ChainNoise.
        denoising_gamma: discount per denoising step.
        clip, clip_first: PPO's clip at the last and at the noisiest fine-tuned step. clip_rate: see clip_schedule.
        anchor: weight of KL(policy ‖ frozen policy) per element, at the latents that were drawn, over all Ta steps,
            executed or not (BC anchor). None: 0, where the training does not choose one (0.01 in imagination).
        entropy: weight of the mean log deviation, for learned noise.
        progressive: share of the training over which fine-tuning spreads from the last step backwards to all K'
            (B²-DiffuRL, Hu et al. 2025, without its branches); 0: all from the beginning. All K' explore meanwhile,
            and are run by the one network that is being changed.
    """

    noise: Callable[..., ChainNoise] = FloorNoise
    denoising_gamma: Fraction = 0.99
    clip: Positive = 0.05
    clip_first: Positive = 0.02
    clip_rate: Positive = 3.0
    anchor: NonNegative | None = None
    entropy: NonNegative = 0.0
    progressive: Fraction = 0.0


@dataclass(frozen=True)
class DPPOConfig(DenoisingConfig, PPOConfig):
    """Options of DPPO: those of a denoising chain and those of a critic."""

    critic_warmup: Natural = 3


class DenoisingSamples(NamedTuple):
    """D chunks of a rollout and their M = D·K' denoising steps; sample m is step m mod K' of chunk ⌊m/K'⌋."""

    cond: Tensor  # [D C]
    x: Tensor  # [D·(K'+1) H Da] latents
    log_prob: Tensor  # [M] mean over executed elements, under the sampling policy
    advantages: Advantages  # [D]
    anchor: Tensor | None = None  # [M Ta Da] means of the frozen policy


class ChainObjective:
    """PPO's clipped objective over the last K' denoising steps of `policy`, with an optional KL to the frozen network.

    Log-probs are averaged over the executed chunk, so ratios are geometric means and clips are small numbers.

    Raises:
        ConfigError: nothing to fine-tune, a deterministic chain, noise that does not fit it, or entropy of noise that
            is not learned.
    """

    policy: DenoisingPolicy
    clip: Tensor  # on the policy's device

    def __init__(self, policy: DenoisingPolicy, config: DenoisingConfig) -> None:
        if not policy.finetuned_steps:
            raise ConfigError(
                "policy.finetuned_steps (K'): DPPO fine-tunes so many steps at the end of a chain, this policy has 0. "
                "Make it from its base by policy=finetuned."
            )
        self.policy, self.config, self.steps = policy, config, policy.finetuned_steps
        self.anchor = config.anchor or 0.0
        device = policy.finetuned_parameters()[0].device
        noise = config.noise(cond_dim=policy.cond_dim, action_dim=policy.spec.action.dim, steps=self.steps)
        self.noise = noise.to(device)
        policy.check_noise(self.noise)
        if config.entropy and not list(self.noise.parameters()):
            raise ConfigError(
                f"algo.entropy={config.entropy}: nothing of {type(self.noise).__name__} is learned, so its entropy is "
                "a constant. Set it to 0, or algo.noise._target_=learned"
            )
        self.parameters = [*policy.finetuned_parameters(), *self.noise.parameters()]
        clip = clip_schedule(self.steps, first=config.clip_first, last=config.clip, rate=config.clip_rate)
        self.clip = clip.to(device)
        self.discount = denoising_discount(self.steps, config.denoising_gamma).to(device)

    @torch.no_grad()
    def anchor_means(self, samples: DenoisingSamples) -> Tensor:
        """Compute the frozen network's means [M Ta Da] at the latents of all samples."""
        every = torch.arange(len(samples.log_prob), device=samples.cond.device)
        count, means = self.policy.spec.n_action_steps, []
        for rows in every.split(self.config.minibatch):
            chunk, k = rows // self.steps, rows % self.steps
            mean, _ = self.policy.transition(samples.cond[chunk], samples.x[rows + chunk], k, frozen=True)
            means.append(mean[:, :count])
        return torch.cat(means)

    def loss(self, batch: DenoisingSamples, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the clipped objective of samples `rows` [B], and its STATS."""
        chunk, k, count = rows // self.steps, rows % self.steps, self.policy.spec.n_action_steps
        cond, at = batch.cond[chunk], rows + chunk  # chunk d's K'+1 latents begin at d·(K'+1) = d·K' + d
        mean, own = self.policy.transition(cond, batch.x[at], k)
        mean, std = mean[:, :count], self.noise.likelihood(own, k, cond)
        log_prob = gaussian_log_prob(batch.x[at + 1][:, :count], mean, std).mean(-1)  # [B Ta]
        log_ratio = (log_prob * batch.advantages.weight[chunk]).sum(-1) - batch.log_prob[rows]
        loss, stats = clipped_loss(log_ratio, batch.advantages.advantage[chunk] * self.discount[k], self.clip[k])
        if batch.anchor is not None:
            loss = loss + self.anchor * (0.5 * ((mean - batch.anchor[rows]) / std.detach()).square()).mean()
        if self.config.entropy:
            loss = loss - self.config.entropy * std.log().mean()
        return loss, stats


class ChainPPO(ChainObjective, PolicyGradient):
    """Samples, scores and updates the last K' denoising steps of `policy`; subclasses make the learner."""

    @property
    def noise_shape(self) -> tuple[int, ...]:
        return self.policy.chain_noise_shape

    @torch.no_grad()
    def explore(self, obs: Obs, noise: Tensor) -> tuple[Tensor, Record]:
        """See Explorer: sample one chain per observation; the record keeps the encoded observation."""
        cond = self.encode(obs)
        chain = self.policy.sample_chain(cond, noise=noise.to(cond.device), spread=self.noise)
        chunk = self.policy.normalizer.unnormalize(ACTION, chain.x[:, -1]).to(noise.device)
        return chunk, {"cond": cond, "x": chain.x, "log_prob": chain.log_prob.mean(-1)}

    @torch.no_grad()
    def returns(self, rollout: Rollout) -> DenoisingSamples:
        """Compute advantages and everything else that is constant over the epochs."""
        record = rollout.record
        advantages = self.estimate(rollout)
        cond, x, log_prob = (record[name][advantages.keep] for name in ("cond", "x", "log_prob"))
        log_prob = (log_prob * advantages.weight[:, None]).sum(-1)  # [D K']
        samples = DenoisingSamples(cond, x.flatten(0, 1), log_prob.flatten(), advantages)
        return samples._replace(anchor=self.anchor_means(samples)) if self.config.anchor else samples

    def update(self, batch: DenoisingSamples, *, progress: float) -> Metrics:
        """Run all epochs over one rollout; see Learner.update."""
        every = torch.arange(len(batch.log_prob), device=batch.cond.device)
        samples, loss = every[every % self.steps >= self.first_step(progress)], partial(self.loss, batch)
        return self.learner.update(samples, loss, batch.cond, batch.advantages, progress=progress, whole=len(every))

    def first_step(self, progress: float) -> int:
        """Return the noisiest step that is fine-tuned after a share `progress` of the training."""
        if progress >= self.config.progressive:
            return 0
        return self.steps - 1 - int(self.steps * progress / self.config.progressive)


class DPPO(ChainPPO):
    """Fine-tunes the last K' denoising steps of `policy` and learns V(observation).

    Args:
        **options: see DPPOConfig.

    Raises:
        ConfigError: nothing to fine-tune, a deterministic chain, noise that does not fit it, or entropy of noise that
            is not learned.
    """

    options: ClassVar[type] = DPPOConfig

    def __init__(self, policy: DenoisingPolicy, **options: Any) -> None:
        super().__init__(policy, config := DPPOConfig(**options))
        self.learner = Learner.with_critic(self.parameters, policy.cond_dim, config)

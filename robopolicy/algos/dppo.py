"""PPO through the denoising chain (DPPO, Ren et al. 2024): each denoising step is a decision of its own.

Differences from the published code, each for a reason that a test holds: latents are never clamped, so what was drawn
is what is scored; time limits bootstrap from the true successor; one fine-tuned step has a clip; log-probs are not
clamped. And for speed: old log-probs come with the draw, the frozen half and the encoder run once per chunk, the
critic learns each chunk once an epoch, not once per denoising step of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor, nn

from robopolicy.algos.advantage_estimator import Advantages
from robopolicy.algos.ppo_core import ActorOptions, Learner, PPOOptions
from robopolicy.algos.returns import clip_schedule, clipped_loss, denoising_discount
from robopolicy.buffers.collector import Record, Rollout
from robopolicy.config.schema import Fraction, NonNegative, Positive
from robopolicy.core.errors import ConfigError
from robopolicy.core.types import Metrics, Obs
from robopolicy.policies.base import DenoisingPolicy
from robopolicy.policies.denoising_chain import ChainNoise, FloorNoise, gaussian_log_prob
from robopolicy.policies.normalizer import ACTION


class DenoisingSamples(NamedTuple):
    """A rollout as PPO reads it: D chunks, M = D·K' denoising steps; sample m is step m mod K' of chunk ⌊m/K'⌋."""

    cond: Tensor  # [D C]
    x: Tensor  # [D·(K'+1) H Da] latents
    log_prob: Tensor  # [M] mean over executed elements, when it was drawn
    scores: Advantages  # [D]
    anchor: Tensor | None = None  # [M Ta Da] means of the frozen policy


class ChainOptions(ActorOptions, total=False):
    """Keywords of every PPO through a chain; see DPPO."""

    noise: Callable[..., ChainNoise]
    denoising_gamma: Fraction
    clip: Positive
    clip_first: Positive
    clip_rate: Positive
    anchor: NonNegative
    entropy: NonNegative
    progressive: Fraction


class DPPO:
    """Fine-tunes the last K' denoising steps of `policy` and learns V(observation) beside.

    Log-probs are averaged over the executed chunk, so ratios are geometric means and clips are small numbers.

    Args:
        noise: makes the chain's exploring deviation; see ChainNoise.
        denoising_gamma: discount per denoising step.
        clip, clip_first: PPO's clip at the last and at the noisiest fine-tuned step. clip_rate: see clip_schedule.
        anchor: weight of KL(policy ‖ frozen policy) per element, at the latents that were drawn, over all Ta steps,
            executed or not (BC anchor).
        entropy: weight of the mean log deviation, for learned noise.
        progressive: share of the training over which fine-tuning spreads from the last step backwards to all K'
            (B²-DiffuRL, Hu et al. 2025, without its branches); 0: all from the beginning. All K' explore meanwhile,
            and are run by the one network that is being changed.
        **options: see Options.

    Raises:
        ConfigError: nothing to fine-tune, a deterministic chain, noise that does not fit it, or entropy of noise that
            is not learned.
    """

    def __init__(
        self,
        policy: DenoisingPolicy,
        *,
        noise: Callable[..., ChainNoise] = FloorNoise,
        denoising_gamma: Fraction = 0.99,
        clip: Positive = 0.01,
        clip_first: Positive = 0.01,
        clip_rate: Positive = 3.0,
        anchor: NonNegative = 0.0,
        entropy: NonNegative = 0.0,
        progressive: Fraction = 0.0,
        **options: Unpack[PPOOptions],
    ) -> None:
        if not policy.tuned_steps:
            raise ConfigError(
                "policy.tuned_steps (K'): DPPO fine-tunes so many steps at the end of a chain, this policy has 0. "
                "Make it from its base by policy=tuned."
            )
        self.policy, self.steps = policy, policy.tuned_steps
        device = policy.tuned_parameters()[0].device
        self.noise = noise(cond_dim=policy.cond_dim, action_dim=policy.spec.action.dim, steps=self.steps).to(device)
        policy.check_noise(self.noise)
        if entropy and not list(self.noise.parameters()):
            raise ConfigError(
                f"algo.entropy={entropy}: nothing of {type(self.noise).__name__} is learned, so its entropy is a "
                "constant. Set it to 0, or algo.noise._target_=learned"
            )
        self.learner = self._learner([*policy.tuned_parameters(), *self.noise.parameters()], **options)
        self.clip = clip_schedule(self.steps, first=clip_first, last=clip, rate=clip_rate).to(device)
        self.discount = denoising_discount(self.steps, denoising_gamma).to(device)
        self.anchor, self.entropy, self.progressive = anchor, entropy, progressive

    def _learner(self, parameters: list[nn.Parameter], **options: Unpack[PPOOptions]) -> Learner:
        return Learner(parameters, self.policy.cond_dim, **options)

    @property
    def critic_warmup(self) -> int:
        return self.learner.critic_warmup

    @property
    def noise_shape(self) -> tuple[int, ...]:
        return self.policy.chain_noise_shape

    @torch.no_grad()
    def explore(self, obs: Obs, noise: Tensor) -> tuple[Tensor, Record]:
        """See Explorer: one chain per observation, which is encoded once and for all."""
        cond = self.encode(obs)
        chain = self.policy.sample_chain(cond, noise=noise.to(cond.device), spread=self.noise)
        chunk = self.policy.normalizer.unnormalize(ACTION, chain.x[:, -1]).to(noise.device)
        return chunk, {"cond": cond, "x": chain.x, "log_prob": chain.log_prob.mean(-1)}

    def encode(self, obs: Obs) -> Tensor:
        """cond [B C] on the policy's device, from obs [B To ...] on any."""
        return self.policy.encode({k: v.to(self.clip.device) for k, v in obs.items()})

    @torch.no_grad()
    def returns(self, rollout: Rollout) -> DenoisingSamples:
        """Advantages, and everything else that stays the same through all epochs."""
        record = rollout.record
        scores = self.learner.value.scores(rollout, record["cond"], self.encode, self.policy.spec.n_action_steps)
        cond, x, log_prob = (record[name][scores.keep] for name in ("cond", "x", "log_prob"))
        log_prob = (log_prob * scores.weight[:, None]).sum(-1)  # [D K']
        samples = DenoisingSamples(cond, x.flatten(0, 1), log_prob.flatten(), scores)
        return samples._replace(anchor=self._frozen_means(samples)) if self.anchor else samples

    def _frozen_means(self, samples: DenoisingSamples) -> Tensor:
        every = torch.arange(len(samples.log_prob), device=samples.cond.device)
        count, means = self.policy.spec.n_action_steps, []
        for rows in every.split(self.learner.minibatch):
            chunk, k = rows // self.steps, rows % self.steps
            mean, _ = self.policy.transition(samples.cond[chunk], samples.x[rows + chunk], k, frozen=True)
            means.append(mean[:, :count])
        return torch.cat(means)

    def update(self, batch: DenoisingSamples, *, progress: float) -> Metrics:
        """All epochs over one rollout; see Learner.update."""
        every = torch.arange(len(batch.log_prob), device=batch.cond.device)
        samples, loss = every[every % self.steps >= self.first_step(progress)], partial(self.loss, batch)
        return self.learner.update(samples, loss, batch.cond, batch.scores, progress=progress, whole=len(every))

    def first_step(self, progress: float) -> int:
        """The noisiest step that is fine-tuned after a share `progress` of the training."""
        if progress >= self.progressive:
            return 0
        return self.steps - 1 - int(self.steps * progress / self.progressive)

    def loss(self, batch: DenoisingSamples, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The clipped objective of samples `rows` [B], and its STATS."""
        chunk, k, count = rows // self.steps, rows % self.steps, self.policy.spec.n_action_steps
        cond, at = batch.cond[chunk], rows + chunk  # chunk d's K'+1 latents begin at d·(K'+1) = d·K' + d
        mean, own = self.policy.transition(cond, batch.x[at], k)
        mean, std = mean[:, :count], self.noise.likelihood(own, k, cond)
        log_prob = gaussian_log_prob(batch.x[at + 1][:, :count], mean, std).mean(-1)  # [B Ta]
        log_ratio = (log_prob * batch.scores.weight[chunk]).sum(-1) - batch.log_prob[rows]
        loss, stats = clipped_loss(log_ratio, batch.scores.advantage[chunk] * self.discount[k], self.clip[k])
        if batch.anchor is not None:
            loss = loss + self.anchor * (0.5 * ((mean - batch.anchor[rows]) / std.detach()).square()).mean()
        if self.entropy:
            loss = loss - self.entropy * std.log().mean()
        return loss, stats

    def state_dict(self) -> dict[str, Any]:
        return self.learner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state)

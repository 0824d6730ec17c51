"""PPO through the denoising chain (DPPO, Ren et al. 2024): each denoising step is a decision of its own.

Differences from the published code, each for a reason that a test holds: latents are never clamped, so what was drawn
is what is scored; time limits bootstrap from the true successor; one fine-tuned step has a clip; log-probs are not
clamped. And for speed: old log-probs come with the draw, the frozen half and the encoder run once per chunk, the
critic learns each chunk once an epoch, not once per denoising step of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from robopolicy.algos.returns import (
    STATS,
    clip_schedule,
    clipped_loss,
    denoising_discount,
    minibatches,
    schedule,
)
from robopolicy.algos.value import Scores, Value
from robopolicy.data.rollout import Record, Rollout
from robopolicy.errors import ConfigError, RobopolicyError
from robopolicy.networks.mlp import MLP
from robopolicy.normalize import ACTION
from robopolicy.optim import load_optimizer_state, optimizer_state
from robopolicy.policies.base import DenoisingPolicy
from robopolicy.policies.chain import ChainNoise, FloorNoise, gaussian_log_prob
from robopolicy.schema import Count, Fraction, Natural, Positive
from robopolicy.types import Metrics, Obs


class Samples(NamedTuple):
    """A rollout as PPO reads it: D chunks, M = D·K' denoising steps; sample m is step m mod K' of chunk ⌊m/K'⌋."""

    cond: Tensor  # [D C]
    x: Tensor  # [D·(K'+1) H Da] latents
    log_prob: Tensor  # [M] mean over executed elements, when it was drawn
    scores: Scores  # [D]
    anchor: Tensor | None = None  # [M Ta Da] means of the frozen policy


class DPPO:
    """Fine-tunes the last K' denoising steps of `policy` and learns V(observation) beside.

    Log-probs are averaged over the executed chunk, so ratios are geometric means and clips are small numbers.

    Args:
        critic: makes V's network; called as critic(size of the encoded observation, 1).
        noise: makes the chain's exploring deviation; see ChainNoise.
        gamma: discount per primitive step. gae_lambda: per chunk. denoising_gamma: per denoising step.
        clip, clip_first: PPO's clip at the last and at the noisiest fine-tuned step. clip_rate: see clip_schedule.
        epochs, minibatch: passes over the samples, and samples (denoising steps) per gradient step.
        microbatch: a minibatch's gradient is summed up in pieces of at most this size; None: in one.
        target_kl: the policy stops learning from this rollout at the first minibatch beyond.
        critic_warmup: rollouts at the beginning from which the critic alone learns.
        anchor: weight of KL(policy ‖ frozen policy) per element, at the latents that were drawn (BC anchor).
        entropy: weight of the mean log deviation, for learned noise.
        progressive: share of the training over which fine-tuning spreads from the last step backwards to all K'
            (B²-DiffuRL, Hu et al. 2025, without its branches); 0: all from the beginning.
        lr_schedule, lr_final: of both learning rates over the training, and the factor at its end.

    Raises:
        ConfigError: nothing to fine-tune, or a deterministic chain.
    """

    def __init__(
        self,
        policy: DenoisingPolicy,
        *,
        critic: Callable[[int, int], nn.Module] = MLP,
        noise: Callable[..., ChainNoise] = FloorNoise,
        gamma: Fraction = 0.99,
        gae_lambda: Fraction = 0.95,
        denoising_gamma: Fraction = 0.99,
        clip: Positive = 0.01,
        clip_first: Positive = 0.01,
        clip_rate: Positive = 3.0,
        epochs: Count = 5,
        minibatch: Count = 2560,
        microbatch: Count | None = None,
        actor_lr: Positive = 1e-4,
        critic_lr: Positive = 1e-3,
        lr_schedule: Literal["constant", "linear", "cosine"] = "constant",
        lr_final: Fraction = 0.1,
        weight_decay: float = 0.0,
        grad_norm: Positive = 1.0,
        target_kl: Positive = 1.0,
        critic_warmup: Natural = 0,
        anchor: float = 0.0,
        entropy: float = 0.0,
        progressive: Fraction = 0.0,
        reward_clip: Positive = 10.0,
        seed: int = 0,
    ) -> None:
        if not policy.tuned_steps:
            raise ConfigError("DPPO fine-tunes the last tuned_steps (K') of a chain; this policy has 0. policy=tuned")
        self.policy, self.steps = policy, policy.tuned_steps
        device = policy.tuned_parameters()[0].device
        self.noise = noise(cond_dim=policy.cond_dim, action_dim=policy.spec.action.dim, steps=self.steps).to(device)
        policy.check_noise(self.noise)
        self.parameters = [*policy.tuned_parameters(), *self.noise.parameters()]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=actor_lr, weight_decay=weight_decay, fused=True)
        self.value = Value(
            critic(policy.cond_dim, 1).to(device), gamma=gamma, gae_lambda=gae_lambda, lr=critic_lr,
            grad_norm=grad_norm, reward_clip=reward_clip,
        )  # fmt: skip
        self.clip = clip_schedule(self.steps, first=clip_first, last=clip, rate=clip_rate).to(device)
        self.discount = denoising_discount(self.steps, denoising_gamma).to(device)
        self.epochs, self.minibatch, self.microbatch = epochs, minibatch, microbatch or minibatch
        self.lr, self.schedule = actor_lr, partial(schedule, lr_schedule, final=lr_final)
        self.grad_norm, self.target_kl, self.critic_warmup = grad_norm, target_kl, critic_warmup
        self.anchor, self.entropy, self.progressive = anchor, entropy, progressive
        self.generator = torch.Generator().manual_seed(seed)
        self.updates = 0  # rollouts learned from

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
    def returns(self, rollout: Rollout) -> Samples:
        """Advantages, and everything else that stays the same through all epochs."""
        record = rollout.record
        scores = self.value.scores(rollout, record["cond"], self.encode, self.policy.spec.n_action_steps)
        cond, x, log_prob = (record[name][scores.keep] for name in ("cond", "x", "log_prob"))
        log_prob = (log_prob * scores.weight[:, None]).sum(-1)  # [D K']
        samples = Samples(cond, x.flatten(0, 1), log_prob.flatten(), scores)
        return samples._replace(anchor=self._frozen_means(samples)) if self.anchor else samples

    def _frozen_means(self, samples: Samples) -> Tensor:
        every = torch.arange(len(samples.log_prob), device=samples.cond.device)
        count, means = self.policy.spec.n_action_steps, []
        for rows in every.split(self.minibatch):
            chunk, k = rows // self.steps, rows % self.steps
            mean, _ = self.policy.transition(samples.cond[chunk], samples.x[rows + chunk], k, frozen=True)
            means.append(mean[:, :count])
        return torch.cat(means)

    def update(self, batch: Samples, *, progress: float) -> Metrics:
        """All epochs over one rollout; `progress`: share of the training that is done.

        Raises:
            RobopolicyError: a ratio, loss or gradient is not finite; the policy is as before that minibatch.
        """
        learns = self.updates >= self.critic_warmup
        self.updates += 1
        factor = self.schedule(progress)
        self.value.set_lr(factor)
        self.optimizer.param_groups[0]["lr"] = self.lr * factor
        samples = torch.arange(len(batch.log_prob), device=batch.cond.device)
        samples = samples[samples % self.steps >= self.first_step(progress)]
        sums, count, critic_losses = torch.zeros(len(STATS) + 1, dtype=torch.float64), 0, []
        for rows, chunks in minibatches(
            samples, len(batch.cond), size=self.minibatch, epochs=self.epochs, generator=self.generator
        ):
            critic_losses.append(self.value.learn(batch.cond[chunks], batch.scores.target[chunks]))
            if learns:
                stats = self._step(batch, rows)
                sums, count = sums + stats, count + 1
                learns = float(stats[0]) <= self.target_kl
        means = dict(zip((*STATS, "grad_norm"), (sums / max(1, count)).tolist(), strict=True))
        return means | {
            "actor_steps": count, "lr": self.lr * factor, "critic_loss": sum(critic_losses) / len(critic_losses),
            "explained_variance": batch.scores.explained, "reward_scale": self.value.reward_scale.deviation,
            "chunks": len(batch.cond),
        }  # fmt: skip

    def first_step(self, progress: float) -> int:
        """The noisiest step that is fine-tuned after a share `progress` of the training."""
        if progress >= self.progressive:
            return 0
        return self.steps - 1 - int(self.steps * progress / self.progressive)

    def _step(self, batch: Samples, rows: Tensor) -> Tensor:
        """One gradient step on samples `rows`; STATS and the gradient's norm."""
        self.optimizer.zero_grad(set_to_none=True)
        stats = torch.zeros(len(STATS), device=rows.device)
        for part in rows.split(self.microbatch):
            loss, found = self._loss(batch, part)
            (loss * (len(part) / len(rows))).backward()
            stats = stats + found * (len(part) / len(rows))
        norm = nn.utils.clip_grad_norm_(self.parameters, self.grad_norm)
        found = torch.cat([stats, norm[None]]).double().cpu()
        if not bool(found.isfinite().all()):
            named = ", ".join(f"{k} {v:.3g}" for k, v in zip((*STATS, "grad_norm"), found.tolist(), strict=True))
            raise RobopolicyError(
                f"DPPO: not everything is finite in update {self.updates}: {named}. Lower actor_lr, raise the noise "
                "floor, or look for NaN in the base and its normaliser."
            )
        self.optimizer.step()
        return found

    def _loss(self, batch: Samples, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The clipped objective (DPPO, eq. 7) of samples `rows` [B], and its STATS."""
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
        return {
            "tuned": [p.detach().clone() for p in self.policy.tuned_parameters()],
            "noise": self.noise.state_dict(),
            "value": self.value.state_dict(),
            "optimizer": optimizer_state(self.optimizer),
            "generator": self.generator.get_state(),
            "updates": self.updates,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for parameter, saved in zip(self.policy.tuned_parameters(), state["tuned"], strict=True):
            parameter.copy_(saved)
        self.noise.load_state_dict(state["noise"])
        self.value.load_state_dict(state["value"])
        load_optimizer_state(self.optimizer, state["optimizer"])
        self.generator.set_state(state["generator"])
        self.updates = int(state["updates"])

"""What every PPO here shares: optimisers, epochs over flat samples, early stop, schedules, and the critic beside."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor, nn

from robopolicy.algos.advantage_estimator import AdvantageEstimator, Advantages, Value
from robopolicy.algos.returns import STATS, minibatches, schedule
from robopolicy.config.schema import Count, Fraction, Natural, NonNegative, Positive
from robopolicy.core.errors import RobopolicyError
from robopolicy.core.types import Metrics
from robopolicy.networks.mlp import MLP
from robopolicy.utils.optim import load_optimizer_state, optimizer_state

Loss = Callable[[Tensor], tuple[Tensor, Tensor]]  # of sample rows [B]: the loss, and its STATS


class ActorOptions(TypedDict, total=False):
    """Keywords of every PPO, with a critic or without.

    epochs, minibatch: passes over the samples, and samples per gradient step, but for rounding to equal parts.
    minibatches: so many an epoch instead, whose size grows with the number of envs; null: as `minibatch` says.
    microbatch: a minibatch's gradient is summed up in pieces of at most this size; None: in one.
    actor_lr: learning rate; lr_schedule, lr_final: of it over the training, and the factor at its end.
    weight_decay: AdamW's, of the policy. grad_norm: gradients are scaled down to this norm.
    target_kl: KL(old ‖ new) per element of a chunk, in nats; the policy stops learning from a rollout before the first
        minibatch beyond. A Gaussian whose mean moved by d of its deviations is d²/2 away.
    seed: of the order of samples.
    """

    epochs: Count
    minibatch: Count
    minibatches: Count | None
    microbatch: Count | None
    actor_lr: Positive
    lr_schedule: Literal["constant", "linear", "cosine"]
    lr_final: Fraction
    weight_decay: NonNegative
    grad_norm: Positive
    target_kl: Positive
    seed: int


class PPOOptions(ActorOptions, total=False):
    """Keywords of every PPO with a critic.

    critic: makes V's network; called as critic(size of the encoded observation, 1).
    gamma: discount per primitive step. gae_lambda: per chunk.
    critic_lr: its learning rate, which follows the schedule too.
    critic_warmup: rollouts at the beginning from which the critic alone learns.
    reward_clip: rewards, over the running deviation of their returns, lie within ± this.
    """

    critic: Callable[[int, int], nn.Module]
    gamma: Fraction
    gae_lambda: Fraction
    critic_lr: Positive
    critic_warmup: Natural
    reward_clip: Positive


class Learner:
    """Minimises a clipped objective over `parameters`, and the error of V(cond) of size `cond_dim`; see Options.

    Args:
        judge: scores chunks in place of a critic; None: a Value of `critic`'s network.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        cond_dim: int,
        *,
        judge: AdvantageEstimator | None = None,
        critic: Callable[[int, int], nn.Module] = MLP,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        epochs: int = 5,
        minibatch: int = 2560,
        minibatches: int | None = None,
        microbatch: int | None = None,
        actor_lr: float = 1e-4,
        critic_lr: float = 1e-3,
        lr_schedule: str = "constant",
        lr_final: float = 0.1,
        weight_decay: float = 0.0,
        grad_norm: float = 1.0,
        target_kl: float = 1.0,
        critic_warmup: int = 0,
        reward_clip: float = 10.0,
        seed: int = 0,
    ) -> None:
        self.parameters = list(parameters)
        self.optimizer = torch.optim.AdamW(self.parameters, lr=actor_lr, weight_decay=weight_decay, fused=True)
        self.value = judge or Value(
            critic(cond_dim, 1).to(self.parameters[0].device), gamma=gamma, gae_lambda=gae_lambda, lr=critic_lr,
            grad_norm=grad_norm, reward_clip=reward_clip,
        )  # fmt: skip
        self.epochs, self.minibatch, self.minibatches, self.microbatch = epochs, minibatch, minibatches, microbatch
        self.lr, self.schedule = actor_lr, partial(schedule, lr_schedule, final=lr_final)
        self.grad_norm, self.target_kl, self.critic_warmup = grad_norm, target_kl, critic_warmup
        self.generator = torch.Generator().manual_seed(seed)
        self.updates = 0  # rollouts learned from

    def update(
        self,
        samples: Tensor,
        loss: Loss,
        cond: Tensor,
        scores: Advantages,
        *,
        progress: float,
        whole: int | None = None,
    ) -> Metrics:
        """All epochs over one rollout: the policy from `samples` [M], the critic from its chunks' `cond` [D C].

        Args:
            whole: samples of the rollout, of which `samples` are those to learn from now; None: these are all.

        Raises:
            RobopolicyError: a ratio, loss or gradient is not finite; the one of policy and critic that it is of has not
                moved by it.
        """
        learns = self.updates >= self.critic_warmup
        self.updates += 1
        factor = self.schedule(progress)
        self.value.set_lr(factor)
        self.optimizer.param_groups[0]["lr"] = self.lr * factor
        sums, seen, taken, critic_losses = torch.zeros(len(STATS) + 1, dtype=torch.float64), 0, 0, []
        whole = whole or len(samples)
        count = self.minibatches or round(whole / self.minibatch)
        for rows, chunks in minibatches(
            samples, len(cond), whole=whole, count=count, epochs=self.epochs, generator=self.generator
        ):
            critic_losses.append(self.value.learn(cond[chunks], scores.target[chunks]))
            if learns and len(rows):
                stats = self.step(rows, loss)
                learns = float(stats[0]) <= self.target_kl
                sums, seen, taken = sums + stats, seen + 1, taken + learns
        means = dict(zip((*STATS, "grad_norm"), (sums / max(1, seen)).tolist(), strict=True))
        return means | {
            "actor_steps": taken, "lr": self.lr * factor, "chunks": len(cond),
            **self.value.numbers(scores, critic_losses),
        }  # fmt: skip

    def step(self, rows: Tensor, loss: Loss) -> Tensor:
        """One gradient step on samples `rows`, unless the policy has gone too far, or they say nothing; STATS and the
        gradient's norm."""
        self.optimizer.zero_grad(set_to_none=True)
        stats = torch.zeros(len(STATS), device=rows.device)
        for part in rows.split(self.microbatch or len(rows)):
            value, found = loss(part)
            (value * (len(part) / len(rows))).backward()
            stats = stats + found * (len(part) / len(rows))
        norm = nn.utils.clip_grad_norm_(self.parameters, self.grad_norm)
        found = torch.cat([stats, norm[None]]).double().cpu()
        if not bool(found.isfinite().all()):
            named = ", ".join(f"{k} {v:.3g}" for k, v in zip((*STATS, "grad_norm"), found.tolist(), strict=True))
            raise RobopolicyError(
                f"PPO: not everything is finite in update {self.updates}: {named}. Lower actor_lr, raise the noise "
                "floor, or look for NaN in the base and its normaliser."
            )
        if found[0] <= self.target_kl and found[-1] > 0.0:  # a step without a gradient would be the momentum's alone
            self.optimizer.step()
        return found

    def state_dict(self) -> dict[str, Any]:
        return {
            "parameters": [p.detach().clone() for p in self.parameters],
            "value": self.value.state_dict(),
            "optimizer": optimizer_state(self.optimizer),
            "generator": self.generator.get_state(),
            "updates": self.updates,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for parameter, saved in zip(self.parameters, state["parameters"], strict=True):
            parameter.copy_(saved)
        self.value.load_state_dict(state["value"])
        load_optimizer_state(self.optimizer, state["optimizer"])
        self.generator.set_state(state["generator"])
        self.updates = int(state["updates"])

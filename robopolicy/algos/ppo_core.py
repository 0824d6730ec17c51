"""Share the core of every PPO: its options, optimisers, epochs over flat samples, early stop and schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from robopolicy.algos.advantage_estimator import AdvantageEstimator, Advantages, Places, Value
from robopolicy.algos.rank_minibatches import rank_minibatches
from robopolicy.algos.returns import STATS, schedule
from robopolicy.buffers.collector import Rollout
from robopolicy.config.schema import Count, Fraction, Natural, NonNegative, Positive
from robopolicy.core.errors import RobopolicyError
from robopolicy.core.types import Metrics, Obs
from robopolicy.networks.mlp import VALUE_MLP_3
from robopolicy.utils import ranks
from robopolicy.utils.optim import load_optimizer_state, optimizer_state

Loss = Callable[[Tensor], tuple[Tensor, Tensor]]  # sample rows [B] → the loss [] and its STATS


@dataclass(frozen=True)
class ActorConfig:
    """Options of every PPO, with a critic or without. Constructors take them as keywords.

    Args:
        epochs, minibatch: passes over the samples, and samples per gradient step, up to rounding to equal parts.
        minibatches: number of minibatches per epoch, whose size then grows with the number of envs; None: `minibatch`.
        microbatch: a minibatch's gradient is summed up in pieces of at most this size; None: in one.
        actor_lr: learning rate of the policy.
        lr_schedule, lr_final: schedule of all learning rates over the training, and the factor at its end.
        weight_decay: AdamW's, of the policy. grad_norm: gradients are scaled down to this norm.
        target_kl: KL(old ‖ new) per element of a chunk, in nats. The policy stops learning from a rollout before the
            first minibatch beyond it. A Gaussian whose mean moved by d of its deviations is d²/2 away.
        seed: of the order of samples.
    """

    epochs: Count = 8
    minibatch: Count = 1_300
    minibatches: Count | None = None
    microbatch: Count | None = None
    actor_lr: Positive = 5e-4
    lr_schedule: Literal["constant", "linear", "cosine"] = "cosine"
    lr_final: Fraction = 0.1
    weight_decay: NonNegative = 0.0
    grad_norm: Positive = 1.0
    target_kl: Positive = 1.0
    seed: int = 0


@dataclass(frozen=True)
class PPOConfig(ActorConfig):
    """Options of every PPO with a critic.

    Args:
        critic: makes V's network; called as critic(size of the encoded observation, 1).
        gamma: discount per primitive step. gae_lambda: per chunk.
        critic_lr: learning rate of the critic.
        critic_warmup: rollouts at the beginning from which the critic alone learns.
        reward_clip: rewards, over the running deviation of their returns, lie within ± this.
    """

    critic: Callable[[int, int], nn.Module] = VALUE_MLP_3
    gamma: Fraction = 0.9975
    gae_lambda: Fraction = 0.95
    critic_lr: Positive = 1e-3
    critic_warmup: Natural = 1
    reward_clip: Positive = 10.0


class Learner:
    """Minimises a clipped objective over `parameters`, and the error of an advantage estimator.

    Args:
        estimator: says how good chunks were; a critic, or a comparison of episodes.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], config: ActorConfig, estimator: AdvantageEstimator) -> None:
        self.parameters, self.config, self.estimator = list(parameters), config, estimator
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=config.actor_lr, weight_decay=config.weight_decay, fused=True
        )
        self.schedule = partial(schedule, config.lr_schedule, final=config.lr_final)
        self.critic_warmup = config.critic_warmup if isinstance(config, PPOConfig) else 0
        self.generator = torch.Generator().manual_seed(config.seed)
        self.updates = 0  # rollouts learned from

    @classmethod
    def with_critic(cls, parameters: Iterable[nn.Parameter], cond_dim: int, config: PPOConfig) -> Learner:
        """Build a learner whose advantages come from a new critic V(cond) of cond [B cond_dim]."""
        parameters = list(parameters)
        network = config.critic(cond_dim, 1).to(parameters[0].device)
        value = Value(
            network, gamma=config.gamma, gae_lambda=config.gae_lambda, lr=config.critic_lr,
            grad_norm=config.grad_norm, reward_clip=config.reward_clip,
        )  # fmt: skip
        return cls(parameters, config, value)

    def update(
        self,
        samples: Tensor,
        loss: Loss,
        cond: Tensor,
        advantages: Advantages,
        *,
        progress: float,
        whole: int | None = None,
    ) -> Metrics:
        """Run all epochs over one rollout: the policy learns from `samples` [M], the critic from `cond` [D C].

        Args:
            samples: [M] int64, rows that `loss` understands.
            whole: number of samples in the rollout, where `samples` are only a part; None: `samples` are all.

        Raises:
            RobopolicyError: a ratio, loss or gradient is not finite; the network concerned is unchanged by it.
        """
        learns = self.updates >= self.critic_warmup
        self.updates += 1
        factor = self.schedule(progress)
        self.estimator.set_lr(factor)
        self.optimizer.param_groups[0]["lr"] = self.config.actor_lr * factor
        sums, seen, taken, critic_losses = torch.zeros(len(STATS) + 1, dtype=torch.float64), 0, 0, []
        for rows, chunks, empty in rank_minibatches(
            samples, len(cond), advantages.places, self.config, whole=whole or len(samples), generator=self.generator
        ):
            critic_losses.append(self.estimator.learn(cond[chunks], advantages.target[chunks]))
            if learns and not empty:
                stats = self.step(rows, loss)
                learns = float(stats[0]) <= self.config.target_kl
                sums, seen, taken = sums + stats, seen + 1, taken + learns
        means = dict(zip((*STATS, "grad_norm"), (sums / max(1, seen)).tolist(), strict=True))
        return means | {
            "actor_steps": taken, "lr": self.config.actor_lr * factor,
            "chunks": advantages.places.whole if advantages.places else len(cond),
            **self.estimator.numbers(advantages, critic_losses),
        }  # fmt: skip

    def step(self, rows: Tensor, loss: Loss) -> Tensor:
        """Take one gradient step on samples `rows`, unless the KL exceeds `target_kl` or the gradient is zero.

        Several ranks step together: gradients and STATS are means over the samples of all ranks.

        Returns:
            [len(STATS) + 1] float64 on the CPU: STATS and the gradient's norm.
        """
        self.optimizer.zero_grad(set_to_none=True)
        stats = torch.zeros(len(STATS), device=rows.device)
        for part in rows.split(self.config.microbatch or len(rows)) if len(rows) else ():
            value, found = loss(part)
            (value * (len(part) / len(rows))).backward()
            stats = stats + found * (len(part) / len(rows))
        stats = ranks.average_gradients(self.parameters, stats, len(rows))
        norm = nn.utils.clip_grad_norm_(self.parameters, self.config.grad_norm)
        found = torch.cat([stats, norm[None]]).double().cpu()
        if not bool(found.isfinite().all()):
            named = ", ".join(f"{k} {v:.3g}" for k, v in zip((*STATS, "grad_norm"), found.tolist(), strict=True))
            raise RobopolicyError(
                f"PPO: not everything is finite in update {self.updates}: {named}. Lower actor_lr, raise the noise "
                "floor, or look for NaN in the base and its normaliser."
            )
        if (
            found[0] <= self.config.target_kl and found[-1] > 0.0
        ):  # a step without a gradient would be the momentum's alone
            self.optimizer.step()
        return found

    def state_dict(self) -> dict[str, Any]:
        return {
            "parameters": [p.detach().clone() for p in self.parameters],
            "value": self.estimator.state_dict(),
            "optimizer": optimizer_state(self.optimizer),
            "generator": self.generator.get_state(),
            "updates": self.updates,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for parameter, saved in zip(self.parameters, state["parameters"], strict=True):
            parameter.copy_(saved)
        self.estimator.load_state_dict(state["value"])
        load_optimizer_state(self.optimizer, state["optimizer"])
        self.generator.set_state(state["generator"])
        self.updates = int(state["updates"])


class PolicyGradient:
    """Collects and scores the chunks of `policy` alike for every PPO; subclasses explore and define the loss.

    `options`: class whose keywords the `**options` of a constructor are; the config is checked against it.
    """

    across_ranks: ClassVar[bool] = True
    options: ClassVar[type] = PPOConfig
    policy: Any
    learner: Learner
    clip: Tensor  # on the policy's device

    @classmethod
    def forwards_to(cls, given: object) -> tuple[type, ...]:
        return (cls.options,)

    @property
    def critic_warmup(self) -> int:
        return self.learner.critic_warmup

    @property
    def noise_shape(self) -> tuple[int, ...]:
        return self.policy.noise_shape

    def encode(self, obs: Obs) -> Tensor:
        """Encode obs [B To ...], on any device, as cond [B C] on the policy's device."""
        return self.policy.encode({k: v.to(self.clip.device) for k, v in obs.items()})

    def estimate(self, rollout: Rollout) -> Advantages:
        """Estimate the advantages of a rollout whose record holds `cond`, the encoded observations."""
        count = self.policy.spec.n_action_steps
        found = self.learner.estimator.estimate(rollout, rollout.record["cond"], self.encode, count)
        return found if ranks.count() == 1 else found._replace(places=Places.of(rollout.planned, found.keep))

    def interrupt(self) -> None:
        """Drop what is known of the running episodes, where a resumed run cannot continue them."""
        self.learner.estimator.interrupt()

    def state_dict(self) -> dict[str, Any]:
        return self.learner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state)

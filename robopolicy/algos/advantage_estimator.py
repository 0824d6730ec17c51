"""Estimate the advantages of a rollout's chunks, with a critic V(observation)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from robopolicy.algos.returns import RewardScale, chunk_weight, gae, standardize
from robopolicy.buffers.collector import Rollout
from robopolicy.core.errors import RobopolicyError
from robopolicy.core.types import Metrics, Obs
from robopolicy.utils import ranks
from robopolicy.utils.optim import load_optimizer_state, optimizer_state


class Places(NamedTuple):
    """Places of this rank's D chunks among the chunks of all ranks, which are ordered by (step, env)."""

    rows: Tensor  # [D] int64
    whole: int  # chunks of all ranks

    @classmethod
    def of(cls, planned: Tensor, keep: Tensor) -> Places:
        """Number the chunks of this rank's envs; planned: [T n] bool, keep: [all chunks of these envs] bool."""
        mine = planned.clone()
        mine[planned] = keep.to(planned.device)
        kept = ranks.gather_rows(mine.T)  # [N T]
        number = (kept.T.flatten().cumsum(0) - 1).view(len(mine), -1)
        return cls(number[:, ranks.own_part(len(kept))][mine].to(keep.device), int(kept.sum()))


class Advantages(NamedTuple):
    """Advantages of the D chunks of a rollout that may be learned from; a rank may have none."""

    keep: Tensor  # [all chunks] bool: the D chunks during which physics did not fail
    advantage: Tensor  # [D] of order one; all zero where returns do not differ
    target: Tensor  # [D]
    value: Tensor  # [D] before the update
    weight: Tensor  # [D Ta] share of each executed step in a mean over the chunk; 0 for an unexecuted tail
    places: Places | None = None  # None: there is one rank

    @property
    def explained(self) -> float:
        """Share of the targets' variance that the values explain, 1 at most."""
        left, all = _variance(self.target - self.value), _variance(self.target)
        return float(1.0 - left / all.clamp_min(1e-8))


class AdvantageEstimator:
    """Estimates how good the chunks of a rollout were: by a critic (Value), or by comparison (grpo.Groups)."""

    def estimate(self, rollout: Rollout, cond: Tensor, encode: Callable[[Obs], Tensor], chunk_steps: int) -> Advantages:
        """Estimate the advantages of all chunks of a rollout.

        Args:
            cond: [all chunks, C] encoded observations. encode: encodes further observations, on any device.
            chunk_steps: Ta.

        Raises:
            RobopolicyError: physics failed in every chunk of every rank.
        """
        raise NotImplementedError

    def learn(self, cond: Tensor, target: Tensor) -> float:
        """Take one gradient step on cond [B C] and targets [B]; return the loss. Without a critic: nothing to learn.

        Raises:
            RobopolicyError: loss or gradient is not finite; the network is unchanged.
        """
        return 0.0

    def set_lr(self, factor: float) -> None:
        """Scale the learning rate, where there is one."""

    def interrupt(self) -> None:
        """Drop what is known of the running episodes, which are lost."""

    def numbers(self, advantages: Advantages, losses: list[float]) -> Metrics:
        """Return the numbers to log.

        Args:
            losses: results of `learn`.
        """
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""


class Value(AdvantageEstimator):
    """A critic V(cond) with its optimiser and its scale of rewards.

    Args:
        network: V [B 1] of the encoded observation cond [B C].
        gamma: discount per primitive step. gae_lambda: per chunk. grad_norm: bound of the gradient's norm.
        reward_clip: see RewardScale.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        gamma: float,
        gae_lambda: float,
        lr: float,
        grad_norm: float,
        reward_clip: float = 10.0,
    ) -> None:
        self.network, self.parameters = network, list(network.parameters())
        self.gamma, self.gae_lambda, self.lr, self.grad_norm = gamma, gae_lambda, lr, grad_norm
        self.optimizer = torch.optim.AdamW(self.parameters, lr=lr, weight_decay=0.0, fused=True)
        self.reward_scale = RewardScale(gamma=gamma, clip=reward_clip)

    @torch.no_grad()
    def estimate(self, rollout: Rollout, cond: Tensor, encode: Callable[[Obs], Tensor], chunk_steps: int) -> Advantages:
        """See AdvantageEstimator."""
        reward = self.reward_scale(rollout.reward, rollout.terminated | rollout.truncated)
        # Not every encoder accepts an empty batch.
        final_cond = encode(rollout.final_obs) if bool(rollout.truncated.any()) else cond[:0]
        value, last, final = (self.network(c)[:, 0].to(reward) for c in (cond, encode(rollout.last_obs), final_cond))
        found = gae(
            reward=reward, planned=rollout.planned, terminated=rollout.terminated, truncated=rollout.truncated,
            valid=rollout.valid, value=value, last_value=last, final_value=final, gamma=self.gamma, lam=self.gae_lambda,
        )  # fmt: skip
        keep = found.valid
        if not ranks.any_of(bool(keep.any())):
            raise RobopolicyError(
                "PPO: physics failed in all chunks of a rollout; nothing is left to learn from. Look at "
                "what the policy commands (algo.noise, the base's normaliser) and at the task's contacts."
            )
        weight = chunk_weight(found.steps[keep], chunk_steps)
        advantage = standardize(found.advantage[keep])
        parts = (keep, advantage, found.target[keep], value[keep], weight)
        keep, advantage, target, value, weight = (part.to(cond.device) for part in parts)
        return Advantages(keep, advantage, target, value, weight)

    def learn(self, cond: Tensor, target: Tensor) -> float:
        """See AdvantageEstimator."""
        loss = target.new_zeros(())
        self.optimizer.zero_grad(set_to_none=True)
        if len(target):  # a rank may have no row of a minibatch
            loss = nn.functional.mse_loss(self.network(cond)[:, 0], target)
            loss.backward()
        loss = ranks.average_gradients(self.parameters, loss.detach(), len(target))
        norm = nn.utils.clip_grad_norm_(self.parameters, self.grad_norm)
        error, size = torch.stack([loss, norm]).tolist()
        if not (math.isfinite(error) and math.isfinite(size)):
            raise RobopolicyError(
                f"PPO: the critic's loss is {error:.3g}, its gradient's norm {size:.3g}. Look for NaN in rewards and "
                "observations, or lower critic_lr."
            )
        self.optimizer.step()
        return error

    def set_lr(self, factor: float) -> None:
        self.optimizer.param_groups[0]["lr"] = self.lr * factor

    def interrupt(self) -> None:
        """See AdvantageEstimator."""
        self.reward_scale.interrupt()

    def numbers(self, advantages: Advantages, losses: list[float]) -> Metrics:
        """See AdvantageEstimator."""
        return {
            "critic_loss": sum(losses) / len(losses), "explained_variance": advantages.explained,
            "reward_scale": self.reward_scale.deviation,
        }  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        return {
            "network": self.network.state_dict(),
            "optimizer": optimizer_state(self.optimizer),
            "reward_scale": self.reward_scale.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        load_optimizer_state(self.optimizer, state["optimizer"])
        self.reward_scale.load_state_dict(state["reward_scale"])


def _variance(x: Tensor) -> Tensor:
    """Compute the variance [] over all elements of all ranks."""
    return x.var(correction=0) if ranks.count() == 1 else ranks.mean_of((x - ranks.mean_of(x)).square())

"""Off-policy learning of a residual: TD3-style with a REDQ critic ensemble (ResFiT, Ankile et al. 2025).

Differences from the published code, each held by a test: the executed, clamped action is stored and scored; time limits
bootstrap; squared errors are averaged per head; n-step windows end with the episode.

The penalty λ·mean(u²) keeps an immature critic from moving the policy below its base. λ falls geometrically. The
residual grows most during the last factor of ten, which so takes as long as the first: the critic sees new actions
before larger ones are taken. With `confidence` the actor climbs a lower bound of the gain over the base in place of the
mean: heads that disagree about an action, as they do about one that was never taken, then pull nowhere.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from robopolicy.buffers.replay_buffer import Batch
from robopolicy.config.schema import Count, Fraction, Natural, NonNegative, Positive, Rate
from robopolicy.core.errors import ConfigError
from robopolicy.core.types import BASE_ACTION, Metrics, Obs
from robopolicy.networks.critics import CriticEnsemble
from robopolicy.policies.residual import ResidualPolicy
from robopolicy.utils.optim import copy_into, descend, load_optimizer_state, optimizer_state, steps_taken


def fallen(first: float, last: float, done: float) -> float:
    """Return a weight that falls geometrically from `first` to `last`, after the share `done` of its way; 0 stays."""
    return first and first * (last / first) ** min(1.0, done)


class ResidualTD3:
    """Learns `policy`'s residual and an ensemble of Q-functions of the full action.

    All networks are on the policy's device; observations and batches may be on any. Random numbers are drawn on the
    CPU, so that they are the same whatever the device.

    Args:
        critic: makes an ensemble; called as critic(in_dim), or critic(in_dim, layout=TaskLayout) where the policy has
            weights for each task.
        target_subset: heads whose minimum forms the target (REDQ's M); the actor climbs the mean of all.
        policy_delay: critic updates per actor update.
        target_noise, target_noise_clip: smoothing of the target's residual (TD3), in units of u.
        exploration_std: Gaussian noise on u when collecting. `warmup_std`: the same before learning starts.
        gripper_rate: probability per collected step that exploration forces the gripper for `gripper_hold` steps: its
            u is −1 or 1, drawn once. Gaussian noise hardly ever reverses a gripper command, and one reversed step
            moves little. 0: never.
        penalty, penalty_final, penalty_steps: λ falls geometrically from the first to the second over this many env
            steps of learning, and stays there; `penalty=0`: none.
        tau: rate at which the target follows.
        actor_lr: learning rate of the residual.
        critic_lr: learning rate of the ensemble.
        gripper_hold: steps of a forced gripper command.
        confidence: deviations of the heads' gains Q(s, a) − Q(s, base) that are taken off their mean, at each state; 0:
            the actor climbs the mean of Q.
        average: rate at which the weights that act follow the actor's (1 − decay of an exponential average); 1: they
            are the actor's.
        actor_warmup: actor steps in which its learning rate rises linearly from 0.

    Raises:
        ConfigError: target_subset is larger than the ensemble; a gripper_rate, and no action is a gripper's.
    """

    def __init__(
        self,
        policy: ResidualPolicy,
        *,
        critic: Callable[..., CriticEnsemble],
        target_subset: Count = 2,
        tau: Rate = 0.01,
        actor_lr: Positive = 3e-4,
        critic_lr: Positive = 1e-3,
        policy_delay: Count = 2,
        target_noise: NonNegative = 0.0,
        target_noise_clip: NonNegative = 0.3,
        exploration_std: NonNegative = 0.05,
        warmup_std: NonNegative = 0.1,
        gripper_rate: Fraction = 0.0,
        gripper_hold: Count = 8,
        penalty: NonNegative = 1.0,
        penalty_final: Positive = 0.003,
        penalty_steps: Natural = 24_000,
        grad_clip: Positive = 10.0,
        confidence: NonNegative = 1.0,
        average: Rate = 0.005,
        actor_warmup: Natural = 200,
        seed: int = 0,
    ) -> None:
        self.policy, self.device, layout = policy, policy.low.device, policy.layout
        in_dim = policy.net[0].in_features
        self.critic = (critic(in_dim, layout=layout) if layout else critic(in_dim)).to(self.device)
        if target_subset > self.critic.heads:
            raise ConfigError(
                f"algo.target_subset: expected at most algo.critic.heads={self.critic.heads}, found {target_subset}"
            )
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.actor = policy.net if average == 1.0 else copy.deepcopy(policy.net)
        self.actor_params = list[Tensor](self.actor.parameters())
        self.acting_params = list[Tensor](policy.net.parameters())
        self.critic_params = list[Tensor](self.critic.parameters())
        self.target_params = list[Tensor](self.target.parameters())
        self.actor_optim = torch.optim.Adam(self.actor_params, lr=actor_lr, fused=True)
        self.actor_lr, self.actor_warmup, self.average, self.actor_steps = actor_lr, actor_warmup, average, 0
        self.critic_optim = torch.optim.Adam(self.critic_params, lr=critic_lr, fused=True)
        self.target_subset, self.tau, self.policy_delay = target_subset, tau, policy_delay
        self.target_noise, self.target_noise_clip = target_noise, target_noise_clip
        self.exploration_std, self.warmup_std = exploration_std, warmup_std
        if gripper_rate and policy.spec.action.gripper is None:
            raise ConfigError(
                f"algo.gripper_rate={gripper_rate}: none of the actions {', '.join(policy.spec.action.names)} is a "
                "gripper's, so there is nothing to take. Leave it at 0."
            )
        self.gripper_rate, self.gripper_hold = gripper_rate, gripper_hold
        self.forced_gripper_steps = torch.zeros(0, dtype=torch.int64)  # [N] with the sign of u
        self.penalty, self.penalty_final, self.penalty_steps = penalty, penalty_final, penalty_steps
        self.grad_clip, self.confidence = grad_clip, confidence
        self.generator = torch.Generator().manual_seed(seed)
        self.updates = 0

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> Tensor:
        """Return full actions [N Da] in physical units: base plus noise while warming up, then policy plus noise."""
        state, base_action = self.policy.features({k: v.to(self.device) for k, v in obs.items()})
        if warmup:
            u = self.warmup_std * self._randn(base_action.shape)
        else:
            u = self.policy.residual(state, base_action) + self.exploration_std * self._randn(base_action.shape)
        if self.gripper_rate:
            self._force_gripper(u[:, self.policy.spec.action.gripper])
        full = self.policy.combine(base_action, u.clamp_(-1.0, 1.0))
        return self.policy.normalizer.unnormalize("action", full).to(obs[BASE_ACTION].device)

    def _force_gripper(self, u: Tensor) -> None:
        """Overwrite the gripper's u [N] where exploration forces it."""
        if len(self.forced_gripper_steps) != len(u):
            self.forced_gripper_steps = torch.zeros(len(u), dtype=torch.int64)
        drawn = torch.rand((2, len(u)), generator=self.generator)
        begun = self.gripper_hold * torch.where(drawn[1] < 0.5, -1, 1)
        self.forced_gripper_steps = torch.where(
            (self.forced_gripper_steps == 0) & (drawn[0] < self.gripper_rate), begun, self.forced_gripper_steps
        )
        u.copy_(torch.where(self.forced_gripper_steps.to(u.device) != 0, self.forced_gripper_steps.sign().to(u), u))
        self.forced_gripper_steps -= self.forced_gripper_steps.sign()

    def update(self, batch: Batch, *, learned_steps: int | None) -> Metrics:
        """Take one critic step and, every `policy_delay`-th time, one actor step.

        Args:
            learned_steps: env steps since learning began, which drive λ; None for a critic-only update.

        Raises:
            RobopolicyError: a loss or its gradient is not finite; the weights are unchanged.
        """
        self.updates += 1
        batch = batch.to(self.device)
        state, base_action = self.policy.features(batch.obs)
        action = self.policy.normalizer.normalize("action", batch.action)
        metrics = self._update_critic(batch, state, action)
        if learned_steps is not None and self.updates % self.policy_delay == 0:
            metrics |= self._update_actor(state, base_action, self.penalty_weight(learned_steps))
        return metrics

    def penalty_weight(self, learned_steps: int) -> float:
        """Return λ after `learned_steps` env steps of learning."""
        return fallen(self.penalty, self.penalty_final, learned_steps / max(1, self.penalty_steps))

    def _update_critic(self, batch: Batch, state: Tensor, action: Tensor) -> Metrics:
        with torch.no_grad():
            next_state, next_base = self.policy.features(batch.next_obs)
            u = self.policy.residual(next_state, next_base)
            if self.target_noise:
                noise = self.target_noise * self._randn(u.shape)
                u = (u + noise.clamp_(-self.target_noise_clip, self.target_noise_clip)).clamp_(-1.0, 1.0)
            heads = torch.randperm(self.critic.heads, generator=self.generator)[: self.target_subset].to(self.device)
            q_next = self.target(next_state, self.policy.combine(next_base, u), heads)  # [M B]
            y = batch.reward + batch.discount * q_next.amin(dim=0)  # [B]
        q = self.critic(state, action)  # [E B]
        loss = (q - y).square().mean(dim=1).sum()  # sum over heads: each head learns as if alone
        norm = self._descend(loss, self.critic_params, self.critic_optim, "critic")
        with torch.no_grad():
            torch._foreach_lerp_(self.target_params, self.critic_params, self.tau)
        return {
            "critic/loss": loss.detach() / q.shape[0],
            "critic/q": q.detach().mean(),
            "critic/grad_norm": norm,
            "critic/target": y.mean(),
        }

    def _update_actor(self, state: Tensor, base_action: Tensor, weight: float) -> Metrics:
        u = torch.tanh(self.actor(torch.cat([state, base_action], dim=-1)))
        q = self.critic(state, self.policy.combine(base_action, u))  # [E B]
        size = u.square().mean()
        climbed, metrics = q.mean(), {"actor/q": q.detach().mean()}
        if self.confidence:
            with torch.no_grad():
                q_base = self.critic(state, self.policy.combine(base_action, torch.zeros_like(u)))
            gain = q - q_base
            mean, deviation = gain.mean(dim=0), gain.std(dim=0, correction=min(1, len(gain) - 1))  # [B]
            climbed = (mean - self.confidence * deviation).mean()
            metrics |= {"actor/gain": mean.detach().mean(), "actor/gain_deviation": deviation.detach().mean()}
        loss = weight * size - climbed
        self.actor_steps += 1
        self.actor_optim.param_groups[0]["lr"] = self.actor_lr * min(1.0, self.actor_steps / max(1, self.actor_warmup))
        self._descend(loss, self.actor_params, self.actor_optim, "actor")
        with torch.no_grad():
            torch._foreach_lerp_(self.acting_params, self.actor_params, self.average)
        return {**metrics, "actor/residual_sq": size.detach(), "actor/penalty": weight}

    def _descend(self, loss: Tensor, params: list[Tensor], optim: torch.optim.Optimizer, name: str) -> Tensor:
        return descend(loss, params, optim, most=self.grad_clip, update=self.updates, name=name)

    def _randn(self, shape: torch.Size) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(self.device)

    def state_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy.net.state_dict(),
            "critic": self.critic.state_dict(),
            "target": self.target.state_dict(),
            "learned": [p.detach().clone() for p in self.actor_params],
            "actor_optim": optimizer_state(self.actor_optim),
            "critic_optim": optimizer_state(self.critic_optim),
            "generator": self.generator.get_state(),
            "updates": self.updates,
            "forced_gripper_steps": self.forced_gripper_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.net.load_state_dict(state["policy"])
        self.critic.load_state_dict(state["critic"])
        self.target.load_state_dict(state["target"])
        copy_into(self.actor_params, state["learned"])
        load_optimizer_state(self.actor_optim, state["actor_optim"])
        self.actor_steps = steps_taken(self.actor_optim)
        load_optimizer_state(self.critic_optim, state["critic_optim"])
        self.generator.set_state(state["generator"])
        self.updates = int(state["updates"])
        self.forced_gripper_steps = state["forced_gripper_steps"]

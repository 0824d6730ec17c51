"""Learn off-policy from whole chunks: Q(observation, chunk) by TD, and imitation of weighted chunks.

A chunk is Ta primitive steps that are executed open-loop. Its value is learned from executed windows that begin at any
step: y = Σ γⁱ rᵢ + γ^steps · (1 − terminated) · Q'(s', chunk'), where `steps` counts the steps within the episode
(Q-chunking, Li et al. 2025). Q reads 0 for steps past the episode's end.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from robopolicy.algos.chunk_checks import ChunkChecks
from robopolicy.algos.expectile_value import ExpectileValue
from robopolicy.buffers.chunk_replay_buffer import ChunkBatch
from robopolicy.config.schema import Count, Fraction, Natural, NonNegative, Positive, Rate
from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.core.types import Metrics, Obs
from robopolicy.networks.critics import CriticEnsemble
from robopolicy.policies.base import SEEN, Policy
from robopolicy.policies.denoising import ChunkDenoiser
from robopolicy.policies.normalizer import ACTION
from robopolicy.utils.optim import copy_into, descend, load_optimizer_state, optimizer_state, steps_taken


class ChunkLearner:
    """A chunk policy with a frozen encoder, and an ensemble of Q(encoded observation, executed slice of a chunk).

    Chunks are in normalised units, within the env's limits. Random numbers are drawn on the CPU. Subclasses say which
    chunks the policy imitates.

    Args:
        critic: makes the ensemble from its input size.
        target_subset: heads drawn for each target (REDQ's M); None: all. It changes nothing beside `expectile`, whose V
            learns from all heads.
        pessimism: κ of the lower bound mean − κ·deviation over heads; None: their minimum.
        tau: rate at which the target follows.
        critic_lr, actor_lr, grad_norm: of the optimisers.
        average: rate at which the policy's weights follow those that learn (1 − decay of an exponential average).
        actor_warmup: policy steps in which its learning rate rises linearly from 0.
        noise_samples: noised copies of each chunk in a batch that the policy imitates.
        expectile: τ of a V(observation) that targets read in place of Q at the policy's chunks, see ExpectileValue;
            only for recorded data. None: no V.

    Raises:
        SpecError: the policy has no fine-tuned copy of a denoiser.
        ConfigError: target_subset is larger than the ensemble.
    """

    @staticmethod
    def forwards_to(given: object) -> tuple[type, ...]:
        """Name the class whose keywords the `**options` of subclasses are; the config is checked against it."""
        return (ChunkLearner,)

    def __init__(
        self,
        policy: Policy,
        *,
        critic: Callable[[int], CriticEnsemble],
        target_subset: Count | None = 2,
        pessimism: NonNegative | None = None,
        tau: Rate = 0.02,
        critic_lr: Positive = 1e-3,
        actor_lr: Positive = 1e-4,
        average: Rate = 0.005,
        actor_warmup: Natural = 200,
        grad_norm: Positive = 10.0,
        noise_samples: Count = 4,
        expectile: Fraction | None = None,
        seed: int = 0,
    ) -> None:
        self.check_policy(policy)
        policy = cast(ChunkDenoiser, policy)  # or what a subclass checks for
        self.policy, self.device = policy, policy.times.device
        action, self.played = policy.spec.action, policy.spec.n_action_steps
        self.critic = critic(policy.cond_dim + self.played * action.dim).to(self.device)
        self.subset = target_subset or self.critic.heads
        if self.subset > self.critic.heads:
            raise ConfigError(
                f"algo.target_subset: expected at most algo.critic.heads={self.critic.heads}, found {target_subset}"
            )
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.critic_params = list[Tensor](self.critic.parameters())
        self.target_params = list[Tensor](self.target.parameters())
        self.learned = policy if average == 1.0 else self.own_copy(policy)  # `policy` acts and is its average
        self.policy_params = list[Tensor](policy.finetuned_parameters())
        self.actor_params = list[Tensor](self.learned.finetuned_parameters())
        self.critic_optim = torch.optim.Adam(self.critic_params, lr=critic_lr, fused=True)
        self.actor_optim = torch.optim.Adam(self.actor_params, lr=actor_lr, fused=True)
        self.actor_lr, self.actor_warmup, self.average, self.actor_steps = actor_lr, actor_warmup, average, 0
        self.pessimism, self.tau, self.grad_norm, self.noise_samples = pessimism, tau, grad_norm, noise_samples
        limits = torch.tensor([action.low, action.high], device=self.device)
        self.low, self.high = policy.normalizer.normalize(ACTION, limits)
        self.generator = torch.Generator().manual_seed(seed)
        self.value = None
        if expectile is not None:
            self.value = ExpectileValue(critic(policy.cond_dim).to(self.device), expectile=expectile, lr=critic_lr)
        self.checks = ChunkChecks(policy)
        self.updates = 0

    @staticmethod
    def check_policy(policy: Policy) -> None:
        """Raise SpecError unless `policy` is of the kind that learns here."""
        if not isinstance(policy, ChunkDenoiser) or not policy.finetuned_steps:
            raise SpecError(
                "policy: expected a diffusion, flow or VLA policy with a fine-tuned copy, found "
                f"{type(policy).__name__}{' without one' if isinstance(policy, ChunkDenoiser) else ''}. "
                "Make it by policy=finetuned from a base of these kinds."
            )

    @staticmethod
    def own_copy(policy: ChunkDenoiser) -> ChunkDenoiser:
        """Copy the fine-tuned weights; the frozen ones are shared."""
        learned = {id(p) for p in policy.finetuned_parameters()}
        return copy.deepcopy(policy, {id(p): p for p in policy.parameters() if id(p) not in learned})

    # -- chunks ------------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def sample(self, cond: Tensor, count: int) -> Tensor:
        """Sample chunks [B count H Da] of the policy that acts, at cond [B C]."""
        shape = (len(cond) * count, *self.policy.noise_shape)
        noise = torch.randn(shape, generator=self.generator).to(self.device)
        chunk = self.policy.sample(cond.repeat_interleave(count, dim=0), noise=noise)
        return chunk.clamp(self.low, self.high).unflatten(0, (len(cond), count))

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> Tensor:
        """Return chunks [B H Da] of the policy in physical units; its own noise is the exploration."""
        return self.to_env(self.sample(obs[SEEN].to(self.device), 1)[:, 0], obs[SEEN].device)

    def executed(self, batch: ChunkBatch) -> Tensor:
        """Return the executed chunks [B H Da], normalised, 0 past an episode's end."""
        return self.policy.normalizer.normalize(ACTION, batch.action).masked_fill(~batch.keep[..., None], 0.0)

    def to_env(self, chunk: Tensor, device: torch.device) -> Tensor:
        """Convert chunks [B H Da] to physical units on `device`."""
        return self.policy.normalizer.unnormalize(ACTION, chunk).to(device)

    # -- the critic --------------------------------------------------------------------------------------------------
    def q(self, cond: Tensor, chunk: Tensor) -> Tensor:
        """Compute Q [E B] of cond [B C] and chunks [B H Da], or [E B m] of m chunks each [B m H Da]."""
        cond = cond[:, : self.policy.cond_dim]
        if chunk.ndim == 4:
            each = cond.repeat_interleave(chunk.shape[1], dim=0)
            return self.q(each, chunk.flatten(0, 1)).unflatten(1, chunk.shape[:2])
        return self.critic(cond, chunk[:, : self.played].flatten(1))

    def lower(self, q: Tensor) -> Tensor:
        """Return the pessimistic value [...] of the heads' values [E ...]."""
        if self.pessimism is None:
            return q.amin(dim=0)
        return q.mean(dim=0) - self.pessimism * q.std(dim=0, correction=0)

    @torch.no_grad()
    def next_value(self, cond: Tensor, following: Tensor | None) -> Tensor:
        """Return the value [B] of cond [B C] for targets: V, or Q of `following` [B H Da]; None: of own samples."""
        seen = cond[:, : self.policy.cond_dim]
        if self.value is not None:
            return self.value(seen)
        chunk = self.sample(cond, 1)[:, 0] if following is None else following
        heads = torch.randperm(self.critic.heads, generator=self.generator)[: self.subset].to(self.device)
        return self.lower(self.target(seen, chunk[:, : self.played].flatten(1), heads))

    def update_critic(self, batch: ChunkBatch, following: Tensor | None = None) -> Metrics:
        """Take one TD step of all heads, and one of V where there is one.

        Args:
            following: [B H Da] the chunk that is played at `next_obs`; None: a sample of the policy.

        Raises:
            RobopolicyError: the loss or its gradient is not finite; the weights are unchanged.
        """
        y = batch.reward + batch.discount * self.next_value(batch.next_obs[SEEN], following)  # [B]
        self._update_value(batch)
        q = self.q(batch.obs[SEEN], self.executed(batch))  # [E B]
        loss = (q - y).square().mean(dim=1).sum()  # sum over heads: each head learns as if alone
        norm = self._descend(loss, self.critic_params, self.critic_optim, "critic")
        with torch.no_grad():
            torch._foreach_lerp_(self.target_params, self.critic_params, self.tau)
        self.checks.see(batch, q.detach())
        return {
            "critic/loss": float(loss.detach()) / q.shape[0], "critic/q": float(q.detach().mean()),
            "critic/grad_norm": float(norm), "critic/target": float(y.mean()),
            "critic/disagreement": float(q.detach().std(dim=0, correction=0).mean()),
            "critic/spread": float(q.detach().mean(dim=0).std(correction=0)),
        }  # fmt: skip

    def _update_value(self, batch: ChunkBatch) -> None:
        if self.value is None:
            return
        seen = batch.obs[SEEN][:, : self.policy.cond_dim]
        with torch.no_grad():
            q = self.lower(self.target(seen, self.executed(batch)[:, : self.played].flatten(1)))  # [B]
        self._descend(self.value.loss(seen, q), self.value.params, self.value.optim, "critic")

    # -- the policy --------------------------------------------------------------------------------------------------
    def imitate(self, cond: Tensor, chunk: Tensor, weight: Tensor) -> Metrics:
        """Take one step of the policy's imitation loss on chunks [B H Da], each step weighted by `weight` [B H].

        Raises:
            RobopolicyError: as `update_critic`.
        """
        self.checks.warn()
        if not bool((weight > 0).any()):  # e.g. a batch of episode ends
            return {}
        loss = self.imitation_loss(cond, chunk, weight)
        return {"actor/imitation": float(loss.detach()), "actor/grad_norm": float(self._step_actor(loss))}

    def imitation_loss(self, cond: Tensor, chunk: Tensor, weight: Tensor, *, of_chunk: bool = False) -> Tensor:
        """Compute `finetuned_loss` [] of the learned weights at `noise_samples` steps of each chunk; see `imitate`."""
        cond, chunk, weight = (x.repeat_interleave(self.noise_samples, dim=0) for x in (cond, chunk, weight))
        noise = torch.randn(chunk.shape, generator=self.generator).to(self.device)
        k = torch.randint(self.policy.finetuned_steps, (len(chunk),), generator=self.generator).to(self.device)
        return self.learned.finetuned_loss(cond, chunk, weight, k=k, noise=noise, of_chunk=of_chunk)

    def _step_actor(self, loss: Tensor) -> Tensor:
        """Take a step of the weights that learn, which the policy's follow; return the gradient's norm []."""
        rate = self.actor_lr * min(1.0, (self.actor_steps + 1) / max(1, self.actor_warmup))
        self.actor_optim.param_groups[0]["lr"] = rate
        norm = self._descend(loss, self.actor_params, self.actor_optim, "actor")
        self.actor_steps += 1
        with torch.no_grad():
            torch._foreach_lerp_(self.policy_params, self.actor_params, self.average)
        return norm

    def _descend(self, loss: Tensor, params: list[Tensor], optim: torch.optim.Optimizer, name: str) -> Tensor:
        return descend(loss, params, optim, most=self.grad_norm, update=self.updates, name=name)

    def state_dict(self) -> dict[str, Any]:
        return {
            "policy": [p.detach().clone() for p in self.policy_params],
            "critic": self.critic.state_dict(),
            "target": self.target.state_dict(),
            "learned": [p.detach().clone() for p in self.actor_params],
            "actor_optim": optimizer_state(self.actor_optim),
            "critic_optim": optimizer_state(self.critic_optim),
            "generator": self.generator.get_state(),
            "updates": self.updates,
            **({} if self.value is None else {"value": self.value.state_dict()}),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        copy_into(self.policy_params, state["policy"])
        copy_into(self.actor_params, state["learned"])
        self.critic.load_state_dict(state["critic"])
        self.target.load_state_dict(state["target"])
        load_optimizer_state(self.actor_optim, state["actor_optim"])
        self.actor_steps = steps_taken(self.actor_optim)
        load_optimizer_state(self.critic_optim, state["critic_optim"])
        if self.value is not None:
            self.value.load_state_dict(state["value"])
        self.generator.set_state(state["generator"])
        self.updates = int(state["updates"])

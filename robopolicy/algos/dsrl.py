"""Steer a frozen denoiser by the noise that its chain begins with (DSRL-NA, Wagenmaker et al. 2025, arXiv 2506.15799).

Q(observation, chunk) is learned by TD. It is distilled into Q^W(observation, noise), whose targets are Q at the chunks
to which the frozen chain leads from drawn noise. The actor climbs Q^W, so no gradient passes through the chain. Q reads
chunks, so it also learns from demonstrations, whose noise is unknown ("noise-aliased").

Differences from the paper: the actor is a Gaussian that begins as the base's own, and KL(actor ‖ base) with a weight
that falls geometrically takes the place of SAC's entropy. What is climbed is the gain over the base's noise, mean −
confidence·deviation over heads. An average of the weights acts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from robopolicy.algos.chunk_critic import ChunkLearner
from robopolicy.algos.residual import fallen
from robopolicy.buffers.chunk_replay_buffer import ChunkBatch
from robopolicy.config.schema import Count, Natural, NonNegative, Positive
from robopolicy.core.errors import SpecError
from robopolicy.core.types import Metrics
from robopolicy.networks.critics import CriticEnsemble
from robopolicy.policies.base import SEEN, Policy
from robopolicy.policies.steered import SteeredPolicy
from robopolicy.utils.optim import load_optimizer_state, optimizer_state


class DSRL(ChunkLearner):
    """Learns which noise a frozen chain begins with, from a critic of chunks and a critic of noise.

    Args:
        critic: makes both ensembles, from their input sizes.
        policy_delay: critic updates per actor update.
        confidence: deviations of the heads' gains over the base's noise that are taken off their mean.
        anchor, anchor_final, anchor_steps: weight of KL(actor ‖ standard normal) per element of the noise. It falls
            geometrically from the first to the second over this many env steps of learning, and stays there;
            `anchor=0`: none.
        **options: see ChunkLearner.

    Raises:
        SpecError: the policy is not a SteeredPolicy.
    """

    policy: SteeredPolicy  # type: ignore[assignment]
    learned: SteeredPolicy  # type: ignore[assignment]

    def __init__(
        self,
        policy: Policy,
        *,
        critic: Callable[[int], CriticEnsemble],
        policy_delay: Count = 2,
        confidence: NonNegative = 1.0,
        anchor: NonNegative = 1.0,
        anchor_final: Positive = 0.01,
        anchor_steps: Natural = 20_000,
        critic_lr: Positive = 1e-3,
        actor_lr: Positive = 3e-4,
        **options: Any,
    ) -> None:
        super().__init__(policy, critic=critic, critic_lr=critic_lr, actor_lr=actor_lr, **options)
        size = self.policy.spec.horizon * self.policy.spec.action.dim
        self.noise_critic = critic(self.policy.cond_dim + size).to(self.device)
        self.noise_params = list[Tensor](self.noise_critic.parameters())
        self.noise_optim = torch.optim.Adam(self.noise_params, lr=critic_lr, fused=True)
        self.policy_delay, self.confidence = policy_delay, confidence
        self.anchor, self.anchor_final, self.anchor_steps = anchor, anchor_final, anchor_steps

    @staticmethod
    def check_policy(policy: Policy) -> None:
        if not isinstance(policy, SteeredPolicy):
            raise SpecError(
                f"policy: algo=dsrl steers a frozen chain, found {type(policy).__name__}. Make it by policy=steered "
                "from a diffusion, flow or VLA base."
            )

    def update(self, batch: ChunkBatch, *, learned_steps: int | None) -> Metrics:
        """Take one step of both critics and, every `policy_delay`-th time, one of the actor unless it is critic-only.

        Args:
            learned_steps: env steps since learning began, which drive the anchor; None for a critic-only update.
        """
        self.updates += 1
        batch = batch.to(self.device)
        cond = batch.obs[SEEN]
        metrics = self.update_critic(batch) | self.distill(cond)
        if learned_steps is not None and self.updates % self.policy_delay == 0:
            metrics |= self.update_actor(cond, self.anchor_weight(learned_steps))
        return metrics

    def anchor_weight(self, learned_steps: int) -> float:
        """Return the weight of the KL to the base after `learned_steps` env steps of learning."""
        return fallen(self.anchor, self.anchor_final, learned_steps / max(1, self.anchor_steps))

    def distill(self, cond: Tensor) -> Metrics:
        """Take one step of Q^W towards Q at cond [B C]: for every second row at the base's noise, else the actor's.

        Raises:
            RobopolicyError: as `update_critic`.
        """
        with torch.no_grad():
            w = self._noise(len(cond))
            w[1::2] = self.learned.steer(cond[1::2], w[1::2])
            chunk = self.policy.chain.sample(cond, noise=w).clamp(self.low, self.high)
            target = self.q(cond, chunk)  # [E B]: each head of Q^W follows its own head of Q
        loss = (self.noise_q(cond, w) - target).square().mean(dim=1).sum()
        self._descend(loss, self.noise_params, self.noise_optim, "critic")
        return {"critic/noise_loss": float(loss.detach()) / len(target)}

    def update_actor(self, cond: Tensor, anchor: float) -> Metrics:
        """Take one step of the actor at cond [B C] towards noise of a higher Q^W than the base's.

        Raises:
            RobopolicyError: as `update_critic`.
        """
        self.checks.warn()
        noise = self._noise(len(cond))
        mean, log_std = self.learned.distribution(cond)
        q = self.noise_q(cond, mean + log_std.exp() * noise)  # [E B]
        with torch.no_grad():
            base = self.noise_q(cond, noise)
        gain = (q - base).mean(dim=0)  # [B]
        deviation = (q - base).std(dim=0, correction=0)
        kl = 0.5 * (mean.square() + (2.0 * log_std).exp() - 1.0).mean() - log_std.mean()
        norm = self._step_actor(anchor * kl - (gain - self.confidence * deviation).mean())
        return {
            "actor/gain": float(gain.detach().mean()), "actor/gain_deviation": float(deviation.detach().mean()),
            "actor/kl": float(kl.detach()), "actor/anchor": anchor, "actor/grad_norm": float(norm),
            "actor/noise_std": float(log_std.detach().exp().mean()),
        }  # fmt: skip

    def noise_q(self, cond: Tensor, w: Tensor) -> Tensor:
        """Compute Q^W [E B] of cond [B C] and the chain's starts w [B H Da]."""
        return self.noise_critic(cond[:, : self.policy.cond_dim], w.flatten(1))

    def _noise(self, count: int) -> Tensor:
        return torch.randn((count, *self.policy.noise_shape), generator=self.generator).to(self.device)

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "noise_critic": self.noise_critic.state_dict(),
            "noise_optim": optimizer_state(self.noise_optim),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.noise_critic.load_state_dict(state["noise_critic"])
        load_optimizer_state(self.noise_optim, state["noise_optim"])

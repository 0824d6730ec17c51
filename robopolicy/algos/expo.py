"""Edit chunks of a frozen denoiser and play the best by the critic (EXPO, Dong et al. 2025, arXiv 2507.07986).

Q(observation, chunk) is learned by TD. Its targets, exploration and the result all use the same on-the-fly policy: of N
chunks of the frozen base and N edited ones, that which the target critic prefers. The edits climb Q.

Differences from the paper: the base stays frozen. An edit is a function of the chunk, and a weight of its square, which
falls geometrically, takes the place of SAC's entropy. What is climbed and compared is mean − confidence·deviation of
the heads' gains. An average of the edits' weights acts.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from robopolicy.algos.chunk_critic import ChunkLearner
from robopolicy.algos.residual import fallen
from robopolicy.buffers.chunk_replay_buffer import ChunkBatch
from robopolicy.config.schema import Count, Natural, NonNegative, Positive
from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.core.types import Metrics, Obs
from robopolicy.policies.base import SEEN, Policy
from robopolicy.policies.edited import EditedPolicy


class EXPO(ChunkLearner):
    """Learns edits of a frozen policy's chunks, and the critic that chooses among drawn and edited chunks.

    Args:
        critic: the policy's own, so none is given.
        policy_delay: critic updates per update of the edits.
        confidence: deviations of the heads' gains over the drawn chunk that are taken off their mean.
        noise: deviation of exploration, added to each executed action, in normalised units.
        penalty, penalty_final, penalty_steps: weight of the mean square of edits, in units of their bound. It falls
            geometrically from the first to the second over this many env steps of learning, and stays there.
        **options: see ChunkLearner.

    Raises:
        SpecError: the policy is not an EditedPolicy.
        ConfigError: `expectile` is given: no state value is learned here.
    """

    policy: EditedPolicy  # type: ignore[assignment]
    learned: EditedPolicy  # type: ignore[assignment]

    def __init__(
        self,
        policy: Policy,
        *,
        critic: None = None,
        policy_delay: Count = 2,
        confidence: NonNegative = 1.0,
        noise: NonNegative = 0.05,
        penalty: NonNegative = 1.0,
        penalty_final: Positive = 0.003,
        penalty_steps: Natural = 20_000,
        actor_lr: Positive = 3e-4,
        **options: Any,
    ) -> None:
        self.check_policy(policy)
        if options.get("expectile") is not None:
            raise ConfigError(
                f"algo.expectile: algo=expo learns no state value, found {options['expectile']}. Leave it out."
            )
        assert isinstance(policy, EditedPolicy)
        own = copy.deepcopy(policy.critic).requires_grad_(True)
        super().__init__(policy, critic=lambda size: own, actor_lr=actor_lr, **options)
        self.target, self.target_params = policy.critic, list[Tensor](policy.critic.parameters())  # it acts
        self.policy_delay, self.confidence, self.noise = policy_delay, confidence, noise
        self.penalty, self.penalty_final, self.penalty_steps = penalty, penalty_final, penalty_steps

    @staticmethod
    def check_policy(policy: Policy) -> None:
        if not isinstance(policy, EditedPolicy):
            raise SpecError(
                f"policy: algo=expo edits a frozen policy's chunks, found {type(policy).__name__}. Make it by "
                "policy=edited from a diffusion, flow or VLA base."
            )

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> Tensor:
        """Return chunks [B H Da] in physical units: of the base in the warm-up, then the best ones, with noise."""
        cond = obs[SEEN].to(self.device)
        shape = (len(cond), *((1, *self.policy.noise_shape[1:]) if warmup else self.policy.noise_shape))
        noise = torch.randn(shape, generator=self.generator).to(self.device)
        if warmup:
            chunk = self.policy.draw(cond, noise)[:, 0]
        else:
            chunk = self.policy.sample(cond, noise=noise)
            chunk = chunk + self.noise * torch.randn(chunk.shape, generator=self.generator).to(self.device)
        return self.to_env(chunk.clamp(self.low, self.high), obs[SEEN].device)

    def update(self, batch: ChunkBatch, *, learned_steps: int | None) -> Metrics:
        """Take one critic step and, every `policy_delay`-th time, one of the edits unless it is critic-only.

        Args:
            learned_steps: env steps since learning began, which drive the penalty; None for a critic-only update.
        """
        self.updates += 1
        batch = batch.to(self.device)
        metrics = self.update_critic(batch)
        if learned_steps is not None and self.updates % self.policy_delay == 0:
            weight = fallen(self.penalty, self.penalty_final, learned_steps / max(1, self.penalty_steps))
            metrics |= self.update_edits(batch.obs[SEEN], weight)
        return metrics

    def update_edits(self, cond: Tensor, penalty: float) -> Metrics:
        """Take one step of the edits of drawn chunks at cond [B C].

        Raises:
            RobopolicyError: as `update_critic`.
        """
        self.checks.warn()
        noise = torch.randn((len(cond), 1, *self.policy.noise_shape[1:]), generator=self.generator).to(self.device)
        with torch.no_grad():
            chunk = self.policy.draw(cond, noise)[:, 0]
            before = self.q(cond, chunk)  # [E B]
        edit = self.learned.edits(cond, chunk)
        moved = torch.cat([chunk[:, : self.played] + edit, chunk[:, self.played :]], dim=1)
        gain = self.q(cond, moved) - before
        deviation = gain.std(dim=0, correction=0)
        size = (edit / self.policy.bound).square().mean()
        norm = self._step_actor(penalty * size - (gain.mean(dim=0) - self.confidence * deviation).mean())
        return {
            "actor/gain": float(gain.detach().mean()), "actor/gain_deviation": float(deviation.detach().mean()),
            "actor/edit": float(size.detach().sqrt()), "actor/penalty": penalty, "actor/grad_norm": float(norm),
        }  # fmt: skip

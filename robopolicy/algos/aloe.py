"""Advantage-weighted imitation under a pessimistic chunk critic (after ALOE, whose code is not public).

The policy imitates executed chunks. Its own chunks are weighted by their advantage under a pessimistic ensemble,
human corrections and demonstrations by fixed weights. So the policy stays within the executed actions, and learns only
from those that differ: exploration is the policy's own noise, which one step of a flow does not have.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from robopolicy.algos.chunk_critic import ChunkLearner
from robopolicy.buffers.chunk_replay_buffer import DEMONSTRATION, HUMAN, POLICY, REWIND, ChunkBatch
from robopolicy.config.schema import Count, NonNegative, Positive
from robopolicy.core.types import Metrics
from robopolicy.policies.base import SEEN, Policy


class ALOE(ChunkLearner):
    """Imitates executed chunks with weight min(exp((Q − V)/(β·σ)), clip) where the policy drove.

    Q is the ensemble's lower bound for the chunk. V is its mean over the policy's own chunks at the same observation,
    or, with `expectile`, learned from the executed chunks. σ is the deviation of Q − V over the batch's chunks that
    the policy drove. Advantages are small against Q: without σ nearly all chunks would weigh the same.

    Args:
        beta: β, in deviations of the advantage. weight_clip: bound of the weights.
        samples: chunks of the policy that make up V, where `expectile` is None.
        human_weight, demo_weight: weights of steps that a human drove, and of demonstrations without a driver column.
            Rewinds are never imitated; the critic learns from everything.
        policy_delay: critic updates per policy update.
        target_subset, pessimism, **options: see ChunkLearner.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        beta: Positive = 1.0,
        weight_clip: Positive = 20.0,
        samples: Count = 4,
        human_weight: NonNegative = 2.0,
        demo_weight: NonNegative = 1.0,
        policy_delay: Count = 2,
        target_subset: Count | None = None,
        pessimism: NonNegative | None = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(policy, target_subset=target_subset, pessimism=pessimism, **options)
        self.beta, self.weight_clip, self.samples, self.policy_delay = beta, weight_clip, samples, policy_delay
        weights = {POLICY: 0.0, HUMAN: human_weight, REWIND: 0.0, DEMONSTRATION: demo_weight}
        self.weights = torch.tensor([weights[driver] for driver in sorted(weights)], device=self.device)

    def update(self, batch: ChunkBatch, *, learned_steps: int | None) -> Metrics:
        """Take one critic step and, every `policy_delay`-th time, one policy step unless the update is critic-only."""
        self.updates += 1
        batch = batch.to(self.device)
        metrics = self.update_critic(batch)
        if learned_steps is not None and self.updates % self.policy_delay == 0:
            cond, chunk = batch.obs[SEEN], self.executed(batch)
            advantage = self.advantage(cond, chunk)
            weight = self.weight(advantage, batch)
            metrics |= self.imitate(cond, chunk, weight)
            total = weight.sum()
            metrics |= {
                "actor/advantage": float(advantage.mean()),
                "actor/advantage_deviation": float(self.deviation(advantage, batch)),
                "actor/weight": float(total / batch.keep.sum()),
                # 1: all steps weigh the same, 1/n: one step of n has all the weight
                "actor/effective_share": float(total**2 / (batch.keep.sum() * weight.square().sum()).clamp_min(1e-12)),
            }
        return metrics

    @torch.no_grad()
    def advantage(self, cond: Tensor, chunk: Tensor) -> Tensor:
        """Estimate the advantage [B], lower bound − V, of chunks [B H Da] at cond [B C]; see the class for V."""
        if self.value is not None:
            own = self.value(cond[:, : self.policy.cond_dim])
        else:
            own = self.lower(self.q(cond, self.sample(cond, self.samples))).mean(dim=1)
        return self.lower(self.q(cond, chunk)) - own

    def deviation(self, advantage: Tensor, batch: ChunkBatch) -> Tensor:
        """Return σ [] of the advantages [B] of chunks that begin under the policy; 0 where they are fewer than two."""
        own = advantage[batch.driver[:, 0] == POLICY]
        return own.std(correction=0) if len(own) > 1 else advantage.new_zeros(())

    def weight(self, advantage: Tensor, batch: ChunkBatch) -> Tensor:
        """Return the weight [B H] of each step; 0 past an episode's end, 1 for the policy's where σ is 0."""
        sigma = self.deviation(advantage, batch)
        ratio = torch.where(sigma > 0, advantage / (self.beta * sigma), 0.0)
        earned = ratio.exp().clamp(max=self.weight_clip)
        weight = torch.where(batch.driver == POLICY, earned[:, None], self.weights[batch.driver])
        return weight * batch.keep

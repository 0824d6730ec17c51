"""Policy-agnostic reinforcement learning (PA-RL, Mark et al. 2024): improve chunks by the critic, then imitate them.

No gradient passes through the policy's sampling, so any policy with an imitation loss fits. Differences from the
published code: chunks replace single actions. One set of samples serves the critic's targets and the imitation. A
gradient step that lowers Q is undone. Samples come from an average of the weights that learn (`average`). Samples of
the raw weights hold the errors of their latest steps, and imitation feeds these back until the policy collapses.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from robopolicy.algos.chunk_critic import ChunkLearner
from robopolicy.buffers.chunk_replay_buffer import ChunkBatch
from robopolicy.config.schema import Count, Natural, NonNegative, Positive
from robopolicy.core.errors import ConfigError
from robopolicy.core.types import Metrics, Obs
from robopolicy.policies.base import SEEN, Policy


class PARL(ChunkLearner):
    """Samples chunks, keeps the best by the ensemble's mean Q, climbs Q from these, and imitates the best of all.

    Args:
        samples: chunks of the policy that are drawn at a state.
        keep: number of the best of them that are improved.
        climb_steps, climb_size: gradient steps, and their length, root mean square over the executed slice in
            normalised units; halved for a chunk whenever one would lower its Q.
        temperature: of the softmax over Q by which exploration chooses among the improved chunks; 0: the best.
        policy_delay: critic updates per policy update.
        **options: see ChunkLearner.

    Raises:
        ConfigError: more chunks to keep than samples.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        samples: Count = 32,
        keep: Count = 10,
        climb_steps: Natural = 3,
        climb_size: Positive = 0.05,
        temperature: NonNegative = 0.0,
        policy_delay: Count = 2,
        **options: Any,
    ) -> None:
        if keep > samples:
            raise ConfigError(f"algo.keep={keep}: expected at most algo.samples={samples}")
        super().__init__(policy, **options)
        self.samples, self.keep = samples, keep
        self.temperature, self.policy_delay = temperature, policy_delay
        self.climb_steps, self.climb_size = climb_steps, climb_size

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> Tensor:
        """Return chunks [B H Da] in physical units: the policy's own while warming up, then improved ones."""
        cond = obs[SEEN].to(self.device)
        if warmup:
            return self.to_env(self.sample(cond, 1)[:, 0], obs[SEEN].device)
        chunk, q = self.improve(cond)
        chosen = q.argmax(dim=1)
        if self.temperature:
            share = (q / self.temperature).softmax(dim=1).cpu()
            chosen = torch.multinomial(share, 1, generator=self.generator)[:, 0].to(chosen.device)
        return self.to_env(_pick(chunk, chosen), obs[SEEN].device)

    def update(self, batch: ChunkBatch, *, learned_steps: int | None) -> Metrics:
        """Take one critic step and, every `policy_delay`-th time, one policy step.

        In a critic-only update the policy is unchanged, and the target uses its own chunk.
        """
        self.updates += 1
        batch = batch.to(self.device)
        cond = batch.next_obs[SEEN]
        if learned_steps is None:
            return self.update_critic(batch, self.sample(cond, 1)[:, 0])
        chunk, q = self.improve(cond)
        best = _pick(chunk, q.argmax(dim=1))
        metrics = self.update_critic(batch, best)
        if self.updates % self.policy_delay == 0:
            goes_on = batch.discount > 0  # no action is taken where an episode has ended
            metrics |= self.imitate(cond, best, goes_on[:, None].expand(best.shape[:2]).to(best.dtype))
            metrics |= {"actor/q": float(q.amax(dim=1).mean())}
        return metrics

    def improve(self, cond: Tensor) -> tuple[Tensor, Tensor]:
        """Sample chunks at cond [B C], and improve the best `keep` of them.

        Returns:
            Chunks [B k H Da] and their mean Q [B k]. The best is no worse than any sample.
        """
        chunk = self.sample(cond, self.samples)
        with torch.no_grad():
            q = self.q(cond, chunk).mean(dim=0)  # [B m]
        best = q.topk(self.keep, dim=1).indices[..., None, None].expand(-1, -1, *chunk.shape[2:])
        return self.climb(cond, chunk.gather(1, best))

    def climb(self, cond: Tensor, chunk: Tensor) -> tuple[Tensor, Tensor]:
        """Improve chunks [B k H Da] by gradient steps on Q; return them and their Q [B k].

        Chunks stay within the limits and, if they start there, within the demonstrated range (±1): Q is unreliable
        outside the replay data.
        """
        low = torch.minimum(chunk, self.low.clamp(min=-1.0))
        high = torch.maximum(chunk, self.high.clamp(max=1.0))
        q, slope = self._slope(cond, chunk)
        size = torch.full_like(q, self.climb_size)
        for _ in range(self.climb_steps):
            tried = torch.clamp(chunk + size[..., None, None] * slope, low, high)
            tried_q, tried_slope = self._slope(cond, tried)
            better = tried_q >= q
            size = torch.where(better, size, size / 2)
            q = torch.where(better, tried_q, q)
            chunk, slope = (torch.where(better[..., None, None], a, b) for a, b in
                            ((tried, chunk), (tried_slope, slope)))  # fmt: skip
        return chunk, q

    @torch.enable_grad()
    def _slope(self, cond: Tensor, chunk: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the mean Q [B k] of chunks [B k H Da], and its gradient scaled to root mean square 1 over Ta."""
        chunk = chunk.detach().requires_grad_()
        q = self.q(cond, chunk).mean(dim=0)
        (grad,) = torch.autograd.grad(q.sum(), chunk)
        size = grad[:, :, : self.played].square().mean(dim=(2, 3), keepdim=True).sqrt()
        return q.detach(), grad / size.clamp_min(1e-8)


def _pick(chunk: Tensor, index: Tensor) -> Tensor:
    """Select the chunks [B H Da] at index [B] of [B k H Da]."""
    return chunk[torch.arange(len(chunk), device=chunk.device), index]

"""Say once, in the log, why a chunk learner has nothing to learn from, and what to change."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from robopolicy.buffers.chunk_replay_buffer import ChunkBatch
from robopolicy.policies.denoising import ChunkDenoiser
from robopolicy.policies.diffusion import DiffusionPolicy
from robopolicy.policies.steered import SteeredPolicy

_log = logging.getLogger(__name__)

_SEEN = 100  # updates before anything is said: a few thousand windows
_RATE = 0.02  # of the running means of the critic's statistics


class ChunkChecks:
    """Looks at the batches and the critic of a chunk learner, and warns once of each fault.

    The faults: no difference between rewards and no episode that terminates; no episode as long as an executed chunk;
    heads that disagree about Q by more than Q differs between observations; a chain of one step without noise.

    Args:
        policy: the policy that learns.
    """

    def __init__(self, policy: ChunkDenoiser | SteeredPolicy) -> None:
        self.played = policy.spec.n_action_steps
        self.said = set[str]()
        self.updates, self.longest = 0, 0
        self.lowest, self.highest, self.terminated = float("inf"), float("-inf"), False
        self.disagreement, self.spread = 0.0, 0.0
        if len(policy.times) == 1 and len(policy.noise_shape) == 2:
            self.once(
                "one step",
                "policy.sampling.sampling_steps: found 1 without noise, expected 2 or more. One step returns nearly "
                "the mean chunk of an observation whatever its noise, so the policy explores nothing by itself. Set "
                "policy.sampling=%s",
                _remedy(policy),
            )

    def once(self, fault: str, message: str, *values: object) -> None:
        """Log a warning, unless this fault was logged before."""
        if fault not in self.said:
            self.said.add(fault)
            _log.warning(message, *values)

    @torch.no_grad()
    def see(self, batch: ChunkBatch, q: Tensor) -> None:
        """Take in a batch and its Q [E B]."""
        self.updates += 1
        self.longest = max(self.longest, int(batch.keep[:, : self.played].sum(dim=1).max()))
        self.lowest = min(self.lowest, float(batch.reward.min()))
        self.highest = max(self.highest, float(batch.reward.max()))
        self.terminated |= bool((batch.discount == 0).any())
        rate = max(_RATE, 1.0 / self.updates)
        self.disagreement += rate * (float(q.std(dim=0, correction=0).mean()) - self.disagreement)
        self.spread += rate * (float(q.mean(dim=0).std(correction=0)) - self.spread)

    def warn(self) -> None:
        """Log the faults that were seen; call it when the policy is to learn. The first batches are too few to say."""
        if self.updates < _SEEN:
            return
        if self.longest < self.played:
            self.once(
                "long chunk",
                "n_action_steps: found %d, expected at most the %d steps of the longest episode in replay. No chunk is "
                "executed whole. Imitate a base with fewer n_action_steps, or raise task.horizon.",
                self.played, self.longest,
            )  # fmt: skip
        if self.lowest == self.highest and not self.terminated:
            self.once(
                "no success",
                "replay: all rewards of %d batches are %.3g and no episode terminates, so Q has nothing to tell chunks "
                "apart. Give demonstrations that succeed (dataset=), raise loop.warmup_steps, or begin with a base "
                "that succeeds sometimes.",
                self.updates, self.highest,
            )  # fmt: skip
        elif self.disagreement > self.spread:
            self.once(
                "disagreement",
                "critic/disagreement: the heads differ by %.3g, more than Q does between observations (critic/spread "
                "%.3g). Its choice of chunks is chance. Raise loop.critic_only_updates or loop.warmup_steps, or lower "
                "algo.critic_lr.",
                self.disagreement, self.spread,
            )  # fmt: skip


def _remedy(policy: ChunkDenoiser | SteeredPolicy) -> str:
    """Return the samplers to set, of those that this kind of policy takes."""
    more = "{sampling_steps: 4} unless algo=distill made the policy."
    if isinstance(policy, SteeredPolicy):  # its chain draws no noise after its start
        return more
    if isinstance(policy, DiffusionPolicy):
        return "{sampler: ddim, eta: 1.0, sampling_steps: 4}, or {sampler: ddpm, sampling_steps: 4}."
    return "{sampling_steps: 1, noise_level: 0.5}, or " + more

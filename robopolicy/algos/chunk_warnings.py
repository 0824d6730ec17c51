"""Warn once of replay data and critics from which off-policy learning of chunks gets nothing."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from robopolicy.buffers.chunk_replay_buffer import DEMONSTRATION, ChunkBatch

_log = logging.getLogger(__name__)

BATCHES = 1_000  # critic updates before the replay data are judged
DRAWS = 300  # policy updates before the critics' agreement is judged
_CHANCE = 1.5  # agreement up to this multiple of the agreement of independent heads is no more than chance


class ChunkWarnings:
    """Watches batches and the share of chains that count, and warns once of each fault, with its remedy.

    Args:
        played: Ta, executed steps of a chunk. heads: E of the critic.
    """

    def __init__(self, played: int, heads: int) -> None:
        self.played, self.chance = played, 2.0 ** (1 - heads)
        self.batches = self.draws = 0
        self.success = self.whole = False
        self.agreement = 0.0  # sum over draws

    def see(self, batch: ChunkBatch) -> None:
        """Look at a batch; warn where, after BATCHES, none held a success or a whole chunk."""
        self.batches += 1
        if not self.success:
            self.success = bool((batch.success | (batch.driver == DEMONSTRATION).any(1)).any())
        if not self.whole:
            self.whole = bool(batch.keep[:, : self.played].all(dim=1).any())
        if self.batches != BATCHES:
            return
        if not self.success:
            _log.warning(
                "replay: no episode of %s batches succeeded, so nothing is imitated and Q hardly has a reward to learn "
                "from. Give demonstrations (dataset=), a longer loop.warmup_steps, or a better base.", f"{BATCHES:,}",
            )  # fmt: skip
        if not self.whole:
            _log.warning(
                "replay: no chunk of %s batches was executed whole: episodes are shorter than n_action_steps=%d, and Q "
                "never sees all of a chunk. Train the base with fewer n_action_steps.", f"{BATCHES:,}", self.played,
            )  # fmt: skip

    def judge(self, counted: Tensor) -> None:
        """Look at which chains of a draw count [D]; warn where, after DRAWS, they are none or no more than chance."""
        self.draws += 1
        self.agreement += float(counted.to(torch.float32).mean())
        if self.draws != DRAWS:
            return
        if not self.agreement:
            _log.warning(
                "critics: the heads disagreed about every chain of %d draws, so the policy is still the base. Give the "
                "critic more to learn from (loop.critic_only_updates, loop.warmup_steps, dataset=), fewer "
                "algo.critic.heads, or set algo.agreement=false.", DRAWS,
            )  # fmt: skip
        elif self.agreement <= _CHANCE * self.chance * DRAWS:
            _log.warning(
                "critics: the heads agree about %.1f%% of chains after %d draws, independent heads would about %.1f%%: "
                "agreement does not rise. Raise loop.critic_only_updates or loop.updates_per_step, give "
                "demonstrations (dataset=), or look whether rewards are ever above 0.",
                100 * self.agreement / DRAWS, DRAWS, 100 * self.chance,
            )  # fmt: skip

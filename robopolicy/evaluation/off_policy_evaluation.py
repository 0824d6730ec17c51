"""Decide from recorded episodes alone whether a policy is better than its base: bootstrapped fitted Q evaluation.

Q of each policy is learned by TD from the recorded chunks, and read at the episodes' first frames. Each head learns
from its own resample of the episodes, so the heads' spread is that of the data (Hao et al. 2021, bootstrapping fitted
Q-evaluation). Both policies share resamples, batches and initial weights, so the common part of the error cancels.
The errors of Q at chunks that no episode shows are not in the interval.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from robopolicy.buffers.chunk_replay_buffer import ChunkBatch, ChunkReplay
from robopolicy.buffers.recorded_rollouts import replay_of_episodes
from robopolicy.buffers.relabeling import CHUNK
from robopolicy.buffers.replay_buffer import discount_of
from robopolicy.core.errors import ConfigError, DataError, SpecError
from robopolicy.core.types import Obs
from robopolicy.datasets.compatibility import misfits
from robopolicy.datasets.episodes import Episodes, succeeded
from robopolicy.networks.critics import CriticEnsemble
from robopolicy.policies.base import SEEN, DenoisingPolicy, Policy
from robopolicy.policies.normalizer import ACTION

FEWEST = 20  # episodes that a decision needs, and successes and failures among them
_WIDTH, _BATCH, _SAMPLES = 64, 256, 4  # of the critics; transitions of an update; chunks of a policy at each frame
_LR, _TAU = 1e-3, 0.02


@dataclass(frozen=True)
class GateResult:
    """The decision about a candidate; values are discounted returns from the episodes' first frames.

    `accepted`: `low` is above 0. `gain`: the candidate's value minus the base's. `low`, `high`: one-sided bounds of the
    gain at `level` each. `episodes`: that it was judged on.
    """

    accepted: bool
    gain: float
    low: float
    high: float
    level: float
    episodes: int


def gate(
    candidate: Policy,
    base: Policy,
    episodes: Episodes,
    *,
    level: float = 0.9,
    seed: int = 0,
    heads: int = 20,
    updates: int = 2_000,
) -> GateResult:
    """Accept `candidate` where fitted Q evaluation finds it better than `base` with confidence `level`.

    Args:
        episodes: recorded ones that neither policy learned from, with failures and successes.
        heads: resamples of the episodes. updates: TD steps of each policy's critic.

    Raises:
        SpecError: a policy does not fit the episodes, or the chunks of both differ.
        DataError: fewer than FEWEST episodes, or only failures or only successes among them.
    """
    raise NotImplementedError

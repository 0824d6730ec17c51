"""Batches drawn together: each holds its share of every source, rows stay whole."""

from __future__ import annotations

import torch

from robopolicy.buffers.replay_buffer import Batch, split_batches
from robopolicy.core.types import STATE


def numbered(first: int, count: int) -> Batch:
    """Transitions whose every field tells their number."""
    n = torch.arange(first, first + count, dtype=torch.float32)
    return Batch({STATE: n[:, None] + 0.1}, n[:, None] + 0.2, n + 0.3, n + 0.4, {STATE: n[:, None] + 0.5})


def test_every_batch_has_its_share_of_every_source():
    first, second = split_batches([numbered(0, 6), numbered(100, 2)], 2)
    assert first.reward.sub(0.3).round().tolist() == [0, 1, 2, 100]
    assert second.reward.sub(0.3).round().tolist() == [3, 4, 5, 101]
    for batch in (first, second):
        number = batch.reward - 0.3
        torch.testing.assert_close(batch.obs[STATE][:, 0], number + 0.1)
        torch.testing.assert_close(batch.action[:, 0], number + 0.2)
        torch.testing.assert_close(batch.discount, number + 0.4)
        torch.testing.assert_close(batch.next_obs[STATE][:, 0], number + 0.5)


def test_one_source_in_one_batch_is_itself():
    (batch,) = split_batches([numbered(5, 3)], 1)
    assert batch.reward.sub(0.3).round().tolist() == [5, 6, 7]

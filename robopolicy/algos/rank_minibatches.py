"""Give each rank its own samples of minibatches that are those of one rank with all envs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from robopolicy.algos.advantage_estimator import Places
from robopolicy.algos.returns import minibatches
from robopolicy.utils import ranks


class MinibatchSizes(Protocol):
    """See ActorConfig."""

    @property
    def epochs(self) -> int: ...
    @property
    def minibatch(self) -> int: ...
    @property
    def minibatches(self) -> int | None: ...


def rank_minibatches(
    samples: Tensor,
    chunks: int,
    places: Places | None,
    sizes: MinibatchSizes,
    *,
    whole: int,
    generator: torch.Generator,
) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """Yield (part of `samples`, part of `chunks` rows, whether no rank has samples), over all epochs.

    All ranks draw the same order of the samples of all ranks, and each yields its own, perhaps none. So a mean over
    ranks, weighted by their numbers, is the mean over the minibatch that one rank would draw.

    Args:
        samples: [M] int64 in rising order, the same number for each of this rank's chunks, of which it may have none.
        places: of this rank's chunks; None: there is one rank.
        whole: samples of this rank's whole rollout, see `minibatches`.
    """
    if places is None:
        count = sizes.minibatches or round(whole / sizes.minibatch)
        drawn = minibatches(samples, chunks, whole=whole, count=count, epochs=sizes.epochs, generator=generator)
        for rows, some in drawn:
            yield rows, some, not len(rows)
        return
    # A rank without chunks, whose physics failed, knows neither number.
    each, of_chunk = max(ranks.gather([len(samples) // chunks, whole // chunks] if chunks else [0, 0]))
    whole = of_chunk * places.whole
    own = torch.arange(len(samples), device=samples.device)
    sample_at = _table(places.rows[own // each] * each + own % each, samples, places.whole * each)
    chunk_at = _table(places.rows, torch.arange(chunks, device=samples.device), places.whole)
    count = sizes.minibatches or round(whole / sizes.minibatch)
    everything = torch.arange(len(sample_at), device=samples.device)
    for rows, some in minibatches(
        everything, places.whole, whole=whole, count=count, epochs=sizes.epochs, generator=generator
    ):
        mine, here = sample_at[rows], chunk_at[some]
        yield mine[mine >= 0], here[here >= 0], not len(rows)


def _table(places: Tensor, values: Tensor, size: int) -> Tensor:
    """Return [size] int64 with `values` at `places`, and -1 where other ranks have theirs."""
    return torch.full((size,), -1, dtype=torch.int64, device=values.device).scatter_(0, places, values)

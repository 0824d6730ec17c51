"""Mix batches of several replay buffers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robopolicy.buffers.replay_buffer import Replay

_AT_ONCE = 8  # batches sampled together: where observations are small, many windows cost little more than few


class Source(NamedTuple):
    """A replay buffer and its transitions in each batch."""

    replay: Replay
    size: int


class BatchSampler:
    """Draws batches to which each source contributes a fixed number of transitions."""

    def __init__(self, sources: list[Source], generator: torch.Generator) -> None:
        self.sources, self.generator = sources, generator

    def draw(self, count: int) -> Iterator[Any]:
        """Yield `count` batches, rows in the order of the sources."""
        for first in range(0, count, _AT_ONCE):
            many = min(_AT_ONCE, count - first)
            parts = [s.replay.sample(many * s.size, self.generator) for s in self.sources if s.size]
            yield from split_batches(parts, many)


def split_batches[Rows: tuple[Any, ...]](parts: list[Rows], count: int) -> list[Rows]:
    """Split samples into `count` batches, each with an equal share [B/count] of every part [B], in their order."""

    def mix(values: list[Any]) -> Any:
        if isinstance(values[0], Tensor):
            return torch.cat([v.unflatten(0, (count, len(v) // count)) for v in values], dim=1).unbind()
        mixed = {k: mix([obs[k] for obs in values]) for k in values[0]}
        return [{k: v[i] for k, v in mixed.items()} for i in range(count)]

    columns = [mix(list(column)) for column in zip(*parts, strict=True)]
    return [type(parts[0])(*row) for row in zip(*columns, strict=True)]

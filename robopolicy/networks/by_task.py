"""A first layer with weights of its own for each task, beside common ones: which of the things in a scene a task is
about is then one product away, where an MLP that is told the task's number has to find it out.

`by_task` writes the layout out, `told_product` multiplies by it without: an eighth of the products of seven tasks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class Told(NamedTuple):
    """Of what a layer reads: D numbers, then which of T tasks it is (one for it, else zero), then the rest.

    Its weight has (1 + T)·D + T + R rows: for the D numbers, for them again for each task, for the task, for the rest.
    """

    seen: int  # D
    tasks: int  # T

    @property
    def own(self) -> int:
        """Where in the weight the rows of the tasks end."""
        return self.seen * (1 + self.tasks)


def by_task(x: Tensor, task: Tensor, tasks: int) -> Tensor:
    """[B (1+T)·D] from x [B D] and task [B] of T: x, then T places for it, all zero but the task's own."""
    own = nn.functional.one_hot(task, tasks).to(x.dtype)[:, :, None] * x[:, None]
    return torch.cat([x, own.flatten(1)], dim=1)


def told_product(x: Tensor, weight: Tensor, told: Told) -> Tensor:
    """[… B out] from x [B D+T+R] and weight [… (1+T)·D+T+R out]; see Told.

    Samples of a task are multiplied by its rows together, so that no product is with the zeros of another's.
    """
    seen, number = x[:, : told.seen], x[:, told.seen : told.seen + told.tasks].argmax(1)
    order = number.argsort()
    parts = seen[order].split(torch.bincount(number, minlength=told.tasks).tolist())
    rows = weight[..., told.seen : told.own, :].split(told.seen, dim=-2)
    own = torch.cat([part @ row for part, row in zip(parts, rows, strict=True) if len(part)], dim=-2)
    common = torch.cat([weight[..., : told.seen, :], weight[..., told.own :, :]], dim=-2)
    return x @ common + own.index_select(-2, order.argsort())


class ToldLinear(nn.Linear):
    """nn.Linear of the layout that Told describes, from [B D+T+R]."""

    def __init__(self, told: Told, rest: int, out_features: int) -> None:
        super().__init__(told.own + told.tasks + rest, out_features)
        self.told = told

    def forward(self, x: Tensor) -> Tensor:
        return told_product(x, self.weight.T, self.told) + self.bias

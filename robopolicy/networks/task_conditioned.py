"""Linear layer with shared and per-task weights.

An MLP with the task's number as an input must learn which objects matter to each task. Per-task weights express this in
one product. `by_task` writes the layout out, with zeros for the other tasks. `task_product` skips these zeros: it
multiplies by 2·D rows of the weight for each sample instead of (1 + T)·D.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class TaskLayout(NamedTuple):
    """Layout of a layer's input: D features, the one-hot task of T, and R other numbers.

    The weight has (1 + T)·D + T + R rows: shared ones for the D features, D for each task, T for the task, R others.
    """

    seen: int  # D
    tasks: int  # T

    @property
    def own(self) -> int:
        """Index in the weight where the rows of the tasks end."""
        return self.seen * (1 + self.tasks)


def by_task(x: Tensor, task: Tensor, tasks: int) -> Tensor:
    """Return [B (1+T)·D] from x [B D] and task [B] of T: x, then T blocks, all zero except the task's."""
    own = nn.functional.one_hot(task, tasks).to(x.dtype)[:, :, None] * x[:, None]
    return torch.cat([x, own.flatten(1)], dim=1)


def task_product(x: Tensor, weight: Tensor, layout: TaskLayout) -> Tensor:
    """Multiply x [B D+T+R] by weight [… (1+T)·D+T+R out] to [… B out]; see TaskLayout.

    Samples of one task share a product. This suits CPUs, where products dominate the cost. On a GPU, reading the number
    of samples per task synchronises.
    """
    seen, number = x[:, : layout.seen], x[:, layout.seen : layout.seen + layout.tasks].argmax(1)
    order = number.argsort()
    parts = seen[order].split(torch.bincount(number, minlength=layout.tasks).tolist())
    rows = weight[..., layout.seen : layout.own, :].split(layout.seen, dim=-2)
    own = torch.cat([part @ row for part, row in zip(parts, rows, strict=True)], dim=-2)
    common = torch.cat([weight[..., : layout.seen, :], weight[..., layout.own :, :]], dim=-2)
    return x @ common + own.index_select(-2, order.argsort())


class TaskLinear(nn.Linear):
    """nn.Linear over an input [B D+T+R]; see TaskLayout."""

    def __init__(self, layout: TaskLayout, rest: int, out_features: int) -> None:
        super().__init__(layout.own + layout.tasks + rest, out_features)
        self.layout = layout

    def forward(self, x: Tensor) -> Tensor:
        return task_product(x, self.weight.T, self.layout) + self.bias

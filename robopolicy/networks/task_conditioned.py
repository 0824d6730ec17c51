"""A first layer with weights of its own for each task, beside common ones: which of the things in a scene a task is
about is then one product away, where an MLP that is told the task's number has to find it out.

`by_task` writes the layout out, zeros for the other tasks included; `task_product` multiplies by it without them: by
2·D rows of the weight for each sample instead of (1 + T)·D.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class TaskLayout(NamedTuple):
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


def task_product(x: Tensor, weight: Tensor, layout: TaskLayout) -> Tensor:
    """[… B out] from x [B D+T+R] and weight [… (1+T)·D+T+R out]; see TaskLayout.

    Samples of a task are multiplied by its rows together. Made for CPUs, where products are what takes time: how many
    samples each task has is read back from a GPU, which waits for that.
    """
    seen, number = x[:, : layout.seen], x[:, layout.seen : layout.seen + layout.tasks].argmax(1)
    order = number.argsort()
    parts = seen[order].split(torch.bincount(number, minlength=layout.tasks).tolist())
    rows = weight[..., layout.seen : layout.own, :].split(layout.seen, dim=-2)
    own = torch.cat([part @ row for part, row in zip(parts, rows, strict=True)], dim=-2)
    common = torch.cat([weight[..., : layout.seen, :], weight[..., layout.own :, :]], dim=-2)
    return x @ common + own.index_select(-2, order.argsort())


class TaskLinear(nn.Linear):
    """nn.Linear of the layout that TaskLayout describes, from [B D+T+R]."""

    def __init__(self, layout: TaskLayout, rest: int, out_features: int) -> None:
        super().__init__(layout.own + layout.tasks + rest, out_features)
        self.layout = layout

    def forward(self, x: Tensor) -> Tensor:
        return task_product(x, self.weight.T, self.layout) + self.bias

"""Sight: what the frozen prefix of a trained vision-language-action policy makes of observations, for flat networks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from robopolicy.networks.by_task import by_task
from robopolicy.networks.prefix import Prefix
from robopolicy.policies.base import SEEN
from robopolicy.spec import PolicySpec
from robopolicy.types import TASK, Obs


class Sight(nn.Module):
    """cond [B (1 + T)·S] from *normalised* observations [B To ...]: the prefix's summary of S numbers, brought to one
    scale, and once more in places of its own for each of T tasks (see `by_task`); [B S] where there is one task.

    The summary leaves out the tokens, which need attention to be read. The prefix never learns here.

    Args:
        prefix: makes the Prefix from the spec.

    Raises:
        SpecError: as Prefix.
    """

    def __init__(self, spec: PolicySpec, *, prefix: Callable[..., Prefix]) -> None:
        super().__init__()
        self.prefix = prefix(spec).requires_grad_(False)
        self.tasks = len(spec.tasks) if TASK in spec.observation and len(spec.tasks) > 1 else 0
        self.out_dim = self.prefix.summary_dim * (1 + self.tasks)

    @torch.no_grad()
    def summary(self, obs: Obs) -> Tensor:
        """[B S] of normalised observations [B To ...]."""
        size = self.prefix.summary_dim
        return nn.functional.layer_norm(self.prefix(obs)[:, :size], (size,))

    def forward(self, obs: Obs, *, augment: bool = False) -> Tensor:
        """cond [B C] of normalised observations, or of summaries, `seen` [B 1 S], with the task's number [B To].

        Nothing is augmented, since a frozen prefix would learn nothing from that.
        """
        summary = obs[SEEN][:, -1] if SEEN in obs else self.summary(obs)
        return by_task(summary, obs[TASK][:, -1], self.tasks) if self.tasks else summary

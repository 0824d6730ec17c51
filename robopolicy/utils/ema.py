"""Average a policy's parameters exponentially; the average is evaluated, saved and deployed."""

from __future__ import annotations

import copy

import torch
from torch import nn


class EMA:
    """`average` follows `model`; its decay grows with the number of updates, so that early weights are forgotten.

    decay(n) = min(decay, 1 − (1 + n)^−power): after n updates the average spans about n^power of them (Karras et al.
    2024 discuss such power-function averages; 0.75 is Diffusion Policy's choice). Buffers that are saved are the
    model's newest, such as the statistics of batch normalisation. Others are constants (tables), copied once.
    """

    def __init__(self, model: nn.Module, *, decay: float = 0.999, power: float = 0.75) -> None:
        self.average = copy.deepcopy(model).requires_grad_(False).eval()
        self.decay, self.power = decay, power
        pairs = zip(self.average.parameters(), model.parameters(), strict=True)
        self._pairs = [(a, p) for a, p in pairs if p.requires_grad]
        own, saved = dict(self.average.named_buffers()), model.state_dict(keep_vars=True)
        self._buffers = [(own[name], value) for name, value in saved.items() if name in own]

    def decay_at(self, updates: int) -> float:
        """Return the decay of the update that follows `updates` earlier ones."""
        return min(self.decay, 1.0 - (1.0 + updates) ** -self.power)

    @torch.no_grad()
    def update(self, updates: int) -> None:
        """average ← decay · average + (1 − decay) · model; its buffers ← the model's."""
        averages, parameters = (list(side) for side in zip(*self._pairs, strict=True))
        torch._foreach_lerp_(averages, parameters, 1.0 - self.decay_at(updates))
        if self._buffers:
            averages, buffers = (list(side) for side in zip(*self._buffers, strict=True))
            torch._foreach_copy_(averages, buffers)

"""Help with PyTorch's optimisers: schedules, weight decay groups and state."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from robopolicy.core.errors import CheckpointError, RobopolicyError


def cosine_with_warmup(step: int, *, steps: int, warmup: int) -> float:
    """Return the factor on the learning rate of update `step` (from 0): linear from 0 to 1, then half a cosine to 0."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))


def decay_groups(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Return parameter groups: weight decay for those of two or more axes, none for biases and gains of one.

    Those of an ensemble have an axis of heads, so its biases and gains decay too.
    """
    trained = [p for p in parameters if p.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]


def descend(
    loss: Tensor, params: list[Tensor], optimizer: torch.optim.Optimizer, *, most: float, update: int, name: str
) -> Tensor:
    """Take one step down `loss`, with the gradient of `params` scaled down to the norm `most`; return its norm.

    Gradients of other parameters are not computed. A fused optimiser needs each gradient in its parameter's memory
    layout, which `backward` gives and `torch.autograd.grad` does not.

    Raises:
        RobopolicyError: loss or gradient is not finite; the weights are unchanged. Names `algo.<name>_lr`.
    """
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss, inputs=params)
    norm = nn.utils.clip_grad_norm_(params, most)
    if not bool(torch.isfinite(loss + norm)):
        raise RobopolicyError(
            f"{name}: loss {float(loss.detach()):.3g} and gradient norm {float(norm):.3g} at update {update} are not "
            f"both finite. Look for NaN in rewards, actions and the base's normaliser, or lower algo.{name}_lr."
        )
    optimizer.step()
    return norm


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Tensor]]:
    """Return the per-parameter tensors keyed by position as a string: JSON has no integer keys."""
    return {str(i): dict(values) for i, values in optimizer.state_dict()["state"].items()}


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, dict[str, Tensor]]) -> None:
    """Load the result of `optimizer_state`.

    Raises:
        CheckpointError: the state is of other parameters: PyTorch would write beyond them.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for i, values in state.items():
        shapes = {tuple(v.shape) for v in values.values() if v.ndim}
        if int(i) >= len(parameters) or shapes - {tuple(parameters[int(i)].shape)}:
            found = tuple(parameters[int(i)].shape) if int(i) < len(parameters) else None
            raise CheckpointError(
                f"optimizer: parameter {i} was saved with state of shapes {sorted(shapes)}, this run's has {found}. "
                "Resume with the version and config that it was saved under, or give a new run_dir."
            )
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {int(i): v for i, v in state.items()}})


@torch.no_grad()
def copy_into(parameters: list[Tensor], saved: list[Tensor]) -> None:
    """Copy saved tensors, which may be on another device, into as many parameters."""
    for parameter, value in zip(parameters, saved, strict=True):
        parameter.copy_(value)


def steps_taken(optimizer: torch.optim.Optimizer) -> int:
    """Return how many steps an optimiser has taken, by its state."""
    return max((int(values["step"]) for values in optimizer.state.values()), default=0)

"""A bound on what the config of a stranger may allocate: refused before the memory is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from robopolicy.errors import CheckpointError
from robopolicy.untrusted import tensor_header

SHARE = 8  # bytes that building may allocate, in all, for each byte of weights: initialisation works on copies
LEAST = 2**28  # bytes that it always may
TENSORS = 200  # tensors that it may make for each weight
FEWEST = 20_000  # tensors that it always may


class _BeyondError(CheckpointError):
    """More was asked for than is allowed."""


def budget(weights: Path) -> tuple[int, int]:
    """Bytes and tensors that building a module for a file of weights may allocate.

    Raises:
        CheckpointError: no such file, or its header lies.
    """
    found = tensor_header(weights)
    size = max((entry.data_offsets[1] for entry in found.values()), default=0)
    return max(LEAST, SHARE * size), max(FEWEST, TENSORS * len(found))


@contextmanager
def allocating_at_most(limits: tuple[int, int], where: str) -> Iterator[None]:
    """Let PyTorch allocate no more than (bytes, tensors) in the block; in sum, whatever is freed.

    Raises:
        CheckpointError: more is asked for; nothing of that has been allocated. Names `where`.
    """
    with _Counting(*limits, where):
        yield


class _Counting(TorchDispatchMode):
    """Runs each operation on shapes alone before it is run."""

    def __init__(self, most_bytes: int, most_tensors: int, where: str) -> None:
        super().__init__()
        self.bytes, self.tensors, self.where = most_bytes, most_tensors, where

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self._count(func, args, kwargs)
        return func(*args, **kwargs)

    def _count(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.tensors -= 1
        name = func.__name__.partition(".")[0]
        if not name.endswith("_") and name not in _IN_PLACE:
            self.bytes -= _size(func, args, kwargs)
        if self.bytes < 0 or self.tensors < 0:
            raise _BeyondError(
                f"{self.where}: describes something far larger than the weights beside it, and is not built. Its sizes "
                "were altered, or model.safetensors is of another policy. Restore it from a copy."
            )


_IN_PLACE = {"detach", "view", "t", "transpose", "slice", "select", "expand", "alias", "unsqueeze", "squeeze"}


def _size(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> int:
    """Bytes of what `func` returns; nothing is allocated to learn it."""
    try:
        shapes = tree_map(_shape_of, args), {**tree_map(_shape_of, kwargs)}
        if "device" in kwargs or not any(isinstance(leaf, Tensor) for leaf in tree_leaves((args, kwargs))):
            shapes[1]["device"] = torch.device("meta")
        found = func(*shapes[0], **shapes[1])
    except _BeyondError:
        raise
    except Exception:  # what has no shape without its numbers (nonzero, item), or is wrong: said when it is run
        return 0
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(found) if isinstance(leaf, Tensor))


def _shape_of(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")

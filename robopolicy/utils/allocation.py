"""Bound the memory that an untrusted config may allocate; refuse before the allocation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from robopolicy.core.errors import CheckpointError
from robopolicy.core.untrusted import tensor_header

SHARE = 8  # bytes that building may allocate, in all, for each byte of weights: initialisation works on copies
LEAST = 2**28  # bytes that it always may
TENSORS = 200  # tensors that it may make for each weight
FEWEST = 20_000  # tensors that it always may
_WIDEST = 8  # bytes of a number
_SMALL = 2**14  # numbers of results that are not counted to the last one
_OF_COUNTS = (torch.ops.aten.arange, torch.ops.aten.linspace)  # as many numbers as their arguments say


class _BeyondError(CheckpointError):
    """The allocation exceeds the bound."""


def budget(weights: Path) -> tuple[int, int]:
    """Return the bytes and tensors that building a module for a file of weights may allocate.

    Raises:
        CheckpointError: no such file, or its header lies.
    """
    found = tensor_header(weights)
    size = max((entry.data_offsets[1] for entry in found.values()), default=0)
    return max(LEAST, SHARE * size), max(FEWEST, TENSORS * len(found))


@contextmanager
def allocating_at_most(limits: tuple[int, int], where: str) -> Iterator[None]:
    """Let PyTorch allocate at most (bytes, tensors) in the block, in sum, regardless of freed memory.

    Raises:
        CheckpointError: more is asked for; nothing of that has been allocated. Names `where`.
    """
    with _Counting(*limits, where):
        yield


class _Counting(TorchDispatchMode):
    """Sums the sizes of each operation's results before the call."""

    def __init__(self, most_bytes: int, most_tensors: int, where: str) -> None:
        super().__init__()
        self.bytes, self.tensors, self.where = most_bytes, most_tensors, where

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing here is compiled: PyTorch would import its compiler, for a second, to say so

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not all(result.alias_info for result in func._schema.returns):  # no view, and not in place
            self.tensors -= 1
            self.bytes -= _WIDEST * _numbers(func, args, kwargs)
            if self.bytes < 0 or self.tensors < 0:
                raise _BeyondError(
                    f"{self.where}: describes something far larger than the weights beside it, and is not built. Its "
                    "sizes were altered, or model.safetensors is of another policy. Restore it from a copy."
                )
        return func(*args, **kwargs)


def _numbers(func: Any, args: Any, kwargs: dict[str, Any]) -> int:
    """Return the count of numbers in the results, or a small bound of it.

    PyTorch derives shapes on the device "meta" without memory. For many an operation it imports its compiler to do so,
    which takes a second. Small results of tensors, and of functions whose count is an argument, are bounded without it,
    and pointwise ones counted by hand. Of others that make tensors no product is a bound: `eye(n)` has n².
    """
    leaves = tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if torch.Tag.pointwise in func.tags and tensors:
        sizes = zip_longest(*(reversed(tensor.shape) for tensor in tensors), fillvalue=1)
        return len(func._schema.returns) * math.prod(map(max, sizes))
    if tensors or func.overloadpacket in _OF_COUNTS:
        numbers = [abs(leaf) for leaf in leaves if isinstance(leaf, (int, float)) and leaf]  # sizes, or arange's step
        reach = math.prod(1 + max(number, 1 / number) for number in numbers)
        if (bound := (1 + sum(map(Tensor.numel, tensors))) ** 2 * reach) <= _SMALL:
            return int(bound)
    instead = {"device": "meta", "generator": None}
    try:
        args, kwargs = tree_map_only(Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
        results = func(*args, **{k: instead.get(k, v) for k, v in kwargs.items()})
    except (RuntimeError, TypeError, ValueError):  # the shape depends on values (nonzero), or the call is wrong
        results = args, kwargs
    return sum(leaf.numel() for leaf in tree_leaves(results) if isinstance(leaf, Tensor))

"""Bound the memory that an untrusted config may allocate; refuse before the allocation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from robopolicy.core.errors import CheckpointError
from robopolicy.core.untrusted import tensor_header

SHARE = 8  # bytes that building may allocate, in all, for each byte of weights: initialisation works on copies
LEAST = 2**28  # bytes that it always may
TENSORS = 200  # tensors that it may make for each weight
FEWEST = 20_000  # tensors that it always may


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


class _Counting(TorchFunctionMode):
    """Sums the size of each function's result before the call."""

    def __init__(self, most_bytes: int, most_tensors: int, where: str) -> None:
        super().__init__()
        self.bytes, self.tensors, self.where = float(most_bytes), most_tensors, where

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if not name.endswith("_") or name.startswith("__"):
            self.tensors -= 1
            self.bytes -= 0 if name in _VIEWS or _itself(name, args, kwargs) else _size(name, args, kwargs)
            if not self.bytes >= 0 or self.tensors < 0:
                raise _BeyondError(
                    f"{self.where}: describes something far larger than the weights beside it, and is not built. Its "
                    "sizes were altered, or model.safetensors is of another policy. Restore it from a copy."
                )
        return func(*args, **kwargs)


# In place, a property, a question or a view: nothing is allocated.
_VIEWS = {"detach", "view", "t", "transpose", "select", "expand", "unsqueeze", "squeeze", "dim", "size", "numel",
          "__getitem__", "broadcast_to", "__get__", "__set__", "storage", "untyped_storage", "data_ptr", "stride",
          "storage_offset", "element_size", "is_contiguous", "is_floating_point", "is_complex", "equal",
          "_has_compatible_shallow_copy_type"}  # fmt: skip
_SIZED = {"empty", "zeros", "ones", "full", "rand", "randn", "eye", "empty_strided", "new_empty", "new_zeros",
          "new_ones", "new_full", "normal"}  # fmt: skip
_REPEATED = {"repeat", "tile", "repeat_interleave"}
_PAIRED = {"outer", "ger", "kron", "meshgrid", "cartesian_prod", "cdist"}
_JOINED = {"cat", "concat", "stack", "hstack", "vstack"}
_CONVOLVED = {"conv1d", "conv2d", "conv3d"}
_LIKE_FIRST = {"batch_norm", "group_norm", "layer_norm"}
_WIDEST = 8  # bytes of a number


def _size(name: str, args: Any, kwargs: dict[str, Any]) -> float:
    """Bytes that a function of PyTorch returns, at most, but for some that grow with their numbers' values.

    From its arguments alone: PyTorch's own way to learn it (the meta device) imports half of its compiler.
    """
    shapes = [tuple(value.shape) for value in _tensors((*args, *kwargs.values()))]
    sizes = [math.prod(shape) for shape in shapes]
    asked = math.prod(_sizes([kwargs.get("size", ()), *args])) if name in _SIZED | _REPEATED | {"randint"} else 1
    if name in ("arange", "range", "linspace", "logspace", "randperm"):
        return _WIDEST * _steps(name, args, kwargs)
    if name == "randint":
        asked = math.prod(_sizes([kwargs.get("size", ()), *[a for a in args if isinstance(a, tuple | list)]]))
    if name in _SIZED or name == "randint":
        return _WIDEST * float(asked) ** (2 if name == "eye" and len(args) < 2 else 1)
    if name in _REPEATED:
        return _WIDEST * float(asked) * sum(sizes)
    if name in _PAIRED:
        return _WIDEST * float(math.prod(sizes))
    if name in _JOINED or not shapes:
        return _WIDEST * float(sum(sizes))
    if name in _CONVOLVED and len(shapes) > 1:
        return _WIDEST * _convolved(shapes[0], shapes[1], kwargs.get("padding", args[4] if len(args) > 4 else 0))
    if name == "linear" and len(shapes) > 1 and shapes[0]:
        return _WIDEST * float(math.prod(shapes[0][:-1]) * shapes[1][0])
    if name in _LIKE_FIRST:
        return _WIDEST * float(sizes[0])
    if name in ("matmul", "__matmul__", "mm", "bmm"):
        return _WIDEST * float(sizes[0] * (shapes[1][-1] if len(shapes) > 1 and shapes[1] else 1))
    turned = [shape[::-1] for shape in shapes]
    return _WIDEST * float(math.prod(max(at) for at in zip_longest(*turned, fillvalue=1)))  # as they are broadcast


def _itself(name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    """Return whether the function returns its first argument, or a view of it, because nothing is to be changed."""
    x = args[0] if args else None
    if not isinstance(x, Tensor):
        return False
    if name in ("reshape", "contiguous", "flatten"):
        return x.is_contiguous() and not kwargs.get("memory_format")
    same = (x.device, x.dtype, str(x.device))
    given = [*args[1:], *(v for k, v in kwargs.items() if k != "non_blocking")]
    return name == "to" and all(v is None or v is False or any(v == known for known in same) for v in given)


def _convolved(x: tuple[int, ...], weight: tuple[int, ...], padding: Any) -> float:
    """Numbers that a convolution of x [B C *size] returns, at most: one for each place, as if its stride were 1."""
    axes = len(weight) - 2
    given = padding if isinstance(padding, tuple | list) else (padding,)
    more = [p if isinstance(p, int) else max(weight) for p in given]  # "same", "valid"
    more = more * axes if len(more) == 1 else more
    places = math.prod(n + 2 * p for n, p in zip(x[len(x) - axes :], more, strict=False))
    return float(math.prod(x[: len(x) - axes - 1]) * weight[0] * places)


def _tensors(values: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [part for part in value if isinstance(part, Tensor)]
    return found


def _sizes(values: Any) -> list[int]:
    """The whole numbers among arguments, and in lists of them."""
    flat = [part for value in values for part in (value if isinstance(value, list | tuple) else [value])]
    return [abs(part) for part in flat if isinstance(part, int) and not isinstance(part, bool)]


def _steps(name: str, args: Any, kwargs: dict[str, Any]) -> float:
    if name in ("linspace", "logspace"):
        return abs(float(kwargs.get("steps", args[2] if len(args) > 2 else 0)))
    numbers = [float(a) for a in args if isinstance(a, int | float)]
    start, end = (0.0, numbers[0]) if len(numbers) == 1 else (numbers or [0.0, 0.0])[:2]
    end, step = float(kwargs.get("end", end)), numbers[2] if len(numbers) > 2 else float(kwargs.get("step", 1.0))
    return abs((end - start) / step) if step else 0.0

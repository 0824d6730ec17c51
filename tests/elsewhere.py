"""A second device for machines that have none: tensors on "meta" that hold numbers.

Inside `elsewhere()` whatever is moved to, or made on, `torch.device("meta")` is computed by the CPU, bit for bit as
there, and an operation on tensors of both devices raises, as it does with a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

HERE, ELSEWHERE = torch.device("cpu"), torch.device("meta")
MOVES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
# Indices may lie on the CPU, as with a GPU.
INDEXING = (torch.ops.aten.index.Tensor,)


class Remote(Tensor):
    """`inner`, on the CPU, as though on another device."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Remote:
        remote = Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=ELSEWHERE,
        )  # fmt: skip
        remote.inner = inner
        return remote

    def __repr__(self, **_: Any) -> str:
        return f"Remote({self.inner!r})"

    def tolist(self) -> Any:
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`func` with every Remote replaced by what it holds; what comes out is where the arguments were."""
    found = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    remote = [x for x in found if isinstance(x, Remote)]
    strangers = [x for x in found if not isinstance(x, Remote) and x.ndim]
    if remote and strangers and func not in (*MOVES, *INDEXING):
        raise RuntimeError(f"{func}: Expected all tensors to be on the same device, found {ELSEWHERE} and {HERE}")
    if remote and strangers and func in INDEXING and not isinstance(args[0], Remote):
        raise RuntimeError(f"{func}: indices should be on the same device as the indexed tensor")
    target = kwargs.get("device")
    there = bool(remote) if target is None else torch.device(target) == ELSEWHERE
    if func is torch.ops.aten.copy_.default:
        there = isinstance(args[0], Remote)
    inner_args, inner_kwargs = tree_map(lambda x: x.inner if isinstance(x, Remote) else x, (args, kwargs))
    if target is not None:
        inner_kwargs["device"] = HERE
    out = func(*inner_args, **inner_kwargs)
    known = {id(x.inner): x for x in remote}  # in-place operations return what they changed

    def wrap(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return known[id(x)] if id(x) in known else Remote(x)

    return tree_map(wrap, out) if there else out


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


@contextmanager
def elsewhere() -> Iterator[torch.device]:
    """The device, as long as the context lasts."""
    # Fused optimisers ask for a device of a kind that they know.
    with _Mode(), patch("torch.optim.adam._device_dtype_check_for_fused", lambda *_, **__: None):
        yield ELSEWHERE

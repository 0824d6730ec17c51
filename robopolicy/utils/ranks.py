"""Share one training among processes that torchrun started (ranks), each with its rows of every batch.

Without torchrun, or with one process, there is one rank: no process group, and every function returns its argument.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from robopolicy.core.errors import ConfigError, RankError
from robopolicy.utils.rank_group import RankGroup, store_answers

_TELL_S, _ANSWER_S = 30.0, 5.0  # in which a rank that failed before it joined finds the store, and its host answers
_group: RankGroup | None = None
_came = False  # this process found the other ranks, or tried


def expected() -> int:
    """Return the number of ranks that torchrun started; 1 without it."""
    given = {"RANK", "MASTER_ADDR"} <= os.environ.keys()
    return int(os.environ.get("WORLD_SIZE", "1")) if given else 1


def count() -> int:
    return 1 if _group is None else _group.count


def rank() -> int:
    return 0 if _group is None else _group.rank


@contextmanager
def joined(*, cuda: bool, timeout: float) -> Iterator[None]:
    """Join the other ranks while the block lasts; they see it at once where the block fails.

    Args:
        cuda: gradients lie on GPUs, one for each rank of a machine. timeout: seconds to wait for another rank.

    Raises:
        RankError: a rank did not come in time, or ended; or the environment lacks a variable.
        ConfigError: a machine has fewer GPUs than ranks.
    """
    global _group, _came
    if expected() == 1 or _group is not None:
        yield
        return
    if cuda:
        local, cards = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= cards:
            raise ConfigError(f"device=cuda: this machine has {cards} GPUs. Set --nproc-per-node to at most {cards}.")
        torch.cuda.set_device(local)
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")  # a time-out then raises instead of ending the process
    _came = True
    _group = group = RankGroup(timeout)
    try:
        group.meet(timeout)
        limit, backend = timedelta(seconds=timeout), "cpu:gloo,cuda:nccl" if cuda else "gloo"
        store = dist.PrefixStore("group", group.store)
        _guard(lambda: dist.init_process_group(
            backend, store=store, rank=group.rank, world_size=group.count, timeout=limit
        ))  # fmt: skip
        yield
        barrier()  # rank 0's process may hold the store
    except BaseException as error:
        group.end()
        group.sign_end(error)
        raise
    finally:
        group.end()
        _group = None
        if dist.is_initialized():
            dist.destroy_process_group()


def tell_failure(error: BaseException) -> None:
    """Tell the other ranks that this one failed before it joined them: they would wait for it.

    It tells none where no store listens yet. torchrun's listens before any rank starts; started by hand, ranks wait for
    `rank_timeout` seconds where this one fails before rank 0 listens.
    """
    global _came
    if expected() == 1 or _came or not store_answers(_ANSWER_S):
        return
    _came = True
    with suppress(RankError):  # they do not answer
        RankGroup(_TELL_S, beats=False).sign_end(error)


def _guard(exchange: Callable[[], Any]) -> None:
    """Call a collective; a time-out or a lost connection becomes an error that names the missing ranks."""
    assert _group is not None
    _group.calls += 1
    try:
        exchange()
    except (RuntimeError, dist.DistError) as error:
        raise _group.failure(error) from error


def barrier() -> None:
    """Wait for all ranks."""
    total(torch.zeros(1))


def in_first(work: Callable[[], Any]) -> None:
    """Call `work` in rank 0 alone. The others wait for its end, however long it takes, while rank 0 lives.

    Raises:
        RankError: in the others: rank 0 ended, or is silent.
    """
    if _group is None:
        work()
        return
    _group.works += 1
    done = f"work/{_group.works}"
    if _group.rank == 0:
        work()
        _group.store.set(done, "")
    else:
        _group.wait_for_first(done)
    barrier()


def total(x: Tensor) -> Tensor:
    """Return the sum of `x` over ranks, in the same shape."""
    if _group is None:
        return x
    x = x.contiguous().clone()
    _guard(lambda: dist.all_reduce(x))
    return x


def mean_of(x: Tensor) -> Tensor:
    """Return the mean [] over all elements of all ranks, which may hold different numbers of them."""
    if _group is None:
        return x.mean()
    found = total(torch.stack([x.double().sum(), x.new_tensor(x.numel(), dtype=torch.float64)]))
    return (found[0] / found[1]).to(x.dtype)


def any_of(flag: bool) -> bool:
    """Return whether `flag` is True in any rank."""
    return flag if _group is None else bool(total(torch.tensor(float(flag))) > 0)


def average_gradients(parameters: Iterable[nn.Parameter], numbers: Tensor, weight: float) -> Tensor:
    """Average the gradients of `parameters`, in place, and `numbers` [...] over ranks, by one exchange.

    Args:
        weight: of this rank: the number of items whose mean its loss is; a rank may have none.

    Returns:
        The mean of `numbers`; a parameter without a gradient in every rank has none.
    """
    if _group is None:
        return numbers
    held = list(parameters)
    grads = [p.grad for p in held]
    there = numbers.new_tensor([g is not None for g in grads], dtype=torch.float32)
    flat = [torch.zeros_like(p) if g is None else g for p, g in zip(held, grads, strict=True)]
    flat = [part.detach().flatten().float() for part in (numbers, *flat)]
    shared = total(torch.cat([weight * torch.cat(flat), numbers.new_tensor([weight], dtype=torch.float32), there]))
    parts = iter((shared[: sum(map(len, flat))] / shared[-1 - len(held)]).split([len(part) for part in flat]))
    mean = next(parts).view_as(numbers).to(numbers)
    for parameter, part, has in zip(held, parts, shared[len(shared) - len(held) :].tolist(), strict=True):
        parameter.grad = part.view_as(parameter).to(parameter) if has else None
    return mean


def gather(value: Any) -> list[Any]:
    """Return the JSON `value` of every rank, in their order."""
    if _group is None:
        return [value]
    own = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    sizes = [int(size) for size in gather_rows(torch.tensor([len(own)]))]
    padded = nn.functional.pad(own, (0, max(sizes) - len(own)))
    rows = gather_rows(padded[None])
    return [json.loads(bytes(row[:size].tolist())) for row, size in zip(rows, sizes, strict=True)]


def gather_rows(x: Tensor) -> Tensor:
    """Join the rows of all ranks: [K·n ...] of `x` [n ...], whose shape is the same in every rank."""
    if _group is None:
        return x
    x, parts = x.contiguous(), [torch.empty_like(x.contiguous()) for _ in range(_group.count)]
    _guard(lambda: dist.all_gather(parts, x))
    return torch.cat(parts)


def own_part(rows: int) -> slice:
    """Return this rank's part of `rows` rows; parts are neighbours and differ by at most one row."""
    return slice(rows * rank() // count(), rows * (rank() + 1) // count())

"""Run a function in several ranks: processes that join one another as torchrun's would."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from typing import Any

from robopolicy.utils import ranks

_CONTEXT = multiprocessing.get_context("forkserver")
_PRELOADED = ("torch", "lerobot.datasets.lerobot_dataset", "robopolicy.training.train", "robopolicy.config.compose",
              "robopolicy.sim.env")  # fmt: skip
os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")  # a process with threads should not fork
_CONTEXT.set_forkserver_preload([*_PRELOADED])


def in_ranks(function: Callable[..., Any], count: int, *arguments: Any, timeout: float = 60.0) -> list[Any]:
    """Return the result of `function(*arguments)` in each of `count` ranks, or its error; None: the rank died."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pairs = [_CONTEXT.Pipe(duplex=False) for _ in range(count)]
    processes = [
        _CONTEXT.Process(target=_work, args=(function, arguments, rank, count, port, sender, timeout))
        for rank, (_, sender) in enumerate(pairs)
    ]
    for process, (_, sender) in zip(processes, pairs, strict=True):
        process.start()
        sender.close()
    results = []
    for receiver, _ in pairs:
        try:
            results.append(receiver.recv() if receiver.poll(timeout=300) else TimeoutError())
        except EOFError:
            results.append(None)
    for process in processes:
        process.join(30)
        process.kill()
    return results


def _work(
    function: Callable[..., Any], arguments: Any, rank: int, count: int, port: int, sender: Any, timeout: float
) -> None:
    import torch

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    torch.set_num_threads(1)
    try:
        with ranks.joined(cuda=False, timeout=timeout):
            result = function(*arguments)
    except BaseException as error:
        result = error
    sender.send(result)
    sender.close()

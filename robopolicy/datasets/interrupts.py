"""End a recording at Ctrl-C, SIGTERM or SIGHUP with what it has."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """Delay Ctrl-C, and what `interrupt_at_end` turns into it, until the end of the block."""
    pending: list[tuple[int, Any]] = []
    before = _handle(lambda number, frame: pending.append((number, frame)), where=callable)
    try:
        yield
    finally:
        _restore(before)
        if pending:
            before[pending[0][0]](*pending[0])


@contextmanager
def interrupt_at_end() -> Iterator[None]:
    """Raise KeyboardInterrupt in the block at SIGTERM or SIGHUP where these would end the process at once."""
    before = _handle(signal.default_int_handler, where=lambda handler: handler == signal.SIG_DFL)
    try:
        yield
    finally:
        _restore(before)


def _handle(handler: Callable[..., Any], *, where: Callable[[Any], bool]) -> dict[int, Any]:
    """Handle the signals that ask the process to end; returns the handlers before, of those that meet `where`."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    return {number: signal.signal(number, handler) for number, before in found.items() if where(before)}


def _restore(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)

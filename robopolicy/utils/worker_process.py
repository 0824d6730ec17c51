"""A process that holds an object for another one, and answers its calls one by one.

Pickles pass between processes of one program alone: over a pair of sockets that the parent inherits to its child, or
by Ray (utils.ray_workers).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import struct
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.util import Finalize
from typing import Any, Protocol

from robopolicy.core.errors import RobopolicyError
from robopolicy.utils.provenance import code_digest, version

Make = Callable[[], Any]  # builds the object in its worker
GRACE_S = 5.0  # in which a process that was told to end, ends


class Host:
    """Holds one object in a worker process; a call answers (True, result) or (False, text of the error)."""

    object: Any = None

    def hello(self) -> tuple[bool, Any]:
        """Answer (True, code and place of this process)."""
        return True, {"code": code_digest(), "version": version(), "place": f"process {os.getpid()}"}

    def build(self, make: Make) -> tuple[bool, Any]:
        def built() -> None:
            self.object = make()

        return self._answer(built)

    def call(self, name: str, *arguments: Any) -> tuple[bool, Any]:
        return self._answer(lambda: getattr(self.object, name)(*arguments))

    def _answer(self, work: Callable[[], Any]) -> tuple[bool, Any]:
        try:
            return True, work()
        except Exception as error:
            return False, str(error) if isinstance(error, RobopolicyError) else traceback.format_exc()


class Lost(Exception):
    """A worker died or hangs; the text says which."""


class Worker(Protocol):
    """One process that holds a Host. Every request has one answer, in order."""

    def send(self, method: str, *arguments: Any) -> None:
        """Call a method of the Host; a dead worker is found out by `answer`."""
        ...

    def answer(self, wait_s: float) -> tuple[bool, Any] | None:
        """Return the next answer; None: there is none after `wait_s` seconds. Raises Lost where the worker died."""
        ...

    def leave(self) -> None:
        """Let the process end by itself."""
        ...

    def stop(self, *, wait_s: float = 0.0) -> None:
        """End the process, at once or after so long."""
        ...


class ProcessWorker:
    """A process of this machine.

    Args:
        number: names the process. timeout: seconds in which the worker has to take a request.
    """

    def __init__(self, number: int, timeout: float) -> None:
        context = multiprocessing.get_context("spawn")  # a forked child would inherit torch's and a renderer's threads
        self.pipe, theirs = context.Pipe()
        _bound(self.pipe, timeout)
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True, name=f"worker {number}")
        self.process.start()
        theirs.close()
        # At its end Python would send SIGTERM, which a worker ignores, and wait for ever.
        self._end = Finalize(self, _kill, args=(self.pipe, self.process), exitpriority=1)
        self.send("hello")

    def send(self, method: str, *arguments: Any) -> None:
        """See Worker. Raises what pickling raises."""
        with contextlib.suppress(OSError):
            self.pipe.send((method, arguments))

    def answer(self, wait_s: float) -> tuple[bool, Any] | None:
        """See Worker."""
        try:
            return self.pipe.recv() if self.pipe.poll(wait_s) else None
        except (EOFError, OSError):
            self.process.join(timeout=GRACE_S)
            code = self.process.exitcode
            why = "SIGTERM" if code == -signal.SIGTERM else "is memory short?"
            raise Lost("hangs in an answer" if code is None else f"died (exit code {code}; {why})") from None

    def leave(self) -> None:
        """See Worker."""
        self.pipe.close()

    def stop(self, *, wait_s: float = 0.0) -> None:
        """See Worker."""
        self.leave()
        self.process.join(timeout=wait_s)
        self.process.kill()  # a stopped process heeds no SIGTERM
        self.process.join(timeout=GRACE_S)
        self._end.cancel()


def _kill(pipe: Connection, process: SpawnProcess) -> None:
    pipe.close()
    process.kill()


def _bound(pipe: Connection, timeout: float) -> None:
    """Let no read or write of a half-sent message take longer than `timeout`: it raises OSError then."""
    limit = struct.pack("ll", int(timeout), int(timeout % 1 * 1e6))
    with socket.socket(fileno=os.dup(pipe.fileno())) as end:
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            end.setsockopt(socket.SOL_SOCKET, option, limit)


def _serve(pipe: Connection) -> None:
    """Answer requests until the other end closes."""
    for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C, scancel and systemd reach all; the parent decides
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_after_parent, daemon=True).start()
    host = Host()
    with contextlib.suppress(EOFError, OSError):
        while True:
            try:
                method, arguments = pipe.recv()
                pipe.send(getattr(host, method)(*arguments))
            except (EOFError, OSError):
                raise
            except Exception:  # a request that this process cannot read, or an answer that cannot be sent
                pipe.send((False, traceback.format_exc()))
    if (end := getattr(host.object, "close", None)) is not None:
        end()


def _end_after_parent() -> None:
    """End this process soon after its parent: a killed parent ends no call that hangs."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        time.sleep(GRACE_S)
        os._exit(1)

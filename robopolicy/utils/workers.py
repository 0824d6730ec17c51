"""Hold objects in worker processes, and call their methods with a time-out. A worker that dies is started again.

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
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Literal, Protocol

from robopolicy.core.errors import ConfigError, RobopolicyError, WorkerError, WorkerLost
from robopolicy.utils.provenance import code_digest, version

Backend = Literal["process", "ray"]
Make = Callable[[], Any]  # builds the object in its worker
TIMEOUT_S = 600.0
_TRIES = 3  # losses of a worker in a row that end the program
_GRACE_S = 5.0  # an answer that is late because the parent slept is still taken


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
            self.process.join(timeout=_GRACE_S)
            code = self.process.exitcode
            raise Lost("hangs in an answer" if code is None else f"died (exit code {code}); is memory short?") from None

    def stop(self, *, wait_s: float = 0.0) -> None:
        """See Worker."""
        self.pipe.close()  # the process ends itself at that
        self.process.join(timeout=wait_s)
        self.process.kill()  # a stopped process heeds no SIGTERM
        self.process.join(timeout=_GRACE_S)


def _bound(pipe: Connection, timeout: float) -> None:
    """Let no read or write of a half-sent message take longer than `timeout`: it raises OSError then."""
    limit = struct.pack("ll", int(timeout), int(timeout % 1 * 1e6))
    with socket.socket(fileno=os.dup(pipe.fileno())) as end:
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            end.setsockopt(socket.SOL_SOCKET, option, limit)


def _serve(pipe: Connection) -> None:
    """Answer requests until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group, and the parent decides
    host = Host()
    with contextlib.suppress(EOFError, OSError):
        while True:
            try:
                method, arguments = pipe.recv()
            except (AttributeError, ImportError):  # a class that this process cannot import
                pipe.send((False, traceback.format_exc()))
                continue
            pipe.send(getattr(host, method)(*arguments))


class Workers:
    """K objects, each in a worker of its own.

    Args:
        makes: build the objects; picklable.
        what: names a worker in messages.
        timeout: seconds for each call, the building of an object included.
        key: of the setting that asked for workers, for messages.

    Raises:
        WorkerError: an object could not be built, a worker runs other code, or it was lost three times; it is named.
        ConfigError: an object cannot be sent to a worker.
    """

    def __init__(
        self, makes: Sequence[Make], *, what: str = "worker", backend: Backend = "process",
        timeout: float = TIMEOUT_S, key: str = "processes",
    ) -> None:  # fmt: skip
        if not timeout > 0:
            raise ConfigError(f"timeout: expected seconds above 0, found {timeout}")
        self.makes, self.what, self.timeout, self.key = list(makes), what, timeout, key
        self._new = _backend(backend)
        self._losses = [0] * len(self.makes)  # in a row
        self._asked = [0.0] * len(self.makes)
        self._places = [""] * len(self.makes)
        self._ready = [False] * len(self.makes)
        code_digest()  # of the code as it is now
        self._workers: list[Worker] = []
        try:
            for k in range(len(self.makes)):
                self._workers.append(self._start(k))
            for k in range(len(self.makes)):
                self._meet(k)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self.makes)

    def name(self, k: int) -> str:
        place = f", {self._places[k]}" if self._places[k] else ""
        return f"{self.what} {k} of {len(self)}{place}"

    def send(self, k: int, method: str, *arguments: Any) -> None:
        """Call a method of object `k`; `answer` returns its result."""
        if not self._ready[k]:  # it was started again
            self._meet(k)
        self._asked[k] = time.monotonic()
        self._workers[k].send("call", method, *arguments)

    def answer(self, k: int) -> Any:
        """Return the result of the call that was sent to object `k`.

        Raises:
            WorkerLost: the worker died or did not answer; a new one builds the object again.
            WorkerError: the call failed, with its traceback; or the worker was lost several times in a row.
        """
        try:
            return self._heard(k)
        except Lost as lost:
            reason = f"{self.name(k)} {lost}"
            self._restart(k, reason)
            raise WorkerLost(f"{reason}.") from None

    def well(self, k: int) -> None:
        """Forget the losses of worker `k`: it did whole work since."""
        self._losses[k] = 0

    def close(self) -> None:
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.stop(wait_s=_GRACE_S)

    def _start(self, k: int) -> Worker:
        self._ready[k], self._asked[k] = False, time.monotonic()
        worker = self._new(k, self.timeout)
        try:
            worker.send("build", self.makes[k])
        except Exception as error:  # pickling calls code of the object
            worker.stop()
            raise ConfigError(
                f"{self.key}: {self.what} {k}: its object cannot be sent to a process ({type(error).__name__}: "
                f"{error}). Build it by a function or class at the top of a module, or set {self.key}=0."
            ) from error
        return worker

    def _meet(self, k: int) -> None:
        """Wait for a new worker: it says its code, and builds its object."""
        while True:
            try:
                found = self._heard(k)
                self._places[k] = found["place"]
                if found["code"] != code_digest():
                    raise WorkerError(
                        f"{self.name(k)}: runs other code ({found['version']}, {found['code']}) than this process "
                        f"({version()}, {code_digest()}). Install the same version everywhere; after a change of the "
                        "files start the command again."
                    )
                self._heard(k)
            except Lost as lost:
                self._restart(k, f"{self.name(k)} {lost}, while it was started")
            else:
                self._ready[k] = True
                return

    def _restart(self, k: int, reason: str) -> None:
        self._workers[k].stop()
        self._losses[k] += 1
        if self._losses[k] >= _TRIES:
            raise WorkerError(
                f"{reason}. It was lost {_TRIES} times in a row. {self.key}=0 runs all in this process and shows more."
            )
        self._workers[k] = self._start(k)

    def _heard(self, k: int) -> Any:
        left = self._asked[k] + self.timeout - time.monotonic()
        found = self._workers[k].answer(max(left, min(self.timeout, _GRACE_S)))
        if found is None:
            raise Lost(f"did not answer within {self.timeout:g} s, and was killed")
        fine, value = found
        if not fine:
            raise WorkerError(f"{self.name(k)} failed:\n{value}")
        return value


def _backend(name: Backend) -> Callable[[int, float], Worker]:
    if name == "process":
        return ProcessWorker
    from robopolicy.utils.ray_workers import RayWorker

    return RayWorker

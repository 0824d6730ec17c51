"""Hold objects in worker processes, and call their methods with a time-out. A worker that dies is started again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from robopolicy.core.errors import ConfigError, WorkerError, WorkerLost
from robopolicy.utils.provenance import code_digest, version
from robopolicy.utils.worker_process import GRACE_S, Lost, Make, ProcessWorker, Worker

Backend = Literal["process", "ray"]
TIMEOUT_S = 600.0
_log = logging.getLogger(__name__)
_TRIES = 3  # losses of a worker in a row that end the program


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
        for worker in workers:  # all at the same time
            worker.leave()
        end = time.monotonic() + GRACE_S
        for worker in workers:
            worker.stop(wait_s=max(0.0, end - time.monotonic()))

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
                reason = f"{self.name(k)} {lost}, while it was started"
                self._restart(k, reason)
                _log.warning("%s. It is started again.", reason)
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
        # An answer that is late because this process was stopped for a while is still taken.
        found = self._workers[k].answer(max(left, min(self.timeout, GRACE_S)))
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

"""Simulated time for two threads that never run at once: the control loop, and the one that waits for the bus."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable


class BusEndedError(BaseException):
    """The other thread is to end. No driver may catch it."""


class Lockstep:
    """A clock whose `sleep` hands over to the thread that advances it.

    Attributes:
        now: s.
    """

    def __init__(self) -> None:
        self.now, self._wake, self._ended, self._running = 0.0, math.inf, False, False
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass. In the other thread the caller of `advance` goes on meanwhile."""
        if threading.current_thread() is not self._thread:
            self.now += max(seconds, 0.0)
            return
        self._wake = self.now + max(seconds, 1e-6)
        self._back.release()
        self._go.acquire()
        if self._ended:
            raise BusEndedError

    def start(self, work: Callable[[], None]) -> None:
        """Begin `work` in the other thread, at the next `advance`."""

        def run() -> None:
            self._go.acquire()
            try:
                if not self._ended:
                    work()
            except BusEndedError:
                pass
            except BaseException as error:
                self._error = error
            self._wake, self._running = math.inf, False
            self._back.release()

        self._running = True
        self._thread, self._wake = threading.Thread(target=run, name="bus", daemon=True), self.now
        self._thread.start()

    def advance(self, to: float) -> None:
        """Let time go on to `to` s, and the other thread run where its sleep ends before; raises its error."""
        while self._wake <= to + 1e-9:
            self.now = max(self.now, self._wake)
            self._switch()
        self.now = max(self.now, to)

    def end(self) -> None:
        """End the other thread."""
        if self._running:
            self._ended = True
            self._switch()
        if self._thread is not None:
            self._thread.join()

    def _switch(self) -> None:
        self._go.release()
        self._back.acquire()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

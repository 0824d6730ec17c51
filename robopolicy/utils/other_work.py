"""Measure how much of the machine other programs take."""

from __future__ import annotations

import contextlib
import time

import psutil

_LEAST_S = 1.0
_IDLE = ("idle", "iowait", "guest", "guest_nice")  # the kernel counts guests in `user` too


class OtherWork:
    """What other programs of the machine take from when this is made, beside this process and its workers."""

    def __init__(self) -> None:
        self._began = _seconds()

    def share(self) -> float:
        """Return their share of all cores so far, 0 … 1; 0 in the first second, as the kernel's clocks are coarse."""
        (clock, busy, own), (at, taken, mine) = _seconds(), self._began
        if clock - at < _LEAST_S:
            return 0.0
        cores = (psutil.cpu_count() or 1) * (clock - at)
        return min(1.0, max(0.0, (busy - taken - (own - mine)) / cores))


def _seconds() -> tuple[float, float, float]:
    """Return the time, and CPU seconds: of the whole machine, and of this process and its workers."""
    whole, own, process = psutil.cpu_times(), 0.0, psutil.Process()
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it has ended: then it counts among its parent's children
            times = one.cpu_times()
            own += times.user + times.system + times.children_user + times.children_system
    return time.monotonic(), sum(whole) - sum(getattr(whole, key, 0.0) for key in _IDLE), own

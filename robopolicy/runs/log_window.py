"""Average the metrics of updates between two log entries."""

from __future__ import annotations

import time
from typing import Any

from robopolicy.core.protocols import LogsMetrics
from robopolicy.core.types import Metrics

_POINTS = 20  # of the curves of a short training, at least


def interval(steps: int, *, most: int) -> int:
    """Return the steps between two log entries: a twentieth of the training, at most `most`."""
    return max(1, min(most, steps // _POINTS))


class LogWindow:
    """Means of the metrics over `every` updates, and the updates per second.

    A metric that only some updates have is averaged over these.

    `means`: of the last full window.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.means: Metrics = {}
        self._sums: Metrics = {}
        self._count = 0  # updates in the window
        self._counts: dict[str, int] = {}  # of these, the updates that had each metric
        self._clock = (time.perf_counter(), 0)  # beginning of the window in this process; updates since

    def add(self, metrics: Metrics, step: int, tracker: LogsMetrics) -> None:
        """Add the metrics of the update that ended at `step`; log the means where the window is full."""
        for name, value in metrics.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
            self._counts[name] = self._counts.get(name, 0) + 1
        self._count += 1
        self._clock = (self._clock[0], self._clock[1] + 1)
        if step % self.every:
            return
        self.means = {name: total / self._counts[name] for name, total in self._sums.items()}
        speed = self._clock[1] / max(1e-9, time.perf_counter() - self._clock[0])
        tracker.log({f"train/{k}": v for k, v in self.means.items()} | {"train/updates_per_s": speed}, step)
        self._sums, self._counts, self._count, self._clock = {}, {}, 0, (time.perf_counter(), 0)

    def state_dict(self) -> dict[str, Any]:
        """The state of a window, to be saved beside the `step` of the training."""
        return {"sums": self._sums, "means": self.means, "count": self._count, "counts": self._counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sums, self.means = dict(state["sums"]), dict(state["means"])
        self._count = int(state.get("count", state["step"] % self.every))  # older checkpoints have none
        counts = state.get("counts") or dict.fromkeys(self._sums, self._count)  # the same
        self._counts = {name: int(count) for name, count in counts.items()}

"""Interfaces of the services that a run hands to loops, recorders and gates: metrics, progress and checkpoints."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from robopolicy.core.types import Metrics


class Progress(Protocol):
    """A progress bar."""

    def update(self, step: int, **numbers: float) -> None: ...


class ShowsProgress(Protocol):
    """Opens progress bars."""

    def progress(self, total: int, description: str) -> AbstractContextManager[Progress]: ...


class LogsMetrics(ShowsProgress, Protocol):
    """Logs metrics too."""

    def log(self, metrics: Metrics, step: int) -> None: ...


class Checkpoints(Protocol):
    """Saves and restores a training."""

    requested: bool  # A stop was requested (SIGINT): save now; `save` then raises KeyboardInterrupt.

    def save(self, step: int, *, policy: Any, state: dict[str, Any], best: bool = False) -> Any: ...
    def latest(self) -> dict[str, Any] | None: ...

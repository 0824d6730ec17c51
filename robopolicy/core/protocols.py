"""Interfaces of off-policy algorithms, and of the services that a run hands to loops, recorders and gates."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from robopolicy.core.types import Metrics, Obs, Stateful


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


@runtime_checkable
class Shareable(Protocol):
    """An env that may be a part of an env whose other parts step in other processes, see utils.ranks."""

    def share_episodes(self) -> None:
        """Take the next episodes from one training stream with the envs of all ranks, which step together."""
        ...


def lost_episodes(env: object) -> int:
    """Return how many episodes of `env` ended because the worker process that stepped them died."""
    return int(getattr(env, "lost_episodes", 0))


class OffPolicy(Stateful, Protocol):
    """An algorithm that learns from a replay buffer. Its policy's `replay_features` are stored."""

    policy: Any

    def explore(self, obs: Obs, *, warmup: bool) -> Tensor:
        """Return actions [B Da], or chunks [B H Da] of which Ta steps are played, in physical units.

        Args:
            obs: replay features [B ...].
        """
        ...

    def update(self, batch: Any, *, learned_steps: int | None) -> Metrics:
        """Learn from a batch of the replay buffer.

        Args:
            learned_steps: env steps since learning began; None in a critic-only update.
        """
        ...

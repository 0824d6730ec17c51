"""Warn when training makes a policy worse."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterable
from typing import Any

from robopolicy.core.types import VecEnv

_log = logging.getLogger(__name__)


class RegressionMonitor:
    """Warns once when training episodes succeed far less often than the first ones.

    Rates are over the newest 2 N episodes, at least 100. N envs that start together end in waves, successes first and
    failures at the time limit, so a shorter window would see only one kind. Far means more than four standard errors
    of the difference.

    Args:
        advice: possible remedies, for the warning.
    """

    def __init__(self, advice: str) -> None:
        self.advice = advice
        self.recent: deque[float] = deque()
        self.first: float | None = None  # success rate once every env had time for two episodes
        self.said = False

    def add(self, success: Iterable[float], *, steps: int, env: VecEnv) -> None:
        """Add episodes, and warn if their success rate has dropped.

        Args:
            success: of the episodes that ended since the last call. steps: env steps taken so far.
        """
        size = max(100, 2 * env.num_envs)
        self.recent.extend(success)
        while len(self.recent) > size:
            self.recent.popleft()
        if self.said or len(self.recent) < size or steps < 2 * env.num_envs * env.spec.horizon:
            return
        now = sum(self.recent) / size
        self.first = now if self.first is None else self.first
        mean = (self.first + now) / 2
        if self.first - now > 4.0 * math.sqrt(2.0 * mean * (1.0 - mean) / size):
            self.said = True
            _log.warning(
                "after %s env steps %.0f%% of the newest %d training episodes succeed, at the beginning %.0f%% did: "
                "this training makes the policy worse. Ctrl-C saves and stops. What may help: %s.",
                f"{steps:,}", 100 * now, size, 100 * self.first, self.advice,
            )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        return {"recent": list(self.recent), "first": self.first, "said": self.said}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.recent, self.first, self.said = deque(state["recent"]), state["first"], state["said"]

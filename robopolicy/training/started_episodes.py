"""Estimate the success of training episodes without a bias towards short ones."""

from __future__ import annotations

import heapq
from collections import deque
from typing import Any

from robopolicy.core.rng import step_seed
from robopolicy.core.types import Metrics

_STREAM = 9521  # of the order of episodes that start together


class StartedEpisodes:
    """Success rate of the newest training episodes, in the order of their starts.

    The first episodes to end are short, and mostly successes. So an episode counts one horizon after its start,
    whether it ended early or not. The rate then exists from one horizon on. Episodes that start together count in a
    random order: in that of their ends, the newest would be the failures.

    Args:
        size: newest episodes that the rate is over, at most.
    """

    def __init__(self, size: int) -> None:
        self.counted = deque[float](maxlen=size)
        self._waiting: list[tuple[float, int, float]] = []  # heap of (step at which it counts, random key, success)
        self._number = 0  # of the next episode, from which its key follows

    def add(self, success: float, *, counts_at: float) -> None:
        """Add an episode that has ended.

        Args:
            counts_at: step of one env at which it counts: that of its start, plus the horizon.
        """
        heapq.heappush(self._waiting, (counts_at, step_seed(0, self._number, stream=_STREAM), success))
        self._number += 1

    def advance(self, step: float) -> None:
        """Count the episodes that are due at `step` of one env."""
        while self._waiting and self._waiting[0][0] <= step:
            self.counted.append(heapq.heappop(self._waiting)[2])

    @property
    def metrics(self) -> Metrics:
        """`success` and `success_episodes`, the number of episodes that it is over; nothing before the first."""
        count = len(self.counted)
        return {"success": sum(self.counted) / count, "success_episodes": count} if count else {}

    def state_dict(self) -> dict[str, Any]:
        waiting = [list(entry) for entry in self._waiting]
        return {"counted": list(self.counted), "waiting": waiting, "number": self._number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counted.clear()
        self.counted.extend(map(float, state["counted"]))
        self._waiting = [(float(at), int(key), float(success)) for at, key, success in state["waiting"]]
        heapq.heapify(self._waiting)
        self._number = int(state["number"])

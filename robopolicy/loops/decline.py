"""Says when a policy gets worse by its own training, while there is still time to stop."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from typing import Any

from robopolicy.types import VecEnv

_log = logging.getLogger(__name__)


class Decline:
    """Warns, once, where training episodes succeed far less often than they did when the training began.

    Exploration counts on both sides. Far: by more than four standard errors of the difference of two rates, which
    episodes of one policy show about once in thirty thousand looks.
    """

    def __init__(self) -> None:
        self.first: float | None = None  # success before there was anything to unlearn
        self.said = False

    def look(self, recent: Collection[float], full: int, steps: int, env: VecEnv) -> None:
        """recent: success of the newest training episodes, `full` of them at most; `steps`: env steps taken so far."""
        if self.said or len(recent) < full or steps < env.num_envs * env.spec.horizon:
            return  # the episodes that end first are the short ones, which are successes
        now = sum(recent) / len(recent)
        if self.first is None:
            self.first = now
        mean = (self.first + now) / 2
        if self.first - now > 4.0 * math.sqrt(2.0 * mean * (1.0 - mean) / full):
            self.said = True
            _log.warning(
                "after %s env steps %.0f%% of the newest %d training episodes succeed, at the beginning %.0f%% did: "
                "this training makes the policy worse. Stop it (Ctrl-C saves), and try smaller steps (algo.actor_lr, "
                "algo.clip), less exploration, or demonstrations beside (dataset=).",
                f"{steps:,}", 100 * now, full, 100 * self.first,
            )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        return {"first": self.first, "said": self.said}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first, self.said = state["first"], state["said"]

"""The safety modes RUN → SLOW → HOLD → FAULT, and the watchdogs on a steady clock that raise it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum


class Mode(IntEnum):
    """How the arm is being driven; a larger one wins."""

    RUN = 0
    SLOW = 1  # the target is followed at a fraction of the speed
    HOLD = 2  # the certified stop is played; motion resumes once the cause is gone and the arm at rest
    FAULT = 3  # the same, latched: an operator must reset


@dataclass(frozen=True)
class Patience:
    """Seconds after the last sign of life at which each level begins; braking begins there, standstill comes later."""

    slow: float = math.inf
    hold: float = math.inf
    fault: float = math.inf


class Watchdog:
    """Says how long something has been silent. Times are of one steady clock, in seconds; stamps play no part."""

    def __init__(self, name: str, patience: Patience) -> None:
        self.name, self.patience = name, patience
        self.last = -math.inf

    def feed(self, now: float) -> None:
        self.last = now

    def level(self, now: float) -> Mode:
        age, p = now - self.last, self.patience
        if not age <= p.fault:
            return Mode.FAULT
        return Mode.HOLD if age > p.hold else Mode.SLOW if age > p.slow else Mode.RUN

"""Modes RUN → SLOW → HOLD → FAULT, the watchdogs that raise them, and the inputs and outputs of one tick."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from robopolicy.real.safety.array_ops import Array, within
from robopolicy.real.safety.errors import SafetyError


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


@dataclass(frozen=True, eq=False)
class Measured:
    """Measured state of the arm."""

    q: Array  # [n] rad
    torque: Array | None = None  # [n] N·m, external, pushing the arm
    qd: Array | None = None  # [n] rad/s; recorded, no limit reads it

    def joints(self, n: int) -> Array:
        """Return a copy of the joint angles [n] rad.

        Raises:
            SafetyError: another shape, NaN or infinite values.
        """
        q = np.array(self.q, dtype=np.float64)
        if q.shape != (n,) or not within(q, 1e6):
            raise SafetyError(f"state: expected {n} finite joint angles, found {q!r}")
        return q


class Decision(NamedTuple):
    """One tick's command."""

    command: Array  # [n] rad, the next control point
    stop: Array  # [S n] rad, the certified control points after it: played if no other command follows
    mode: Mode
    reasons: tuple[str, ...]  # why it is not the target; empty where it is, bit for bit
    changed: bool

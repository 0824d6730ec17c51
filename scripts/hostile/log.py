"""What a hostile client writes down: all that it did, and all that came back. Times are s of the steady clock."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from scripts.hostile.drivers import Plan

Array = NDArray[np.float64]
STARTS = ("activate", "reset")  # calls that ask for motion


@dataclass(frozen=True)
class Call:
    """A service call: when it was made and answered, and what the node said; `text` "" where it said nothing."""

    name: str
    asked: float
    answered: float
    ok: bool
    text: str = ""


@dataclass
class Log:
    """One trial.

    began: time of the first sample. samples: what the arm played at 1 kHz, pieces [m 7] rad.
    enables: each that was sent. reports: diagnostics of the node. plans, grips: what came on the command topics.
    messages: time and topic of everything that came there. forbidden: from, to and why nothing may move.
    attack: from and to. opening: m at which the gripper is said to be.
    """

    began: float = 0.0
    samples: list[Array] = field(default_factory=list)
    enables: list[tuple[float, bool]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    reports: list[tuple[float, dict[str, str]]] = field(default_factory=list)
    plans: list[tuple[float, Plan]] = field(default_factory=list)
    grips: list[tuple[float, float]] = field(default_factory=list)
    messages: list[tuple[float, str]] = field(default_factory=list)
    forbidden: list[tuple[float, float, str]] = field(default_factory=list)
    attack: tuple[float, float] = (0.0, 0.0)
    opening: float = 0.04
    stopped: list[str] = field(default_factory=list)  # what must not stop the arm, and did

    @property
    def path(self) -> tuple[Array, Array]:
        """Times [m] s and joints [m 7] rad of the samples."""
        q = np.concatenate(self.samples) if self.samples else np.zeros((0, 7))
        return self.began + 0.001 * np.arange(1, len(q) + 1), q

"""Inputs and outputs of one tick of the safety chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from robopolicy.real.safety.array_ops import Array, within
from robopolicy.real.safety.errors import SafetyError
from robopolicy.real.safety.safety_mode import Mode


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

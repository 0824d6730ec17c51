"""Whether a motion leads from one state of the arm to the next."""

from __future__ import annotations

import math

import numpy as np

from robopolicy.real.safety import SafetyError
from robopolicy.real.safety.array_ops import Array

ROOM = 0.02  # rad by which two states may be further apart than the joints can move
GAP = 0.25  # s between two states, beyond which they are not compared
SETTLED = 0.1  # s without a jump before the arm may be started


class JumpError(SafetyError):
    """A state that no motion leads to: two drivers publish, or one of another arm."""


class Continuity:
    """Compares each state with the one before.

    Args:
        joints: names, for messages.
        fastest: [n] rad/s that they can move.
    """

    def __init__(self, joints: tuple[str, ...], fastest: Array) -> None:
        self.joints, self.fastest = joints, fastest
        self._q: Array | None = None
        self._stamp = self._jumped = -math.inf  # s of the arm's clock; s of ours
        self._why = ""

    def take(self, q: Array, stamp: float, at: float) -> None:
        """Compare the arm's joints `q` [n] rad at `stamp` s of its clock, received at `at` s of ours.

        Raises:
            JumpError: some joint cannot have moved so far since.
        """
        dt, before = stamp - self._stamp, self._q
        self._q, self._stamp = q, stamp
        if before is not None and 0.0 < dt <= GAP:
            moved, most = np.abs(q - before), self.fastest * dt + ROOM
            if not (moved <= most).all():
                k = int(np.argmax(moved - most))
                self._jumped = at
                self._why = (
                    f"state_jump: {self.joints[k]!r} moved {moved[k]:.3f} rad in {dt:.3f} s, it can move "
                    f"{most[k]:.3f} rad. Do two drivers publish?"
                )
                raise JumpError(self._why)

    def problems(self, now: float) -> list[str]:
        """List why the arm may not be started at `now` s of our clock."""
        return [] if now - self._jumped > SETTLED else [self._why]

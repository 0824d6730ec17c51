"""Interfaces of the control loop to recording and teleoperation."""

from __future__ import annotations

from typing import Protocol

from robopolicy.core.types import Obs
from robopolicy.real.control.joints import Commanded
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.teleoperation.teleoperator import Driver, TeleopCommand


class Journal(Protocol):
    """Record events at the policy's rate."""

    def step(
        self, now: float, step: int, obs: Obs, before: Commanded, action: Array | None, limited: bool,
        driver: Driver = "policy", proposed: Array | None = None,
    ) -> None:  # fmt: skip
        """Record a control step.

        Args:
            obs: [1 …] of the step.
            before: the commanded pose before it.
            action: [Da], if there was one.
            driver: whose action it was.
            proposed: [Da] the policy's action, where another drove.
        """
        ...

    def chunk(self, now: float, chunk: Array, observed: float, refused: str) -> None:
        """Record a chunk [Ta Da] that was planned from an observation at `observed` s."""
        ...


class Operator(Protocol):
    """Let a human drive instead of the policy (real/teleoperation/teleoperator.py)."""

    def start(self) -> None: ...
    def command(self, now: float, commanded: Commanded) -> TeleopCommand | None:
        """Return the human's command for a control step from the pose `commanded`; None: the policy drives."""
        ...

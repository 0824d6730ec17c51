"""Plans of a control loop: when one is requested, and whether a chunk that came may be used."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from robopolicy.core.errors import SpecError
from robopolicy.core.types import Obs
from robopolicy.real.control.chunk_buffer import ChunkBuffer, Delays
from robopolicy.real.control.joints import Commanded
from robopolicy.real.control.observation_history import ObservationHistory
from robopolicy.real.planning.planner import PlanningError, Runner
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.teleoperation.teleoperator import Driver


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


class PlanRequests:
    """Request chunks from a planner and put them into a buffer.

    Args:
        lead: control steps before a chunk runs out at which the next one is requested.
        delays: measures the latency, for a planner that continues the actions ahead; None: it does not.
        counts: of the control loop.
        picture_age: s by which pictures are older than the arm's state, in whole control steps.
    """

    def __init__(
        self, runner: Runner, buffer: ChunkBuffer, *, lead: int, delays: Delays | None, counts: Counter[str],
        journal: Journal | None, picture_age: float,
    ) -> None:  # fmt: skip
        self.runner, self.buffer, self.lead, self.delays = runner, buffer, lead, delays
        self.counts, self.journal, self.picture_age = counts, journal, picture_age
        self.first = 0.0  # s: the control step of the newest request
        self.waiting = False  # for a chunk

    def start(self, seed: int, now: float) -> None:
        """Begin an episode at `now` s."""
        self.runner.reset(seed)
        self.seed, self.first, self.waiting = seed, now, False
        if self.delays is not None:
            self.delays.start()

    def drop(self) -> None:
        """Drop all plans: they belong to another motion."""
        self.buffer.clear()
        self.runner.reset(self.seed)
        self.waiting = False

    def request(
        self, now: float, due: float, seen: float, observations: ObservationHistory, step: int, *, continues: bool
    ) -> str:
        """Request a plan where few actions are left; a reason where a chunk was refused.

        Times are those of control steps, not of the ticks that come up to one later: plans that take whole control
        steps would fall behind by that.

        Args:
            due: s, of the control step that the plan is for.
            seen: s, when its observation should have been made.
            continues: the actions in the buffer will be executed.
        """
        reason = self.collect(now)
        if len(self.buffer) <= self.lead and not self.waiting:
            ahead = None
            if self.delays is not None and continues:
                ahead = self.buffer.ahead(due, self.delays.steps)
            self.runner.request(observations.stacked, step, min(seen, now) - self.picture_age, ahead)
            self.first, self.waiting = due - self.picture_age, True
            reason = self.collect(now) or reason
        return reason

    def collect(self, now: float) -> str:
        """Put a chunk that is there into the buffer; a reason where it is refused."""
        try:
            done = self.runner.poll(now)
        except PlanningError as error:
            self.waiting = False
            self.counts["failed"] += 1
            return f"planning_failed: {error}"
        if done is None:
            return ""
        self.waiting, refused = False, ""
        if self.delays is not None:
            self.delays.measured(max(0.0, now - self.first))
        try:
            self.counts["late"] += self.buffer.add(done[0], done[1], now, self.first)
        except SpecError as error:
            self.counts["refused"] += 1
            refused = f"chunk_refused: {error}"
        if self.journal is not None:
            self.journal.chunk(now, done[0], done[1], refused)
        return refused

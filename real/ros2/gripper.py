"""The gripper's openings on their way out: within its range, no faster than permitted, said again and again.

It moves only in RUN and SLOW. In HOLD, in FAULT and after the episode the last commanded opening stands, so that what
was gripped stays gripped; `after_fault: open` lets go in FAULT instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from real.ros2.channels import GripperTopic
from real.safety import Mode

SAME = 0.002  # m: between two episodes the fingers were not moved


class Gripper:
    """Openings [m] for one gripper.

    Args:
        topic: its limits and rate.
        publish: sends an opening.
    """

    def __init__(self, topic: GripperTopic, publish: Callable[[float], None]) -> None:
        self.topic, self.publish = topic, publish
        self.wanted = self.commanded = self.measured = math.nan  # m
        self.begin()

    def begin(self) -> None:
        """An episode begins. What was gripped stays gripped until another opening is wanted than the one found."""
        self._found: float | None = None  # m, what is wanted first
        self._sent = self._moved = -math.inf  # s

    def want(self, opening: float) -> None:
        """Go to `opening` m; what is not a number: stay."""
        if not math.isfinite(opening):
            return
        if self._found is None:
            self._found = opening if abs(opening - self.measured) <= SAME else math.nan
        if opening != self._found:
            self._found, self.wanted = math.nan, opening

    def tick(self, mode: Mode, measured: float, now: float) -> None:
        """Publish what is due at `now` s, with the fingers `measured` m apart."""
        goal, before, since = self.wanted, self.commanded, now - self._moved
        if mode is Mode.FAULT and self.topic.after_fault == "open":
            goal = self.topic.high
        elif mode >= Mode.HOLD:
            goal = self.commanded
        self._moved, self.measured = now, measured
        if not math.isfinite(goal):
            return  # nothing has been wanted yet: the gripper stays as it was found
        self.commanded = self._limited(goal, since if since < math.inf else 0.0)
        if self.commanded != before or now - self._sent >= 1 / self.topic.rate_hz:
            self._sent = now
            self.publish(self.commanded)

    def _limited(self, goal: float, since: float) -> float:
        t, found = self.topic, goal
        start = self.commanded if math.isfinite(self.commanded) else self.measured
        if t.speed is not None and math.isfinite(start):
            found = min(max(found, start - t.speed * since), start + t.speed * since)
        if t.squeeze is not None and math.isfinite(self.measured):
            found = min(max(found, self.measured - t.squeeze), self.measured + t.squeeze)
        return min(max(found, t.low), t.high)

"""The gripper's openings: within its range, no faster than permitted, repeated.

It moves only in RUN and SLOW. In HOLD, in FAULT and after the episode the last commanded opening stands, so that a
grasp is kept; `after_fault: open` lets go in FAULT instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from robopolicy.real.ros2.channels import GripperTopic
from robopolicy.real.safety import Mode

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
        """Begin an episode. A grasp is kept until another opening is wanted than the measured one."""
        self._found: float | None = None  # m, wanted first
        self._sent = self._moved = -math.inf  # s

    def want(self, opening: float, measured: float) -> None:
        """Set the wanted `opening` m, with the fingers `measured` m apart; NaN: stay."""
        if not math.isfinite(opening):
            return
        if self._found is None:  # the first wanted opening is the measured one: that is no wish to let go
            stays = abs(opening - measured) <= SAME and not abs(measured - self.measured) > SAME
            self._found = opening if stays else math.nan
        if opening != self._found:
            self._found, self.wanted = math.nan, opening

    def tick(self, mode: Mode, measured: float, now: float) -> None:
        """Publish the opening that is due at `now` s, with the fingers `measured` m apart."""
        first, since = self._moved == -math.inf, now - self._moved
        if first and abs(measured - self.measured) > SAME:
            self.commanded = measured  # moved by hand meanwhile: go on from where they are
        before, goal = self.commanded, self.wanted
        self._moved, self.measured = now, measured
        if mode is Mode.FAULT and self.topic.after_fault == "open":
            goal = self.wanted = self.topic.high  # a reset must not close them again
        elif mode >= Mode.HOLD:
            goal = math.nan
        if math.isfinite(goal):
            self.commanded = self._limited(goal, 0.0 if first else min(since, 1 / self.topic.rate_hz))
        if not math.isfinite(self.commanded):
            return  # no opening was wanted yet: the gripper stays as it was found
        if self.commanded != before or now - self._sent >= 1 / self.topic.rate_hz:
            self._sent = now
            self.publish(self.commanded)

    def _limited(self, goal: float, since: float) -> float:
        """`goal` m within the limits, `since` s after the command before. The speed has the last word, so that one
        wrong measurement does not drop the object."""
        t, found = self.topic, goal
        start = self.commanded if math.isfinite(self.commanded) else self.measured
        if t.squeeze is not None and math.isfinite(self.measured):
            found = min(max(found, self.measured - t.squeeze), self.measured + t.squeeze)
        if t.speed is not None and math.isfinite(start):
            found = min(max(found, start - t.speed * since), start + t.speed * since)
        return min(max(found, t.low), t.high)

"""A line that holds messages back and loses some, as `robopolicy arm check write=true` measured it."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

import numpy as np

from robopolicy.real.ros2.channels import LineDelay

TAIL = math.log(100)  # 1% of exponential delays are longer than that many of their means


class DelayedLine:
    """Deliver messages later, in order. Without a delay they are delivered at once.

    A message takes `latency_s`, and an exponential time more, of which 1% is beyond `jitter_s`.

    Args:
        clock: s, steady.
    """

    def __init__(self, delay: LineDelay | None, *, seed: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.delay, self.clock, self.rng = delay, clock, np.random.default_rng(seed)
        self.under_way: deque[tuple[float, Callable[[], None]]] = deque()  # s when due

    def send(self, deliver: Callable[[], None], *, may_be_lost: bool = True) -> None:
        """Call `deliver` when a message that is sent now arrives; not at all where it is lost."""
        if self.delay is None:
            deliver()
            return
        if may_be_lost and self.rng.random() < self.delay.lost:
            return
        due = self.clock() + self.delay.latency_s + self.rng.exponential(self.delay.jitter_s / TAIL)
        self.under_way.append((max(due, self.under_way[-1][0]) if self.under_way else due, deliver))

    def pump(self) -> float:
        """Deliver all messages that are due; returns s until the next, ∞ without any."""
        while self.under_way and self.under_way[0][0] <= self.clock():
            self.under_way.popleft()[1]()
        return self.under_way[0][0] - self.clock() if self.under_way else math.inf

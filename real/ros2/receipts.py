"""When messages reached this process, however long they waited for it."""

from __future__ import annotations

import math
import time
from typing import Any

AGREE = 0.01  # s by which the steady and the system's clock may part while neither is set


class Receipts:
    """Tell when messages came, by this machine's two clocks.

    Attributes:
        drained: s of our steady clock at which no message waited.
    """

    def __init__(self) -> None:
        self.drained, self._system = -math.inf, 0  # the latter: ns of the system's clock at the same moment

    def received(self, info: Any) -> float:
        """Return s of our steady clock at which a message reached this process.

        Where the node was held up, the message has waited: the system's clock says for how long. Where that clock was
        set meanwhile, the message waited since `empty` at most.
        """
        now, system = time.monotonic(), time.time_ns()
        waited = 0.0 if info is None else max(system - int(info["received_timestamp"]), 0) * 1e-9
        if abs((system - self._system) * 1e-9 - (now - self.drained)) <= AGREE:
            return now - waited
        return max(min(self.drained, now), now - waited)

    def empty(self, now: float) -> None:
        """Note that all messages were handled that had come by `now` s of our steady clock."""
        self.drained, self._system = now, time.time_ns()

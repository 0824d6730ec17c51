"""The history of commands by tick, and which of them the arm played."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from robopolicy.real.safety import SafetyChain
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.limiter_state import Past

KEPT = 256  # ticks


class CommandHistory:
    """Commands by tick, so that one that never reached the arm is noticed and commanding goes on from its stop.

    Args:
        chain: of one arm.
        tick: the first one that will be commanded; the arm rests until then.
    """

    def __init__(self, chain: SafetyChain, tick: int) -> None:
        self.chain, self.last = chain, tick - 1
        self.entries: OrderedDict[int, Past] = OrderedDict({self.last: chain.limiter.past()})
        self._rest = chain.limiter.c[0, -1].copy()

    def note(self) -> None:
        """Store the limiter's decision on another tick."""
        self.last += 1
        self.entries[self.last] = self.chain.limiter.past()
        while len(self.entries) > KEPT:
            self.entries.popitem(last=False)

    def miss(self) -> None:
        """Store a tick without a command: the arm has played its stop."""
        self.chain.resume(self.chain.limiter.past(), 1)
        self.note()

    def command(self, tick: int) -> Array:
        """Return [n] rad of a tick that was commanded, or of the rest before."""
        entry = self.entries.get(tick)
        return self._rest if entry is None else np.asarray(entry.c[0, -1])

    def heard(self, tick: int, played: Array) -> str:
        """Take note that the arm plays `played` [n] rad at `tick`; "", "lost" or, where it makes no sense, "foreign".

        After "lost" the limiter stands where the arm will be without the commands after the last one that it played.
        """
        if tick > self.last or tick not in self.entries or np.array_equal(played, self.command(tick)):
            return ""
        for before in range(tick - 1, min(self.entries) - 1, -1):
            past = self.entries[before]
            if np.array_equal(past.ahead(tick - before), played):
                last, self.last = self.last, before
                self.chain.resume(past, 0)
                while self.last < last:
                    self.miss()
                return "lost"
        return "foreign"

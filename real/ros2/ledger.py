"""What the node has commanded, tick by tick, and what the arm made of it; and which tick it is on the arm."""

from __future__ import annotations

import math
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from real.safety import SafetyChain
from real.safety.governor import Past

Array = NDArray[np.float64]

KEPT = 256  # ticks
JUMPS = ("state_late", "stamp_jump")  # an old state, or a clock that was set


class Ledger:
    """Commands by tick, so that one that never reached the arm is noticed and commanding goes on from its stop.

    Args:
        chain: of one arm.
        tick: the first one that will be commanded; the arm rests until then.
    """

    def __init__(self, chain: SafetyChain, tick: int) -> None:
        self.chain, self.last = chain, tick - 1
        self.entries: OrderedDict[int, Past] = OrderedDict({self.last: chain.governor.past()})
        self._rest = chain.governor.c[0, -1].copy()

    def note(self) -> None:
        """The governor has decided on another tick."""
        self.last += 1
        self.entries[self.last] = self.chain.governor.past()
        while len(self.entries) > KEPT:
            self.entries.popitem(last=False)

    def miss(self) -> None:
        """A tick passed without a command: the arm has played its stop."""
        self.chain.resume(self.chain.governor.past(), 1)
        self.note()

    def command(self, tick: int) -> Array:
        """[n] rad of a tick that was commanded, or of the rest before."""
        entry = self.entries.get(tick)
        return self._rest if entry is None else np.asarray(entry.c[0, -1])

    def heard(self, tick: int, played: Array) -> str:
        """Take note that the arm plays `played` [n] rad at `tick`; "", "lost" or, where it makes no sense, "foreign".

        After "lost" the governor stands where the arm will be, having heard nothing since the last that it played.
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


class ArmClock:
    """Which tick it is on the arm, by the stamps of its states and a steady clock of ours.

    Our system clock plays no part, and neither does the arm's: only how its stamps advance.

    Args:
        dt: s a tick.
        jump: s by which a stamp may differ from what was expected; beyond it the state is not used.
        follow: the arm waits for us (simulated time): no tick passes without a state.
    """

    def __init__(self, dt: float, *, jump: float = 0.25, follow: bool = False) -> None:
        self.dt, self.jump, self.follow = dt, jump, follow
        self.offset, self.newest = -math.inf, -math.inf

    def reset(self) -> None:
        """Forget it all: the next stamp is believed."""
        self.offset = self.newest = -math.inf

    def take(self, stamp: float, now: float) -> str:
        """A state stamped `stamp` s came at `now` s of our steady clock; why it is not to be used, or ""."""
        if not math.isfinite(stamp):
            return "stamp_unreadable"
        if self.offset > -math.inf:
            late = now + self.offset - stamp
            if not self.follow and abs(late) > self.jump:
                return JUMPS[0] if late > 0 else JUMPS[1]
            if stamp <= self.newest:
                return "stamp_old"
        self.newest = stamp
        # The least delayed state says best what time it is there; slowly forgotten, as clocks drift apart.
        self.offset = max(self.offset - 1e-4 * self.dt, stamp - now)
        return ""

    def tick(self, now: float) -> int:
        """The arm's tick at `now`; 0 where no state has come."""
        if self.newest == -math.inf:
            return 0
        time = self.newest if self.follow else max(self.newest, now + self.offset)
        return math.floor(time / self.dt + 1e-3)

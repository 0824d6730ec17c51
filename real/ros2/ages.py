"""How old each input is, by this machine's steady clock."""

from __future__ import annotations

import math

from robopolicy.real.safety import SafetyChain


class Ages:
    """Ages of inputs on this machine's clock, fed to the watchdogs of `chain` in the time of its ticks.

    Stamps play no part: ticks follow the arm's clock, which may be set, and ages must not.

    Args:
        simulated: no time passes between two states, so ages are those of ticks.
    """

    def __init__(self, chain: SafetyChain, *, simulated: bool) -> None:
        self.chain, self.simulated = chain, simulated
        self.heard: dict[str, float] = {}  # s of our clock of the newest message, by watchdog
        self._longest = {dog.name: dog.patience.fault for dog in chain.watchdogs}  # s

    def hear(self, name: str, at: float, time: float, *, running: bool) -> None:
        """Note that an input was received at `at` s of our clock, `time` s of the ticks'.

        A silence that lasted too long is a fault, even if no tick fell into it.
        """
        if self.simulated:
            self.chain.feed(name, time)
        elif running and not at - self.heard.get(name, at) <= self._longest.get(name, math.inf):
            self.chain.fault(name)
        self.heard[name] = at

    def silence(self, name: str) -> None:
        """Let earlier messages of an input not count any more."""
        self.heard[name] = -math.inf

    def silent(self, name: str, now: float) -> float:
        """Return s since an input was received, at `now` s of our clock, in simulated time too; ∞ without any."""
        return now - self.heard.get(name, -math.inf)

    def of(self, name: str, now: float) -> float:
        """Return the age as `silent` does, but in simulated time no time passes between two states."""
        return 0.0 if self.simulated and name in self.heard else self.silent(name, now)

    def begin(self, now: float, time: float) -> None:
        """Begin an episode: inputs that were silent before count from now on, except for the operator's enable."""
        for dog in self.chain.watchdogs:
            if dog.name != "enable":
                self.heard.setdefault(dog.name, now)
        self.tell(now, time)

    def tell(self, now: float, time: float) -> None:
        """Tell the watchdogs at `time` s of the ticks, which is `now` s of our clock."""
        for dog in self.chain.watchdogs:
            self.chain.feed(dog.name, time - self.of(dog.name, now))

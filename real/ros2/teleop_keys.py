"""A human's keys and sticks that come over a topic, as text: a key's name, or `stick` and four deflections."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import numpy as np

from robopolicy.real.safety import SafetyError
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.teleoperation.keys import NAMES, OTHER, InputLostError, Keys
from robopolicy.real.teleoperation.teleoperator import MOVES

LOST, STICK = "lost", "stick"  # the source of keys is gone; then deflections −1 … 1
STOPS = ("x", LOST)  # go before whatever waits, and are never dropped
KNOWN = frozenset({*MOVES, *NAMES.values(), OTHER, LOST, "t", "p", "b", "x"})
FRESH = 0.15  # s that a deflection counts: a held stick repeats it; older ones are dropped
_MOST = 64  # texts at a time


class RemoteKeys:
    """A `robopolicy.real.teleoperation.keys.Keys` with a stick, fed by messages.

    Args:
        clock: s, steady.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._waiting: deque[str] = deque(maxlen=256)
        self._at: Array = np.zeros(4)
        self._told, self._lost, self._quit = -np.inf, False, False

    def press(self, text: str) -> None:
        """Take a key or deflections.

        Raises:
            SafetyError: it is no key, and no four numbers from −1 to 1.
        """
        word, *rest = text.split() or [""]
        if word == STICK:
            at: Array
            try:
                at = np.array([float(x) for x in rest])
            except ValueError:
                at = np.full(4, np.nan)
            if at.shape != (4,) or not (np.abs(at) <= 1.0).all():
                raise SafetyError(f"keys: expected {STICK} and four numbers from -1 to 1, found {text[:80]!r}")
            self._at, self._told = at, self.clock()
        elif text in STOPS:
            self._quit, self._lost = self._quit or text == "x", self._lost or text == LOST
        elif text in KNOWN:
            self._waiting.append(text)
        else:
            raise SafetyError(f"keys: {text[:80]!r} is no key; expected one of {sorted(KNOWN)}")

    def __call__(self) -> str | None:
        if self._quit:
            self._quit = False
            return "x"
        if self._lost:
            raise InputLostError("keys: the operator's input is gone")
        return self._waiting.popleft() if self._waiting else None

    def stick(self) -> Array:
        """Return the newest deflections [4]; zero once they are old."""
        fresh = 0.0 <= self.clock() - self._told < FRESH
        return self._at.copy() if fresh and not self._lost else np.zeros(4)


class Forwarder:
    """Hands keys over as texts.

    Args:
        keys: of a terminal or another device.
        stick: its sticks, where it has any.
        send: takes a text.
    """

    def __init__(self, keys: Keys, stick: Callable[[], Array] | None, send: Callable[[str], None]) -> None:
        self.keys, self.stick, self.send = keys, stick, send
        self.over = ""  # why there will be no more keys
        self._moved = False

    def pump(self) -> None:
        """Send all waiting keys and deflections."""
        for _ in range(0 if self.over else _MOST):
            try:
                key = self.keys()
            except InputLostError as error:
                self.over = str(error)
                self.send(LOST)
                return
            if key is None:
                break
            self.send(key)
            if key == "x":
                self.over = "stopped by the operator"
        if self.stick is not None and not self.over:
            at = self.stick()
            if at.any() or self._moved:
                self.send(f"{STICK} {' '.join(f'{x:.4f}' for x in at)}")
            self._moved = bool(at.any())

    def quit(self) -> None:
        """Stop the arm and end, as the key for it does."""
        if not self.over:
            self.over = "interrupted"
            self.send("x")

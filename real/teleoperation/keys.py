"""Where keys come from: a terminal, or whatever else hands them over one at a time."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from robopolicy.core.errors import ConfigError, RobopolicyError

# The next key that was pressed: a small letter, digit or sign, or one of NAMES' values; None: none is waiting.
# Raises InputLostError once there will never be another.
Keys = Callable[[], str | None]

NAMES = {0x0D: "enter", 0x0A: "enter", 0x7F: "backspace", 0x08: "backspace", 0x20: "space", 0x09: "tab"}
OTHER = "other"  # arrows and the like: a key, but none of ours
_ESCAPE = 0x1B


class InputLostError(RobopolicyError):
    """The keyboard is gone: end of input, a terminal that was closed."""


class Terminal:
    """Keys of a terminal as they are pressed, without Enter and without an echo. A context manager, and a `Keys`.

    A terminal sends presses alone, never releases: a held key repeats. Ctrl-C interrupts as usual. A terminal that
    is closed does not end the process: reading raises, so that the arm can be stopped first.

    Args:
        fd: of the terminal; None: standard input.

    Raises:
        ConfigError: it is not a terminal.
    """

    def __init__(self, fd: int | None = None) -> None:
        try:
            self.fd = sys.stdin.fileno() if fd is None else fd
        except (ValueError, OSError, AttributeError):  # closed, or replaced by something without a descriptor
            self.fd = -1
        if self.fd < 0 or not os.isatty(self.fd):
            raise ConfigError(
                "keyboard: standard input is not a terminal, found a file, a pipe or nothing. Start the command in a "
                "terminal of its own, without redirecting its input (over ssh: ssh -t)."
            )
        self._waiting: deque[str] = deque()

    def __enter__(self) -> Terminal:
        self._before = termios.tcgetattr(self.fd)
        tty.setcbreak(self.fd)
        termios.tcflush(self.fd, termios.TCIFLUSH)
        self._hangup: Any = None
        with suppress(ValueError):  # only the main thread may
            self._hangup = signal.signal(signal.SIGHUP, lambda number, frame: None)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(termios.error, OSError):  # gone
            termios.tcsetattr(self.fd, termios.TCSAFLUSH, self._before)
        if self._hangup is not None:
            signal.signal(signal.SIGHUP, self._hangup)

    def __call__(self) -> str | None:
        if not self._waiting:
            self._waiting.extend(keys_of(self._read()))
        return self._waiting.popleft() if self._waiting else None

    def _read(self) -> bytes:
        try:
            if not select.select([self.fd], [], [], 0.0)[0]:
                return b""
            data = os.read(self.fd, 4096)
        except (OSError, ValueError) as error:
            raise InputLostError(f"keyboard: the terminal is gone ({error})") from error
        if not data:
            raise InputLostError("keyboard: end of input")
        return data


def keys_of(data: bytes) -> list[str]:
    """Return the keys that a terminal's bytes stand for; capital letters count as small ones."""
    found, at = [], 0
    while at < len(data):
        byte = data[at]
        at += 1
        if byte == _ESCAPE:  # a sequence such as that of an arrow must not be taken for the letters in it
            if data[at : at + 1] in (b"[", b"O"):
                at += 1
                while at < len(data) and not 0x40 <= data[at] <= 0x7E:
                    at += 1
            at += 1
            found.append(OTHER)
        elif byte == 0x04:
            raise InputLostError("keyboard: end of input (Ctrl-D)")
        elif byte in NAMES:
            found.append(NAMES[byte])
        else:
            found.append(chr(byte).lower() if 0x20 < byte < 0x7F else OTHER)
    return found

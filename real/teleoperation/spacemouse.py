"""A SpaceMouse: a cap that moves the arm while it is deflected and springs back, beside the keys of a terminal.

Linux's event interface is read as it is (linux/input.h), so neither a driver nor a package is needed. Older kernels
report the cap as relative axes, which are silent at rest, newer ones as absolute axes, which tell their zero.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import struct
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robopolicy.core.errors import ConfigError
from robopolicy.real.teleoperation.event_device import EventDevice, deflection
from robopolicy.real.teleoperation.keys import Keys, Terminal

Array = NDArray[np.float64]

DEVICES = "/dev/input/by-id/*3Dconnexion*event*"
# Axis of the cap: (of robopolicy.real.teleoperation.teleoperator.AXES, direction); + is right, towards you, down, and
# for the twist clockwise
CAP = {1: (0, -1.0), 0: (1, -1.0), 2: (2, -1.0), 5: (3, -1.0)}
BUTTONS = {0x100: "space", 0x101: "t"}  # left, right
MOUSE_MAP = """\
  push the cap   away from the base, back, left, right    left button   close or open the gripper
  pull, press    up, down; twist it to turn               x, Ctrl-C     stop the arm and end
  let go         the arm stands"""
MOUSE_POLICY = """\
  right button   take over from the policy                p   hand back to the policy
  b              take over, and go back the way the arm came"""
HELD_S = 0.1  # s for which a relative axis counts; while the cap is deflected it speaks every 8 to 16 ms

_EVENT = struct.Struct("@llHHi")  # s, µs, type, code, value
_KEY, _REL, _ABS = 0x01, 0x02, 0x03  # types
_FULL = 350.0  # of a deflection, of most devices
_SIX = 0x3F  # bits of the axes x y z rx ry rz
_GRAB = 0x40044590


class SpaceMouse:
    """A `robopolicy.real.teleoperation.keys.Keys` with a cap, and a context manager.

    Args:
        path: of the event device; None: the first one of 3Dconnexion.
        keys: of the words that its two buttons do not say; None: those of this terminal.
        fd, relative: instead of a path, something that hands over such events, and of which kind; for tests.

    Raises:
        ConfigError: there is none, it may not be read, has no six axes, or another program holds it; no terminal.
    """

    def __init__(
        self, path: str | Path | None = None, *, keys: Keys | None = None, fd: int | None = None,
        relative: bool = False, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.keys = Terminal() if keys is None else keys
        self.relative, self.full, self.clock = relative, _FULL, clock
        self.path, self._at, self._told = str(path or ""), np.zeros(4), np.full(4, -np.inf)
        self._device = EventDevice(self._open(path) if fd is None else fd, _EVENT, "spacemouse")
        self._waiting: deque[str] = deque()
        self._centred, self._since = False, self.clock()  # whether the cap was let go since the beginning
        self._contexts = ExitStack()

    def __enter__(self) -> SpaceMouse:
        if isinstance(self.keys, Terminal):
            self._contexts.enter_context(self.keys)
        return self

    def __exit__(self, *_: object) -> None:
        self._contexts.close()
        self._device.close()

    def __call__(self) -> str | None:
        self._read()
        return self._waiting.popleft() if self._waiting else self.keys()

    def stick(self) -> Array:
        """Return [4] −1 … 1 along `teleoperator.AXES`; 0 before the cap was seen at rest."""
        now = self.clock()
        at = np.where(now - self._told < HELD_S, self._at, 0.0) if self.relative else self._at
        self._centred |= not at.any() and now - self._since > HELD_S
        return at.copy() if self._centred and not self._device.lost else np.zeros(4)

    # -- inside -----------------------------------------------------------------------------------------------------
    def _open(self, path: str | Path | None) -> int:
        found = [str(path)] if path is not None else sorted(glob.glob(DEVICES))
        refused = ""
        for name in found:
            try:
                fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
            except OSError as error:
                refused = f"{name} may not be read ({error}); `sudo usermod -aG input $USER`"
                continue
            if why := self._take(fd):
                os.close(fd)
                refused = f"{name} {why}"
                continue
            self.path = name
            return fd
        raise ConfigError(
            f"spacemouse: {refused or f'there is none ({DEVICES})'}. Plug one in, or name its device: "
            "drive.spacemouse=/dev/input/event7"
        )

    def _take(self, fd: int) -> str:
        """Learn which kind of axes a device has, and keep its events from other programs; return why it is refused."""
        try:
            kinds = {kind: fcntl.ioctl(fd, _asked(0x20 + kind, 8), bytes(8))[0] & _SIX for kind in (_REL, _ABS)}
            if _SIX not in kinds.values():
                return "has no six axes, so it is no SpaceMouse"
            self.relative = kinds[_ABS] != _SIX
            for code in () if self.relative else CAP:  # which tell changes alone
                value, _, highest, *_ = struct.unpack("6i", fcntl.ioctl(fd, _asked(0x40 + code, 24), bytes(24)))
                self.full = float(highest) if highest > 0 else _FULL
                self._deflect(code, value)
            fcntl.ioctl(fd, _GRAB, 1)
        except OSError as error:
            return "is held by another program, such as spacenavd" if error.errno == errno.EBUSY else f"({error})"
        return ""

    def _read(self) -> None:
        """Take all events that there are.

        Raises:
            InputLostError: the device is gone.
        """
        for _, _, kind, code, value in self._device.events():
            if kind == (_REL if self.relative else _ABS) and code in CAP:
                self._deflect(code, value)
            elif kind == _KEY and value == 1 and code in BUTTONS:
                self._waiting.append(BUTTONS[code])

    def _deflect(self, code: int, value: int) -> None:
        axis, direction = CAP[code]
        self._at[axis], self._told[axis] = direction * deflection(value, self.full), self.clock()


def _asked(number: int, size: int) -> int:
    """Return the ioctl that reads `size` bytes of an event device (EVIOCGBIT, EVIOCGABS)."""
    return 2 << 30 | size << 16 | ord("E") << 8 | number

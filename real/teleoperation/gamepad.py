"""A gamepad: sticks that move the arm while a button is held, and buttons that stand for keys.

Linux's joystick interface is read as it is (linux/joystick.h: 8 bytes an event), so no package is needed:
drivers for all common pads are in the kernel, the format has not changed in twenty years, and the arms that this drives
are on Linux. Numbers of axes and buttons are those that the kernel gives to pads of the Xbox kind (driver xpad); sticks
and shoulder buttons are the same for most others.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections import deque
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robopolicy.core.errors import ConfigError
from robopolicy.real.teleoperation.event_device import EventDevice, deflection
from robopolicy.real.teleoperation.keys import OTHER

Array = NDArray[np.float64]

DEVICE = "/dev/input/js0"
# Axis: (of robopolicy.real.teleoperation.teleoperator.AXES, direction)
STICKS = {1: (0, -1.0), 0: (1, -1.0), 4: (2, -1.0), 3: (3, -1.0)}
# The keys of robopolicy.real.teleoperation.teleoperator
BUTTONS = {0: "space", 1: "b", 2: "p", 3: "t", 6: "backspace", 7: "enter", 8: "x"}
HOLD = (4, 5)  # the shoulder buttons, one of which must be held
MOVING = ("space", "b", "p")  # count only while it is: they move the arm
PAD_MAP = """\
  hold LB or RB to move anything; let go, and the arm stands
  left stick    away from the base, back, left, right     A     close or open the gripper
  right stick   up, down; turn left, right                guide, Ctrl-C   stop the arm and end"""
PAD_RECORD = """\
  start  keep this episode, end it        back   discard it, begin the same scene again"""
PAD_POLICY = """\
  Y      take over from the policy        X      hand back to the policy (held)
  B      take over, and go back the way the arm came, while held"""

_EVENT = struct.Struct("=IhBB")  # ms, value, type, number
_BUTTON, _AXIS, _STATE = 0x01, 0x02, 0x80  # types; the last one: how it is, not a change
_AXES, _NUMBER_OF_BUTTONS = 0x80016A11, 0x80016A12  # ioctls of one byte
_FULL = 32767  # of a deflection


class Gamepad:
    """A `robopolicy.real.teleoperation.keys.Keys` with sticks, and a context manager.

    Args:
        path: of the joystick device.
        fd: instead, something that is open and hands over such events; for tests.

    Raises:
        ConfigError: there is none, it may not be read, or it has too few sticks or buttons.
    """

    def __init__(self, path: str | Path = DEVICE, *, fd: int | None = None) -> None:
        self.path = str(path)
        self._device = EventDevice(self._open() if fd is None else fd, _EVENT, "gamepad")
        self._waiting: deque[str] = deque()
        self._at, self._held = np.zeros(4), set[int]()
        self._centred = False  # the sticks were let go since the button is held

    def __enter__(self) -> Gamepad:
        return self

    def __exit__(self, *_: object) -> None:
        self._device.close()

    def __call__(self) -> str | None:
        if not self._waiting:
            self._read()
        return self._waiting.popleft() if self._waiting else None

    def stick(self) -> Array:
        """Return [4] −1 … 1 along `teleoperator.AXES`; 0 without a held shoulder button or centred sticks."""
        return self._at.copy() if self._held and self._centred and not self._device.lost else np.zeros(4)

    # -- inside -----------------------------------------------------------------------------------------------------
    def _open(self) -> int:
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError as error:
            raise ConfigError(
                f"gamepad: there is no {self.path}. Plug one in (`ls /dev/input/js*` shows those that are there), or "
                "name it: drive.gamepad=/dev/input/js1"
            ) from error
        except OSError as error:
            raise ConfigError(
                f"gamepad: {self.path} may not be read ({error}); `sudo usermod -aG input $USER`"
            ) from error
        try:
            axes, buttons = (fcntl.ioctl(fd, request, b"\0")[0] for request in (_AXES, _NUMBER_OF_BUTTONS))
        except OSError as error:
            os.close(fd)
            raise ConfigError(f"gamepad: {self.path} is no joystick ({error})") from error
        if axes <= max(STICKS) or buttons <= max(HOLD):
            os.close(fd)
            raise ConfigError(
                f"gamepad: {self.path} has {axes} axes and {buttons} buttons; two sticks ({max(STICKS) + 1} axes) "
                f"and shoulder buttons ({max(HOLD) + 1} buttons) are needed"
            )
        return fd

    def _read(self) -> None:
        """Take all events that there are.

        Raises:
            InputLostError: the pad is gone.
        """
        for _, value, kind, number in self._device.events():
            if kind & ~_STATE == _AXIS and number in STICKS:
                axis, direction = STICKS[number]
                self._at[axis] = direction * deflection(value, _FULL)
                self._centred |= not self._at.any()
            elif kind & ~_STATE == _BUTTON:
                self._button(number, bool(value), is_event=not kind & _STATE)

    def _button(self, number: int, down: bool, *, is_event: bool) -> None:
        """Take a button that went `down` or up; of a state that is no event only `up` counts."""
        if number in HOLD:
            if down and is_event:
                self._centred = self._centred if self._held else not self._at.any()
                self._held.add(number)
            elif not down and number in self._held:
                self._held.discard(number)
                if not self._held:
                    self._waiting.append(OTHER)  # whatever goes on by itself stops
        elif down and is_event and number in BUTTONS and (self._held or BUTTONS[number] not in MOVING):
            self._waiting.append(BUTTONS[number])

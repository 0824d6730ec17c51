"""An input device of Linux: whole events of a fixed size, and deflections with a dead zone."""

from __future__ import annotations

import errno
import math
import os
import struct
from collections.abc import Iterator
from typing import Any

from robopolicy.real.teleoperation.keys import InputLostError

DEAD = 0.12  # of a deflection: offset of a stick or cap at rest


class EventDevice:
    """Read what an open device hands over. One that is gone is gone for good.

    Args:
        fd: of the device. event: layout of an event. name: of the device in errors.
    """

    def __init__(self, fd: int, event: struct.Struct, name: str) -> None:
        self.fd, self.event, self.name = fd, event, name
        self.lost = ""  # why there will be no more events
        self._torn = b""  # of an event
        os.set_blocking(fd, False)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def events(self) -> Iterator[tuple[Any, ...]]:
        """Return the whole events that there are.

        Raises:
            InputLostError: the device is gone.
        """
        if self.lost:
            raise InputLostError(self.lost)
        gone = "end of input"
        try:
            data = os.read(self.fd, 64 * self.event.size)
        except BlockingIOError:
            return iter(())
        except OSError as error:
            data, gone = b"", f"gone ({'unplugged' if error.errno == errno.ENODEV else error})"
        if not data:
            self.lost = f"{self.name}: {gone}"
            raise InputLostError(self.lost)
        data = self._torn + data
        whole = len(data) - len(data) % self.event.size
        self._torn = data[whole:]
        return self.event.iter_unpack(data[:whole])


def deflection(value: float, full: float) -> float:
    """Return −1 … 1 of a stick or cap at `value` of `full`; 0 within DEAD."""
    return math.copysign(min(1.0, max(0.0, abs(value) / full - DEAD) / (1.0 - DEAD)), value)

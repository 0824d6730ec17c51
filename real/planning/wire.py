"""Messages of real/planning/wire_messages.py over a socket, each within its time."""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from robopolicy.real.planning.wire_messages import FRAME, Message, WireError, arrays_of, encode, frame_of, header_of


def send(
    to: socket.socket, head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None, *, timeout: float
) -> None:
    """Send one message within `timeout` s.

    Raises:
        WireError: see `encode`; the other side does not take it.
    """
    data = encode(head, arrays or {})
    try:
        to.settimeout(timeout)
        to.sendall(data)  # in all, under TLS too
    except OSError as error:
        raise WireError(f"the connection broke while sending: {_why(error)}") from error


def receive(sender: socket.socket, *, limit: int, timeout: float) -> Message:
    """Receive the next whole message within `timeout` s; otherwise as `decode`.

    Raises:
        WireError: as of `decode`; cut off, or not there in time.
    """
    until = time.monotonic() + timeout
    frame = frame_of(_exactly(sender, FRAME.size, until), limit=limit)
    head, layouts = header_of(_exactly(sender, frame.head, until), frame.body)
    return Message(head, arrays_of(layouts, _exactly(sender, frame.body, until)))


def ready(line: socket.socket, seconds: float) -> bool:
    """Whether there is something to read before so many s are over."""
    if isinstance(line, ssl.SSLSocket) and line.pending():
        return True
    with selectors.DefaultSelector() as selector:
        selector.register(line, selectors.EVENT_READ)
        return bool(selector.select(seconds))


def _exactly(sender: socket.socket, size: int, until: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        left = until - time.monotonic()
        if left <= 0:
            raise WireError("time-out: the message did not come in time")
        try:
            sender.settimeout(left)
            part = sender.recv(min(size - len(data), 1 << 20))
        except OSError as error:
            raise WireError(f"the connection broke: {_why(error)}") from error
        if not part:
            raise WireError("the connection was closed by the other side")
        data += part
    return bytes(data)


def _why(error: OSError) -> str:
    return "time-out" if isinstance(error, TimeoutError) else str(error) or type(error).__name__

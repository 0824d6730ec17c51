"""Messages between an arm and its policy server: a JSON header and raw little-endian arrays. Nothing runs code.

b"RPW1" · u32 bytes of the header · u32 bytes of the arrays · header · arrays. Sizes are checked before anything is
read, arrays against what the header says of them.
"""

from __future__ import annotations

import json
import math
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robopolicy.errors import RobopolicyError

PROTOCOL = 1
HEADER = 256 * 1024  # bytes that a header may have: a spec with thousands of names fits
_MAGIC, _FRAME = b"RPW1", struct.Struct("<4sII")
_TYPES = {"float32": "<f4", "float64": "<f8", "int64": "<i8", "uint8": "|u1"}


class WireError(RobopolicyError):
    """A message that is refused, or that does not come."""


class Message(NamedTuple):
    """What one side says: `head["type"]` and more, and arrays by name."""

    head: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


def send(
    to: socket.socket, head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None, *, timeout: float
) -> None:
    """Send one message within `timeout` s.

    Raises:
        WireError: an array of another type than float32, float64, int64, uint8; the other side does not take it.
    """
    parts, about = [], []
    for name, value in (arrays or {}).items():
        if value.dtype.name not in _TYPES:
            raise WireError(f"{name!r}: {value.dtype} is not sent, only {', '.join(_TYPES)}")
        about.append([name, value.dtype.name, list(value.shape)])
        parts.append(np.ascontiguousarray(value, dtype=_TYPES[value.dtype.name]).tobytes())
    text, body = json.dumps({**head, "arrays": about}).encode(), b"".join(parts)
    try:
        to.settimeout(timeout)
        to.sendall(_FRAME.pack(_MAGIC, len(text), len(body)) + text + body)
    except OSError as error:
        raise WireError(f"the connection broke while sending: {_why(error)}") from error


def receive(sender: socket.socket, *, limit: int, timeout: float) -> Message:
    """The next message, whole, within `timeout` s.

    Args:
        limit: bytes of arrays that are taken.

    Raises:
        WireError: too large, malformed, cut off, or not there in time.
    """
    until = time.monotonic() + timeout
    magic, head_size, body_size = _FRAME.unpack(_exactly(sender, _FRAME.size, until))
    if magic != _MAGIC:
        raise WireError(f"expected a robopolicy message, found {magic!r}; does one side speak TLS, the other not?")
    if head_size > HEADER or body_size > limit:
        raise WireError(
            f"oversized message: header {head_size} bytes (at most {HEADER}), arrays {body_size} (at most {limit})"
        )
    try:
        head = json.loads(_exactly(sender, head_size, until))
        described = [(str(name), str(kind), tuple(int(n) for n in shape)) for name, kind, shape in head["arrays"]]
        sizes = [np.dtype(_TYPES[kind]).itemsize * math.prod(shape) for _, kind, shape in described]
        if any(n < 0 for _, _, shape in described for n in shape) or not isinstance(head["type"], str):
            raise ValueError("a negative size, or a type that is no text")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WireError(f"malformed message: {type(error).__name__}: {error}") from error
    if sum(sizes) != body_size:
        raise WireError(f"malformed message: its arrays take {sum(sizes)} bytes, {body_size} were announced")
    body, arrays, at = _exactly(sender, body_size, until), {}, 0
    for (name, kind, shape), size in zip(described, sizes, strict=True):
        arrays[name] = np.frombuffer(body[at : at + size], dtype=_TYPES[kind]).reshape(shape).astype(kind)
        at += size
    return Message(head, arrays)


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

"""Messages between an arm and its policy server: a JSON header and raw little-endian arrays. No message runs code.

b"RPW1" · u32 bytes of the header · u32 bytes of the arrays · header · arrays. Sizes are checked before anything is
read, every field and array against `MESSAGES` and the bytes before anything is made of them.
"""

from __future__ import annotations

import json
import math
import selectors
import socket
import ssl
import struct
import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pydantic
from numpy.typing import NDArray

from robopolicy.core.errors import RobopolicyError
from robopolicy.core.untrusted import checked, parse_json

PROTOCOL = 1
HEADER = 256 * 1024  # bytes that a header may have: a spec with thousands of names fits
ARRAYS, RANK, REASON = 256, 8, 4000  # arrays of a message, their axes; characters of a reason
_MAGIC, FRAME = b"RPW1", struct.Struct("<4sII")
_TYPES = {"float32": "<f4", "float64": "<f8", "int64": "<i8", "uint8": "|u1"}

Count = Annotated[int, pydantic.Field(ge=0, lt=2**63)]
Shape = Annotated[list[Count], pydantic.Field(max_length=RANK)]
Layout = tuple[str, Literal["float32", "float64", "int64", "uint8"], Shape]  # name, type, shape
MESSAGES: dict[str, dict[str, Any]] = {  # by type: type and default of its fields; others are ignored
    "hello": {"protocol": (Count, ...), "spec": (str | None, None), "token": (str | None, None)},
    "welcome": {"policy": (str, ...), "history": (Count, ...), "keys": (list[str], ...)},
    "reset": {"seed": (Count, ...)},
    "ready": {},
    "plan": {"step": (Count, ...), "delay": (Count | None, None)},
    "chunk": {"step": (Count, ...)},
    "refused": {"reason": (str, ...)},  # and closed
    "loaded": {"history": (Count, ...)},  # these two are of a planner's process
    "failed": {"reason": (str, ...)},
}
_HEADERS = {
    kind: pydantic.TypeAdapter(
        pydantic.create_model(
            kind, arrays=(Annotated[list[Layout], pydantic.Field(max_length=ARRAYS)], ...), **fields
        )
    )
    for kind, fields in MESSAGES.items()
}  # fmt: skip


class WireError(RobopolicyError):
    """A message that is refused, or that does not come."""


class Message(NamedTuple):
    """One side's message: `head["type"]`, the fields that MESSAGES has for it, and arrays by name."""

    head: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


def encode(head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Encode a message as bytes.

    Raises:
        WireError: an array of another type than float32, float64, int64, uint8; a message that is too large.
    """
    parts, about = [], []
    for name, value in arrays.items():
        if value.dtype.name not in _TYPES:
            raise WireError(f"{name!r}: {value.dtype} is not sent, only {', '.join(_TYPES)}")
        about.append([name, value.dtype.name, list(value.shape)])
        parts.append(np.ascontiguousarray(value, dtype=_TYPES[value.dtype.name]).tobytes())
    text, body = json.dumps({**head, "arrays": about}).encode(), b"".join(parts)
    if len(text) > HEADER or len(body) >= 2**32:
        raise WireError(f"oversized message: header {len(text)} bytes (at most {HEADER}), arrays {len(body)}")
    return FRAME.pack(_MAGIC, len(text), len(body)) + text + body


def decode(data: bytes, *, limit: int) -> Message:
    """Decode the message that `data` is, no more and no less; `limit`: bytes of arrays that are taken.

    Raises:
        WireError: it is none; names field or array, found and expected.
    """
    head, body = _sizes(data[: FRAME.size], limit)
    at = FRAME.size + head
    if len(data) != at + body:
        raise WireError(f"malformed message: {head + body} bytes were announced, {len(data) - FRAME.size} came")
    found = parse_json(data[FRAME.size : at], "malformed message: its header", error=WireError)
    kind = found.get("type") if isinstance(found, dict) else None
    if not isinstance(kind, str) or kind not in MESSAGES:
        raise WireError(f"malformed message: type: expected one of {list(MESSAGES)}, found {printable(repr(kind), 80)}")
    fields = checked(_HEADERS[kind], found, f"malformed message: {kind}", error=WireError).model_dump()
    layouts = [(name, np.dtype(_TYPES[dtype]), shape) for name, dtype, shape in fields.pop("arrays")]
    # beside an axis of 0 the others may have any length: numpy must be able to count them
    if big := [name for name, _, shape in layouts if math.prod(max(n, 1) for n in shape) > 2**32]:
        raise WireError(f"malformed message: {printable(repr(big[0]), 80)}: expected at most 2³² elements")
    if (size := sum(dtype.itemsize * math.prod(shape) for _, dtype, shape in layouts)) != body:
        raise WireError(f"malformed message: its arrays take {size} bytes, {body} were announced")
    arrays: dict[str, NDArray[Any]] = {}
    for name, dtype, shape in layouts:
        arrays[name] = np.ndarray(shape, dtype, data, at).astype(dtype.name)
        at += arrays[name].nbytes
    if len(arrays) != len(layouts):
        raise WireError("malformed message: arrays: expected each name once")
    return Message({"type": kind, **fields}, arrays)


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
    frame = _exactly(sender, FRAME.size, until)
    return decode(frame + _exactly(sender, sum(_sizes(frame, limit)), until), limit=limit)


def ready(line: socket.socket, seconds: float) -> bool:
    """Whether there is something to read before so many s are over."""
    if isinstance(line, ssl.SSLSocket) and line.pending():
        return True
    with selectors.DefaultSelector() as selector:
        selector.register(line, selectors.EVENT_READ)
        return bool(selector.select(seconds))


def printable(text: str, most: int = REASON) -> str:
    """Clean `text` of the other side or of a policy for a terminal: no control characters, not too long."""
    short = text if len(text) <= most else text[:most] + " …"
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in short)


# -- inside ---------------------------------------------------------------------------------------------------------
def _sizes(frame: bytes, limit: int) -> tuple[int, int]:
    """Read how many bytes of header and of arrays follow a frame; raises WireError where they are too many."""
    if len(frame) < FRAME.size:
        raise WireError(f"malformed message: {len(frame)} bytes, a message begins with {FRAME.size}")
    magic, head, body = FRAME.unpack(frame)
    if magic != _MAGIC:
        raise WireError(f"expected a robopolicy message, found {magic!r}; does one side speak TLS, the other not?")
    if head > HEADER or body > limit:
        raise WireError(f"oversized message: header {head} bytes (at most {HEADER}), arrays {body} (at most {limit})")
    return head, body


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

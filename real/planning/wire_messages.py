"""Messages between an arm and its policy server: a JSON header and raw little-endian arrays. No message runs code.

b"RPW1" · u32 bytes of the header · u32 bytes of the arrays · header · arrays. Sizes are checked before anything is
read, every field and array against `MESSAGES` and the bytes before anything is made of them.
"""

from __future__ import annotations

import json
import math
import reprlib
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robopolicy.core.errors import RobopolicyError
from robopolicy.core.untrusted import parse_json

PROTOCOL = 1
HEADER = 256 * 1024  # bytes that a header may have: a spec with thousands of names fits
ARRAYS, RANK, REASON = 256, 8, 4000  # arrays of a message, their axes; characters of a reason
_MAGIC, FRAME = b"RPW1", struct.Struct("<4sII")
_TYPES = {"float32": "<f4", "float64": "<f8", "int64": "<i8", "uint8": "|u1"}


class WireError(RobopolicyError):
    """A message that is refused, or that does not come."""


class Message(NamedTuple):
    """One side's message: `head["type"]`, the fields that MESSAGES has for it, and arrays by name."""

    head: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


class MessageFrame(NamedTuple):
    """Bytes that follow a frame."""

    head: int
    body: int


class _Layout(NamedTuple):
    name: str
    kind: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:  # bytes
        return np.dtype(_TYPES[self.kind]).itemsize * math.prod(self.shape)


class _Field(NamedTuple):
    expected: str
    fits: Callable[[Any], bool]


def _text(value: Any) -> bool:
    return type(value) is str


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


TEXT = _Field("text", _text)
COUNT = _Field("a whole number from 0 to 2⁶³", _count)
NAMES = _Field("a list of texts", lambda value: type(value) is list and all(map(_text, value)))
OPTIONAL_TEXT = _Field("text or null", lambda value: value is None or _text(value))
OPTIONAL_COUNT = _Field(f"{COUNT.expected}, or null", lambda value: value is None or _count(value))
MESSAGES: dict[str, dict[str, _Field]] = {  # by type; other fields are ignored, absent optional ones are None
    "hello": {"protocol": COUNT, "spec": OPTIONAL_TEXT, "token": OPTIONAL_TEXT},
    "welcome": {"policy": TEXT, "history": COUNT, "keys": NAMES},
    "reset": {"seed": COUNT},
    "ready": {},
    "plan": {"step": COUNT, "delay": OPTIONAL_COUNT},
    "chunk": {"step": COUNT},
    "refused": {"reason": TEXT},  # and closed
    "loaded": {"history": COUNT},  # these two are of a planner's process
    "failed": {"reason": TEXT},
}


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
    frame = frame_of(data[: FRAME.size], limit=limit)
    if len(data) != FRAME.size + sum(frame):
        raise WireError(f"malformed message: {sum(frame)} bytes were announced, {len(data) - FRAME.size} came")
    at = FRAME.size + frame.head
    head, layouts = header_of(data[FRAME.size : at], frame.body)
    return Message(head, arrays_of(layouts, data[at:]))


def printable(text: str) -> str:
    """Clean `text` of the other side or of a policy for a terminal: no control characters, not too long."""
    short = text if len(text) <= REASON else text[:REASON] + " …"
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in short)


def frame_of(data: bytes, *, limit: int) -> MessageFrame:
    """Read the sizes in the first FRAME.size bytes of a message; raises WireError where they are too large."""
    if len(data) < FRAME.size:
        raise WireError(f"malformed message: {len(data)} bytes, a message begins with {FRAME.size}")
    magic, head, body = FRAME.unpack(data)
    if magic != _MAGIC:
        raise WireError(f"expected a robopolicy message, found {magic!r}; does one side speak TLS, the other not?")
    if head > HEADER or body > limit:
        raise WireError(f"oversized message: header {head} bytes (at most {HEADER}), arrays {body} (at most {limit})")
    return MessageFrame(head, body)


def header_of(text: bytes, body: int) -> tuple[dict[str, Any], list[_Layout]]:
    """Fields and layouts of arrays of a header; raises WireError as `decode`.

    `body`: bytes of its arrays that were announced.
    """
    found = parse_json(text, "malformed message: its header", error=WireError)
    if not isinstance(found, dict):
        raise WireError(f"malformed message: expected a mapping, found {reprlib.repr(found)}")
    kind = found.get("type")
    fields = MESSAGES.get(kind) if isinstance(kind, str) else None
    if fields is None:
        raise WireError(f"malformed message: type: expected one of {list(MESSAGES)}, found {reprlib.repr(kind)}")
    for name, field in fields.items():
        if not field.fits(found.get(name)):
            raise WireError(f"{kind}: {name}: expected {field.expected}, found {reprlib.repr(found.get(name))}")
    layouts = _layouts(found.get("arrays"), body)
    return {"type": kind, **{name: found.get(name) for name in fields}}, layouts


def _layouts(found: Any, body: int) -> list[_Layout]:
    if not isinstance(found, list) or len(found) > ARRAYS:
        raise WireError(f"malformed message: arrays: expected a list of at most {ARRAYS}, found {reprlib.repr(found)}")
    layouts: dict[str, _Layout] = {}
    for item in found:
        if not (isinstance(item, list) and len(item) == 3 and _text(item[0]) and item[0] not in layouts):
            raise WireError(f"malformed message: arrays: expected [name, type, shape], each name once, found "
                            f"{reprlib.repr(item)}")  # fmt: skip
        name, kind, shape = item
        if not (isinstance(kind, str) and kind in _TYPES):
            raise WireError(f"malformed message: {name!r}: expected one of {list(_TYPES)}, found {reprlib.repr(kind)}")
        # beside an axis of 0 the others may have any length: numpy must be able to count them
        if not (isinstance(shape, list) and len(shape) <= RANK and all(map(_count, shape))) or (
            math.prod(max(n, 1) for n in shape) > 2**32
        ):
            raise WireError(f"malformed message: {name!r}: expected a shape of at most {RANK} axes and 2³² elements, "
                            f"found {reprlib.repr(shape)}")  # fmt: skip
        layouts[name] = _Layout(name, kind, tuple(shape))
    if (size := sum(layout.size for layout in layouts.values())) != body:
        raise WireError(f"malformed message: its arrays take {size} bytes, {body} were announced")
    return list(layouts.values())


def arrays_of(layouts: list[_Layout], body: bytes) -> dict[str, NDArray[Any]]:
    """Arrays that the layouts of `header_of` describe, copied from `body`, which is as long as was announced."""
    found, at = {}, 0
    for layout in layouts:
        flat = np.frombuffer(body, _TYPES[layout.kind], math.prod(layout.shape), at) if layout.size else np.zeros(0)
        found[layout.name] = flat.reshape(layout.shape).astype(layout.kind)
        at += layout.size
    return found

"""The decoder of messages: what is malformed is refused by name, before anything is made of it."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections import Counter
from contextlib import suppress

import numpy as np
import pytest

from robopolicy.real.planning.wire import FRAME, HEADER, MESSAGES, WireError, decode, encode, printable

ODD = [
    None, True, False, -1, 0, 1, 2**31, 2**63, 2**64, 10**400, 0.5, 1e999, float("nan"), float("-inf"), "", "x",
    "\ud800", "\x00", "float32", "x" * 5000, [], [[]], {}, {"a": 1}, [-1], [0.5], [2**62, 2**62], [0, 2**63 - 1],
    [1] * 80, ["a", "a"], [None], [[[[[[[[[[[1]]]]]]]]]]],
]  # fmt: skip
LIMIT = 1 << 20


def framed(head: object, body: bytes = b"") -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return FRAME.pack(b"RPW1", len(text), len(body)) + text + body


def message(arrays: list, **changes) -> dict:
    return {"type": "plan", "step": 3, "arrays": arrays, **changes}


def mutated(data: bytes, rng: random.Random) -> bytes:
    """`data`, a message, with one thing in it changed: bytes, sizes, or a value anywhere in its header."""
    kind = rng.randrange(6)
    if kind == 0:  # bytes
        changed = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        return bytes(changed)
    if kind == 1:
        return data[: rng.randrange(len(data))]
    magic, head, body = FRAME.unpack(data[: FRAME.size])
    if kind == 2:
        sizes = [head, body]
        sizes[rng.randrange(2)] = rng.choice([0, 1, head + 1, body + 1, 2**20, 2**31, 2**32 - 1])
        return FRAME.pack(magic, *sizes) + data[FRAME.size :]
    text, rest = data[FRAME.size : FRAME.size + head], data[FRAME.size + head :]
    if kind == 3:
        others = [
            b"[" * 90_000, b'{"a":' * 40_000, text[:-1] + b',"type":"reset"}', b"\xff" + text, b"[Infinity]",
            text.replace(b":", b":-", 1), text[:-1], text + b"}", b'"' * 1001, b"",
        ]  # fmt: skip
        text = rng.choice(others)
        return FRAME.pack(magic, len(text), len(rest)) + text + rest
    value = json.loads(text)
    places = [(value, key) for key in value]
    for container, key in places:
        inner = container[key]
        if isinstance(inner, dict | list):
            places += [(inner, k) for k in (inner if isinstance(inner, dict) else range(len(inner)))]
    container, key = rng.choice(places)
    if kind == 4 or isinstance(container, list):
        container[key] = rng.choice(ODD)
    else:
        del container[key]
    return framed(value, rest)


def test_what_is_encoded_is_decoded():
    arrays = {
        "a": np.arange(6, dtype=np.int64).reshape(2, 3).T, "b": np.float32(1.5).reshape(()), "c": np.zeros((0, 4)),
        "ü": np.full((1, 2, 2), 7, np.uint8),
    }  # fmt: skip
    found = decode(encode({"type": "chunk", "step": 2**63 - 1, "unknown": [[1]]}, arrays), limit=48 + 4 + 4)
    assert found.head == {"type": "chunk", "step": 2**63 - 1}
    assert list(found.arrays) == list(arrays)
    for name, value in arrays.items():
        assert found.arrays[name].dtype == value.dtype and found.arrays[name].flags.writeable
        np.testing.assert_array_equal(found.arrays[name], value)


MALFORMED = [
    ("found b'GET '", b"GET / HTTP/1.1\r\n"),
    ("malformed", b"RPW1"),
    ("oversized", FRAME.pack(b"RPW1", HEADER + 1, 0)),
    ("oversized", FRAME.pack(b"RPW1", 2, LIMIT + 1)),
    ("announced", framed(message([])) + b"x"),
    ("announced", framed(message([]))[:-1]),
    ("levels", framed(b"[" * 90_000)),
    ("levels", framed(b'{"a":' * 40_000)),
    ("levels", framed(b'{"type":"ready","arrays":[],"a":"\\"","b":' + b"[" * 100 + b"]" * 100 + b"}")),
    ("Infinity", framed(b"[Infinity]")),
    ("NaN", framed(message([], other=float("nan")))),
    ("twice", framed(b'{"type":"plan","type":"ready","step":1,"arrays":[]}')),
    ("header", framed(b'{"type":"\xff"}')),
    ("type", framed([1])),
    ("type", framed({})),
    ("type", framed({"type": ["ready"]})),
    ("type", framed({"type": "run"})),
    ("surrogate", framed({"type": "\ud800"})),
    ("surrogate", framed({"type": "refused", "reason": "\ud800", "arrays": []})),
    ("step", framed(message([], step=1.0))),
    ("step", framed(message([], step=-1))),
    ("step", framed(message([], step=True))),
    ("step", framed(message([], step=2**63))),
    ("step", framed({"type": "plan", "arrays": []})),
    ("step", framed(message([], step="3"))),
    ("delay", framed(message([], delay=[1]))),
    ("keys", framed({"type": "welcome", "policy": "", "history": 1, "keys": [1], "arrays": []})),
    ("arrays", framed({"type": "ready"})),
    ("arrays", framed(message([["x"]]))),
    ("arrays", framed(message([["x", "uint8", [1]]] * 2), b"1")),
    ("arrays", framed(message([[f"x{i}", "uint8", [0]] for i in range(1000)]))),
    ("arrays", framed(message([[1, "uint8", [1]]]), b"1")),
    ("reason", framed({"type": "refused", "reason": 1, "arrays": []})),
    ("arrays", framed(message([["x", "object", [1]]]), b"1")),
    ("arrays", framed(message([["x", ["uint8"], [1]]]), b"1")),
    ("arrays", framed(message([["x", "uint8", [1] * 80]]), b"1")),
    ("arrays", framed(message([["x", "uint8", [0.5]]]))),
    ("arrays", framed(message([["x", "uint8", [-1, -1]]]), b"1")),
    ("arrays", framed(message([["x", "uint8", [True]]]), b"1")),
    ("arrays", framed(message([["x", "uint8", [0, 2**70]]]))),
    ("'x'", framed(message([["x", "uint8", [0, 2**62, 2**62]]]))),
    ("arrays", framed(message([["x", "uint8", "1"]]), b"1")),
    ("announced", framed(message([["x", "float64", [2**20, 2**10]]]), b"1")),
]


@pytest.mark.parametrize(("key", "data"), MALFORMED, ids=range(len(MALFORMED)))
def test_what_is_malformed_is_refused_by_name(key, data):
    with pytest.raises(WireError, match=key) as refused:
        decode(data, limit=LIMIT)
    assert len(str(refused.value)) < 1000 and str(refused.value).encode()


def test_brackets_in_text_are_text():
    said = '[{"\\' * 50
    assert decode(encode({"type": "refused", "reason": said}, {}), limit=0).head["reason"] == said


def test_nothing_is_allocated_for_sizes_that_lie():
    lies = [
        FRAME.pack(b"RPW1", HEADER, 2**32 - 1), FRAME.pack(b"RPW1", 2**32 - 1, 0),
        framed(message([["x", "float64", [2**32]]]), b"1"), framed(message([["x", "float64", [0, 2**32]]])),
        framed(message([["x", "uint8", [2**20]]] * 200), b"1"),
    ]  # fmt: skip
    tracemalloc.start()
    for data in lies:
        with suppress(WireError):
            decode(data, limit=2**32)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_brackets_and_quotes_take_no_time():
    """Headers that would take a careless scan minutes."""
    for text in (b'"' + b'\\"' * 120_000, b'\\"' * 120_000, b'{"a":' * 1 + b'"' * 250_000, b"{" + b'"a":1,' * 40_000):
        with pytest.raises(WireError):
            decode(framed(text), limit=0)


def test_mutated_messages_are_messages_or_wire_errors():
    rng, outcomes = random.Random(1), Counter()
    fine = [
        encode({"type": "hello", "protocol": 1, "spec": json.dumps({"a": [1, {"b": 2}]}), "token": None}, {}),
        encode({"type": "welcome", "policy": "it", "history": 2, "keys": ["a", "b"]}, {}),
        encode({"type": "plan", "step": 3, "delay": 1}, {"a": np.zeros((1, 2, 4), np.float32), "b": np.ones(3)}),
        encode({"type": "refused", "reason": "no"}, {}),
    ]
    for _ in range(1000):
        try:
            found = decode(mutated(rng.choice(fine), rng), limit=LIMIT)
        except WireError as error:
            why, found = str(error), None
        if found is None:
            assert why.encode() and len(why) < 1000
            outcomes["refused"] += 1
        else:
            assert set(found.head) == {"type", *MESSAGES[found.head["type"]]}
            assert sum(a.nbytes for a in found.arrays.values()) < 100
            json.dumps(found.head).encode(), repr(found)
            outcomes["taken"] += 1
    assert outcomes["refused"] > 500 and outcomes["taken"] > 15, outcomes


def test_text_of_others_can_be_printed():
    assert printable("a\x1b[2J\ud800ü\nb") == "a\\x1b[2J\\ud800ü\nb"
    assert len(printable("x" * 10**6)) < 5000


def test_what_is_too_large_is_not_sent():
    with pytest.raises(WireError, match="oversized"):
        encode({"type": "refused", "reason": "x" * HEADER}, {})

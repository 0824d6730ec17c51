"""What a stranger may do to a file: every node and every name of its JSON or YAML, its bytes, what it is at all.

A mutation is a label and a function of a folder, which it changes. They come in turns over the nodes of all files, so
that any number of them reaches as many nodes as it can.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from robopolicy.config import registry

Change = Callable[[Path], None]
Json = Any
_RAW = "raw·"  # a text that begins so stands for itself, unquoted


class Mutation(NamedTuple):
    """One change of a folder."""

    label: str
    change: Change
    file: str  # that is changed; "" where it is none of a manifest's


def values(outside: Path) -> list[Json]:
    """What any node is replaced by. `outside`: where nothing may be touched."""
    deep: Json = 0
    for _ in range(200):
        deep = [deep]
    attacks: list[Json] = [
        {"_target_": "subprocess.call", "args": ["touch", f"{outside}/a"]},
        {"_target_": "robopolicy.config.instantiate.allow", "package": "subprocess"},
        {"_target_": "robopolicy.config.registry.allow", "module": "subprocess"},
        {"_target_": "robopolicy.utils.atomic.write_atomically", "path": f"{outside}/b", "data": "x"},
        {"_target_": "os.system", "command": f"touch {outside}/c"},
        {"_target_": "native", "task": "reach"}, {"_target_": "mlp", "_partial_": True},
        {"_target_": "tracker", "run_dir": f"{outside}/d"}, {"_target_": ["mlp"]}, {"_partial_": 3},
    ]  # fmt: skip
    names = ["", "x", "../../../../etc/passwd", "/etc/passwd", f"{outside}/e", "..", "nul\x00", "a" * 100_000,
             f"{_RAW}\"\\ud800\"", "subprocess.call", "robopolicy.config.registry.allow", "__import__", "cuda:99",
             "float32",
             "load", "observation.state", "é\u202e", "1e3", "hub:x/y"]  # fmt: skip
    numbers = [0, -1, 1, 2, 3, 1000, 10**9, 2**63, 10**30, 0.5, -0.5, 1e-300, 1e300, f"{_RAW}1e999", f"{_RAW}NaN",
               f"{_RAW}-Infinity", f"{_RAW}{'9' * 5000}"]  # fmt: skip
    others = [None, True, False, [], {}, [None], [[]], {"": 0}, [1] * 80, [10**6] * 4, deep, ["x", 1, None, {}]]
    return [*attacks, *names, *numbers, *others]


def nodes(document: Json, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all nodes; of long lists the first and the last."""
    yield path
    if isinstance(document, dict):
        for key, value in document.items():
            yield from nodes(value, (*path, key))
    elif isinstance(document, list):
        for i in sorted({0, len(document) - 1} if len(document) > 4 else set(range(len(document)))):
            yield from nodes(document[i], (*path, i))


def at(document: Json, path: Sequence[Any]) -> Json:
    for key in path:
        document = document[key]
    return document


def replaced(document: Json, path: Sequence[Any], value: Json) -> Json:
    """`document` with `value` at `path`."""
    if not path:
        return value
    changed = copy.deepcopy(document)
    at(changed, path[:-1])[path[-1]] = value
    return changed


def dumped(document: Json) -> str:
    """JSON, with raw texts as they are."""
    text = json.dumps(document)
    while (begin := text.find(json.dumps(_RAW)[:-1])) >= 0:
        raw, end = json.JSONDecoder().raw_decode(text[begin:])
        text = text[:begin] + raw[len(_RAW) :] + text[begin + end :]
    return text


def structural(document: Json, path: tuple[Any, ...], rng: random.Random) -> Iterator[tuple[str, str]]:
    """Texts of `document` with the node at `path` gone, renamed, twice, or in other company."""
    if not path:
        return
    parent = at(document, path[:-1])
    without = copy.deepcopy(document)
    del at(without, path[:-1])[path[-1]]
    yield "gone", dumped(without)
    if isinstance(parent, dict):
        key, value = path[-1], parent[path[-1]]
        for label, other in (("renamed", f"{key}_"), ("private", f"_{key}"), ("path", f"../{key}")):
            moved = copy.deepcopy(without)
            at(moved, path[:-1])[other] = value
            yield label, dumped(moved)
        mark = f"mark{rng.random()}"
        twice = copy.deepcopy(document)
        at(twice, path[:-1])[mark] = value
        yield "twice", dumped(twice).replace(json.dumps(mark), json.dumps(key))
    elif isinstance(parent, list):
        longer = copy.deepcopy(document)
        at(longer, path[:-1]).append(parent[path[-1]])
        yield "longer", dumped(longer)


def of_document(
    file: str, document: Json, write: Callable[[Path, str], None], outside: Path, rng: random.Random
) -> Iterator[Mutation]:
    """Mutations of every node, the nodes in turns. `write` puts a text of JSON into a file."""
    pool, paths = values(outside), list(nodes(document))
    known = sorted({name for slot in registry._SLOTS for name in registry.names(slot)})
    orders = {path: rng.sample(range(len(pool)), len(pool)) for path in paths}

    def change(text: str) -> Change:
        return lambda folder: write(folder / file, text)

    for turn in range(len(pool)):
        for path in paths:
            where = ".".join(map(str, path)) or "all"
            value = pool[orders[path][turn]]
            yield Mutation(f"{file}: {where} = {dumped(value)[:60]}", change(dumped(replaced(document, path, value))),
                           file)  # fmt: skip
        if turn == 1:
            for path in paths:
                for label, text in structural(document, path, rng):
                    yield Mutation(f"{file}: {'.'.join(map(str, path))} {label}", change(text), file)
        if turn == 2:
            for path in paths:
                for name in known if path and path[-1] == "_target_" else ():
                    yield Mutation(f"{file}: {'.'.join(map(str, path))} = {name}",
                                   change(dumped(replaced(document, path, name))), file)  # fmt: skip


def write_text(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8", "surrogatepass"))


def write_yaml(path: Path, text: str) -> None:
    """JSON is YAML, nearly: NaN and the like are spelled otherwise."""
    write_text(path, text.replace("-Infinity", "-.inf").replace("NaN", ".nan"))


def write_header(path: Path, text: str) -> None:
    """The header of a safetensors file; its length is right."""
    data = path.read_bytes()
    head = text.encode("utf-8", "surrogatepass")
    path.write_bytes(len(head).to_bytes(8, "little") + head + data[8 + int.from_bytes(data[:8], "little") :])


def of_bytes(file: str, size: int, rng: random.Random) -> Iterator[Mutation]:
    """Flipped, cut, repeated and inserted bytes, for ever."""

    def change(kind: str, where: int, what: int) -> Change:
        def apply(folder: Path) -> None:
            data = bytearray((folder / file).read_bytes())
            spot = where % max(1, len(data))
            if kind == "flip" and data:
                data[spot] ^= 1 << what % 8
            elif kind == "cut":
                del data[spot:]
            elif kind == "drop":
                del data[spot : spot + 1 + what % 64]
            elif kind == "insert":
                data[spot:spot] = random.Random(what).randbytes(1 + what % 64)
            elif kind == "head":  # lengths at the beginning
                data[:8] = random.Random(what).choice(
                    [b"\xff" * 8, bytes(8), (2**40).to_bytes(8, "little"), len(data).to_bytes(8, "little")]
                )
            else:
                data = bytearray(random.Random(what).randbytes(what % 4096))
            (folder / file).write_bytes(bytes(data))

        return apply

    kinds = ("flip", "flip", "cut", "drop", "insert", "head", "noise")
    for i in itertools.count():
        kind, where, what = kinds[i % len(kinds)], rng.randrange(max(1, size)), rng.randrange(2**31)
        yield Mutation(f"{file}: {kind} {where} {what}", change(kind, where, what), file)


def of_kind(file: str, outside: Path) -> Iterator[Mutation]:
    """The file is something else: a pipe, a link, a folder, not there."""

    def put(make: Callable[[Path], None]) -> Change:
        def apply(folder: Path) -> None:
            path = folder / file
            if path.exists():
                path.unlink()
            make(path)

        return apply

    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(9)
    )
    tags = "!!python/object/apply:os.system ['touch " + str(outside) + "/f']"
    made: dict[str, Callable[[Path], None]] = {
        "is missing": lambda p: None,
        "is a pipe": os.mkfifo,
        "is a folder": Path.mkdir,
        "is a device": lambda p: p.symlink_to("/dev/zero"),
        "leads to a file outside": lambda p: p.symlink_to(outside / "kept"),
        "leads to no file outside": lambda p: p.symlink_to(outside / "new"),
        "leads to /etc/passwd": lambda p: p.symlink_to("/etc/passwd"),
        "leads to itself": lambda p: p.symlink_to(p.name),
        "is empty": Path.touch,
        "is a bomb of aliases": lambda p: write_text(p, bomb),
        "is a tag": lambda p: write_text(p, tags),
        "is deep": lambda p: write_text(p, "[" * 100_000),
        "is deep mappings": lambda p: write_text(p, '{"a":' * 100_000),
        "is not UTF-8": lambda p: _ignore(p.write_bytes(b"\xff\xfe{}")),
        "is merged": lambda p: write_text(p, "<<: {a: 1}\nb: 2001-99-99\n? [1]\n: 2\n"),
        "is a date": lambda p: write_text(p, "b: 2001-99-99\n"),
        "is a number": lambda p: write_text(p, "1" * 10_000),
        "is a pickle": lambda p: _ignore(p.write_bytes(b"\x80\x04cposix\nsystem\n(S'true'\ntR.")),
    }
    for label, make in made.items():
        yield Mutation(f"{file}: {label}", put(make), file)


def of_file(file: str, folder: Path, outside: Path, rng: random.Random) -> list[Iterator[Mutation]]:
    """All mutations of one file, as streams to take from in turns."""
    path, found = folder / file, [of_kind(file, outside), of_bytes(file, (folder / file).stat().st_size, rng)]
    if path.suffix == ".json":
        found.append(of_document(file, json.loads(path.read_text()), write_text, outside, rng))
    elif path.suffix in (".yaml", ".yml"):
        found.append(of_document(file, yaml.safe_load(path.read_text()), write_yaml, outside, rng))
    elif path.suffix == ".safetensors":
        data = path.read_bytes()
        head = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        found.append(of_document(file, head, write_header, outside, rng))
    elif path.suffix == ".jsonl":
        lines = path.read_text().splitlines()
        found.append(of_document(file, json.loads(lines[0]), write_text, outside, rng))
    return found


def in_turns(streams: Sequence[Iterator[Mutation]]) -> Iterator[Mutation]:
    """One of each, again and again; documents, which have most to say, five at a time."""
    waiting = list(streams)
    while waiting:
        for stream in list(waiting):
            taken = list(itertools.islice(stream, 5 if stream.gi_code is of_document.__code__ else 1))  # type: ignore[attr-defined]
            yield from taken
            if not taken:
                waiting.remove(stream)


def _ignore(_: object) -> None:
    return None

"""Read untrusted files as data: completely or not at all, within bounds, and without leaving their folder.

A checkpoint, run, recording or bag may come from an unknown source. All readers use this module. It does not import
torch, because `robopolicy.real.safety` uses it too.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pydantic

from robopolicy.core.errors import CheckpointError, RobopolicyError, closest

Error = type[RobopolicyError]

TEXT = 64 * 2**20  # bytes of a text file; more is no config, spec or state of ours
DEPTH = 64  # of mappings and lists in one another
DIGITS = 400  # of a number
HEADER = 32 * 2**20  # bytes of a safetensors header
AXES = 16  # of a tensor
WANDB = "wandb"  # the folder of a run in which wandb links its logs to the user's cache
_NAME = re.compile(r"[^/\\\x00-\x1f]{1,255}")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4,
    "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8,
}  # fmt: skip


class _Refused(ValueError):
    """Valid JSON or YAML that is refused; the message is the reason."""


@contextmanager
def refusing(where: str, error: Error = CheckpointError) -> Iterator[None]:
    """Turn exceptions that untrusted values raise in a constructor or reader into `error`, which names `where`.

    Errors of this package pass. Use it only around the code that consumes the values.
    """
    try:
        yield
    except RobopolicyError:
        raise
    except Exception as found:
        said = str(found).strip().splitlines()
        why = _printable(f"{type(found).__name__}{f': {said[0][:500]}' if said else ''}")
        raise error(f"{where}: holds values that cannot be used ({why}). Restore it from a copy.") from found


# --- files ----------------------------------------------------------------------------------------------------------


def read_bytes(path: Path, *, limit: int = TEXT, error: Error = CheckpointError) -> bytes:
    """Read the bytes of a regular file; a pipe or device, which would hang or never end, is refused unopened.

    Raises:
        error: missing, unreadable, larger than `limit` bytes, or no regular file.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise error(f"{path}: expected a regular file, found a folder, pipe or device")
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise error(f"{path}: expected a regular file, found a folder, pipe or device")
            if found.st_size > limit:
                raise error(f"{path}: has {found.st_size} bytes, expected {limit} at most")
            return file.read(found.st_size)  # which allocates as much
    except FileNotFoundError:
        raise error(f"{path} is missing") from None
    except (OSError, ValueError) as why:  # ValueError: a null byte in the name
        raise error(f"{path} is damaged: it cannot be read ({why})") from why


def read_text(path: Path, *, limit: int = TEXT, error: Error = CheckpointError) -> str:
    """Read the text of a regular file in UTF-8.

    Raises:
        error: as `read_bytes`, or not UTF-8.
    """
    try:
        return read_bytes(path, limit=limit, error=error).decode("utf-8")
    except UnicodeDecodeError as why:
        raise error(f"{path} is damaged: it is not UTF-8 ({why})") from why


def inside(folder: Path, name: object, *, where: str, error: Error = CheckpointError) -> Path:
    """Return the path of `name` in `folder`, where `name` comes from a file: one component, no link out of the folder.

    Raises:
        error: `name` is no text, is no plain name, or leads out of `folder`.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in (".", "..") or not _encodable(name):
        raise error(f"{where}: expected the name of a file beside it, found {_short(name)}")
    path = folder / name
    if not leads_inside(path, folder):
        raise error(f"{where}: {_short(name)} is a link that leads out of {folder.name or '.'}/")
    return path


def below(folder: Path, name: object, *, where: str, error: Error = CheckpointError) -> Path:
    """Return the same as `inside`, but `name` may lie in folders of `folder`: "base/manifest.json".

    Raises:
        error: as `inside`.
    """
    parts = name.split("/") if isinstance(name, str) else [name]
    path = folder
    for part in parts:
        path = inside(path, part, where=where, error=error)
    if not leads_inside(path, folder):
        raise error(f"{where}: {_short(name)} is a link that leads out of {folder.name or '.'}/")
    return path


def pointed(file: Path, folder: Path | None = None, *, error: Error = CheckpointError) -> Path:
    """Return the folder that the pointer `file` ("latest", "best") names; it lies in `folder`, else beside the file.

    Raises:
        error: as `read_text` and `inside`.
    """
    name = read_text(file, limit=4096, error=error).strip()
    return inside(folder or file.parent, name, where=str(file), error=error)


def leads_inside(path: Path, folder: Path) -> bool:
    """Return whether `path`, links followed, lies in `folder`, or beside a snapshot of the hub's cache."""
    try:
        real, root = path.resolve(), folder.resolve()
    except (OSError, RuntimeError, ValueError):  # a link to itself, a name that cannot be
        return False
    if real.is_relative_to(root):
        return True
    hub = [p.parent for p in (root, *root.parents) if p.name == "snapshots"]
    return any(real.parent == cache / "blobs" for cache in hub)


def check_links(
    folder: Path, *, levels: int = 2 * DEPTH, apart: str = "", where: str = "", error: Error = CheckpointError
) -> None:
    """Refuse an untrusted folder with links out of itself: reading and writing would follow them.

    Args:
        levels: how deep to look. apart: a folder in it that only another program reads and writes. where: the key to
            blame.

    Raises:
        error: names the link.
    """
    waiting = [(folder.resolve(), levels)]
    while waiting:
        place, left = waiting.pop()
        try:
            entries = list(os.scandir(place))
        except OSError:  # gone, or not ours to read: what reads it says so
            continue
        for entry in entries:
            if entry.is_symlink():
                if not leads_inside(Path(entry.path), folder):
                    shown = Path(entry.path).relative_to(folder.resolve())
                    raise error(
                        f"{where or folder}: {shown} is a link that leads out of the folder, and is not followed. Put "
                        "a copy of what it stands for in its place."
                    )
            elif left > 1 and entry.is_dir(follow_symlinks=False) and not (left == levels and entry.name == apart):
                waiting.append((Path(entry.path), left - 1))


# --- JSON -----------------------------------------------------------------------------------------------------------


def read_json(path: Path, *, limit: int = TEXT, error: Error = CheckpointError, finite: bool = True) -> dict[str, Any]:
    """Read the object in a JSON file; see `parse_json`.

    Raises:
        error: missing, damaged, or something else than an object.
    """
    data = parse_json(read_bytes(path, limit=limit, error=error), str(path), error=error, finite=finite)
    if not isinstance(data, dict):
        raise error(f"{path} is damaged: expected an object, found {type(data).__name__}")
    return data


def parse_json(text: str | bytes, where: str, *, error: Error = CheckpointError, finite: bool = True) -> Any:
    """Parse JSON in UTF-8: at most DEPTH levels, every key once, text that can be written again.

    Args:
        where: file or key, for the message.
        finite: refuse NaN and infinity, which are no JSON but which Python reads.

    Raises:
        error: anything else.
    """
    try:
        data = text.encode() if isinstance(text, str) else text
        found = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_once,
            parse_constant=_no_constant if finite else None,
            parse_float=_finite if finite else None,
            parse_int=_integer,
        )
        check_tree(found, texts=_SURROGATE.search(data) is not None)
    except RecursionError:
        raise error(f"{where} is damaged: more than {DEPTH} levels of lists and objects in one another") from None
    except (ValueError, MemoryError) as why:
        raise error(f"{where} is damaged ({_said(why)})") from why
    return found


def check_tree(data: Any, *, texts: bool = True) -> None:
    """Raise ValueError where `data` is deeper than DEPTH, or, with `texts`, holds text that is no UTF-8."""
    level = [data]
    for _ in range(DEPTH + 1):
        following: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                if texts and not all(_encodable(k) for k in value):
                    raise _Refused("a key holds half a character (a lone surrogate)")
                value = value.values()
            if isinstance(value, str):
                if texts and not _encodable(value):
                    raise _Refused("a text holds half a character (a lone surrogate)")
            elif not isinstance(value, int | float | None):
                following += value if texts else [v for v in value if type(v) in (dict, list)]
        if not following:
            return
        level = following
    raise _Refused(f"more than {DEPTH} levels of lists and objects in one another")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        raise _Refused(f"the key {_short(twice)} is there twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise _Refused(f"expected finite numbers, found {name}")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _Refused(f"expected finite numbers, found {_short(text)}")
    return value


def _integer(text: str) -> int:
    if len(text) > DIGITS:
        raise _Refused(f"expected numbers of at most {DIGITS} digits, found one of {len(text)}")
    return int(text)


# --- YAML -----------------------------------------------------------------------------------------------------------


def read_yaml(path: Path, *, limit: int = 4 * 2**20, error: Error = CheckpointError) -> Any:
    """Read plain YAML: mappings with text as keys, lists, text, numbers, booleans and null. No tags, anchors or merges.

    Raises:
        error: missing, damaged, or anything else.
    """
    return parse_yaml(read_text(path, limit=limit, error=error), str(path), error=error)


def parse_yaml(text: str, where: str, *, error: Error = CheckpointError) -> Any:
    """Parse plain YAML as `read_yaml`; `where` is the file, for the message."""
    import yaml

    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):  # no recursion here; composing would recurse
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise _Refused(f"line {event.start_mark.line + 1}: anchors and aliases are not read; write it out")
            if getattr(event, "tag", None) not in (None, "!"):
                raise _Refused(f"line {event.start_mark.line + 1}: the tag {_short(event.tag)} is not read")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEPTH:
                raise _Refused(f"more than {DEPTH} levels of lists and mappings in one another")
        found = _plain_node(yaml.compose(text, Loader=yaml.SafeLoader), yaml.SafeLoader(""))
        check_tree(found)
    except (yaml.YAMLError, ValueError, RecursionError, MemoryError) as why:
        raise error(f"{where} is damaged: not plain YAML ({_said(why)})") from why
    return found


def _plain_node(node: Any, loader: Any) -> Any:
    """Return the value of a YAML node; dates and the like stay text."""
    import yaml

    if node is None:
        return None
    if isinstance(node, yaml.MappingNode):
        if bad := next((k for k, _ in node.value if not isinstance(k, yaml.ScalarNode)), None):
            raise _Refused(f"line {bad.start_mark.line + 1}: expected text as a key")
        if bad := next((k for k, _ in node.value if k.tag.endswith(":merge")), None):
            raise _Refused(f"line {bad.start_mark.line + 1}: merges (<<) are not read; write it out")
        return _once([(k.value, _plain_node(v, loader)) for k, v in node.value])
    if isinstance(node, yaml.SequenceNode):
        return [_plain_node(v, loader) for v in node.value]
    kind = node.tag.rpartition(":")[2]
    if kind in ("int", "float") and len(node.value) > DIGITS:
        raise _Refused(f"line {node.start_mark.line + 1}: a number of {len(node.value)} digits")
    if kind not in ("null", "bool", "int", "float"):
        return node.value
    return getattr(loader, f"construct_yaml_{kind}")(node)


# --- typed models ---------------------------------------------------------------------------------------------------


class Strict(pydantic.BaseModel):
    """A model of a JSON file: no other keys, no text for a number, no bool for an int."""

    model_config = pydantic.ConfigDict(strict=True, extra="forbid", frozen=True, arbitrary_types_allowed=False)


def checked[T](kind: type[T] | pydantic.TypeAdapter[T], data: Any, where: str, *, error: Error = CheckpointError) -> T:
    """Convert JSON values to `kind`: lists to tuples, otherwise strictly.

    Raises:
        error: names the key, what is expected and what was found, for each of the first problems.
    """
    adapter = kind if isinstance(kind, pydantic.TypeAdapter) else pydantic.TypeAdapter(kind)
    try:
        return adapter.validate_json(json.dumps(data), strict=True)
    except pydantic.ValidationError as why:
        problems = [f"{'.'.join(map(str, e['loc'])) or 'it'}: {_wrong(e, adapter)}" for e in why.errors()]
        more = f"\n  - and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise error(f"{where} is damaged:\n  - " + "\n  - ".join(problems[:5]) + more) from None


def _wrong(error: Any, adapter: pydantic.TypeAdapter[Any]) -> str:
    """Describe a wrong value; for an unknown key, name the closest keys of all models."""
    if error["type"] not in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{error['msg']}, found {_short(error['input'])}"
    schema = adapter.json_schema()
    models = [schema, *schema.get("$defs", {}).values()]
    return f"unknown key. {closest(str(error['loc'][-1]), {k for m in models for k in m.get('properties', ())})}"


def check_types(data: Mapping[str, Any], known: Mapping[str, type], where: str, error: Error) -> None:
    """Raise `error` where a key of `known` is there and holds another type, e.g. `task: 3`; null may stand anywhere."""
    for key, kind in known.items():
        if not isinstance(data.get(key), kind | None):
            expected = {"dict": "a mapping", "str": "text", "list": "a list"}.get(kind.__name__, kind.__name__)
            raise error(f"{where}: {key}: expected {expected}, found {_short(data[key])}")


def check_numbers(data: Any, where: str, *, most: int = 10**6, error: Error = CheckpointError) -> None:
    """Raise `error` where a whole number among JSON values is beyond ±`most`: constructors count up to such numbers."""
    waiting = [("", data)]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(f"{key}.{k}", v) for k, v in value.items()]
        elif isinstance(value, list):
            waiting += [(f"{key}.{i}", v) for i, v in enumerate(value)]
        elif isinstance(value, int) and not -most <= value <= most:
            raise error(f"{where}: {key[1:]}: expected numbers from {-most} to {most}, found {_short(value)}")


# --- safetensors ----------------------------------------------------------------------------------------------------


class Entry(pydantic.BaseModel):
    """Entry of one tensor in a safetensors header."""

    model_config = pydantic.ConfigDict(strict=True, extra="forbid", frozen=True)
    dtype: str
    shape: tuple[pydantic.NonNegativeInt, ...] = pydantic.Field(max_length=AXES)
    data_offsets: tuple[pydantic.NonNegativeInt, pydantic.NonNegativeInt]


_ENTRIES = pydantic.TypeAdapter(dict[str, Entry])


def tensor_header(path: Path, *, error: Error = CheckpointError) -> dict[str, Entry]:
    """Read the header of a safetensors file and check it against the file's size; tensors are not read.

    Raises:
        error: no regular file, no safetensors, or a header that lies: sizes, overlaps, gaps, dtypes.
    """
    where = "/".join(path.parts[-3:]).lstrip("/")
    if not path.is_file():
        raise error(f"{where} is missing, or no regular file")
    try:
        with path.open("rb") as file:
            size, start = os.fstat(file.fileno()).st_size, file.read(8)
            length = int.from_bytes(start, "little")
            if len(start) < 8 or not 2 <= length <= min(size - 8, HEADER):
                raise error(f"{where} is damaged: not a whole safetensors file (a header of {length} in {size} bytes)")
            text = file.read(length)
    except OSError as why:
        raise error(f"{where} is damaged: it cannot be read ({why})") from why
    head = parse_json(text.rstrip(b" "), f"{where} (its header)", error=error)
    if not isinstance(head, dict):
        raise error(f"{where} is damaged: its header is no object")
    about = head.pop("__metadata__", {})
    if not isinstance(about, dict) or not all(isinstance(v, str) for v in about.values()):
        raise error(f"{where} is damaged: __metadata__: expected text by name, found {_short(about)}")
    found = checked(_ENTRIES, head, f"{where} (its header)", error=error)
    at = 0
    for name, entry in sorted(found.items(), key=lambda item: item[1].data_offsets):
        begin, end = entry.data_offsets
        if entry.dtype not in _BYTES:
            raise error(f"{where}: {name!r}: unknown dtype. {closest(entry.dtype, _BYTES)}")
        if begin != at or end - begin != _BYTES[entry.dtype] * math.prod(entry.shape):
            raise error(
                f"{where} is damaged: {name!r}: bytes {begin} to {end} are not those of {entry.dtype} "
                f"{list(entry.shape)} after byte {at}"
            )
        at = end
    if at != size - 8 - length:
        raise error(f"{where} is damaged: its tensors end at byte {at} of {size - 8 - length}")
    return found


# --- inside ---------------------------------------------------------------------------------------------------------


def _encodable(text: object) -> bool:
    try:
        return isinstance(text, str) and (text.isascii() or bool(text.encode()) or not text)
    except UnicodeEncodeError:
        return False


def _short(value: object) -> str:
    shown = ascii(value)
    return shown if len(shown) <= 80 else f"{shown[:80]}…"


def _said(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return _printable(" ".join(lines[:3])[:300]) if lines else type(error).__name__


def _printable(text: str) -> str:
    """Remove lone surrogates, which cannot be encoded."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")

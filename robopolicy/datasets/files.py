"""Files of others, read with care: bounded, regular, and without the copies that macOS leaves beside them."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pydantic

from robopolicy.core import untrusted
from robopolicy.core.errors import DataError

_KINDS = ("str", "int", "float", "bool")  # names of a union's members, which pydantic puts among the keys


def visible(paths: Iterable[Path]) -> list[Path]:
    """Return `paths` in order, without hidden files: macOS writes `._x` beside every `x` on a foreign disk."""
    return sorted(p for p in paths if not p.name.startswith("."))


def check_regular(path: Path) -> None:
    """Raise DataError unless `path` is a file with an end; a pipe or a device would block the reader for ever."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: expected a file, found a folder, pipe or device. Restore it from a copy.")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; NaN and infinity are read, as LeRobot writes them among statistics.

    Raises:
        DataError: missing, unreadable, too large, too deep or no JSON object.
    """
    return untrusted.read_json(path, error=DataError, finite=False)


def problems(error: pydantic.ValidationError, *, depth: int = 1) -> Iterator[tuple[tuple[str, ...], str]]:
    """Return the place and the reason of each invalid value, once for each place of at most `depth` keys."""
    seen: set[tuple[str, ...]] = set()
    for one in error.errors(include_url=False, include_context=False):
        place = tuple(part for part in map(str, one["loc"]) if part not in _KINDS and "[" not in part)[:depth]
        if place in seen:
            continue
        seen.add(place)
        if one["type"] == "missing":
            yield place, "is missing"
            continue
        wanted = one["msg"].replace("Input should be", "expected").replace("Value error, ", "")
        wanted = wanted.partition(" or instance of ")[0]
        yield place, f"{wanted}, found {reprlib.repr(one['input'])}"

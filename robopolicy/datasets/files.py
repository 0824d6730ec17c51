"""Files of others, read with care: bounded, regular, and without the copies that macOS leaves beside them."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pydantic
import pydantic_core

from robopolicy.core.errors import DataError

_KINDS = ("str", "int", "float", "bool")  # names of a union's members, which pydantic puts among the keys
MOST_JSON = 64 * 2**20  # bytes; statistics of many cameras take a few MiB


def visible(paths: Iterable[Path]) -> list[Path]:
    """Return `paths` in order, without hidden files: macOS writes `._x` beside every `x` on a foreign disk."""
    return sorted(p for p in paths if not p.name.startswith("."))


def check_regular(path: Path) -> None:
    """Raise DataError unless `path` is a file with an end; a pipe or a device would block the reader for ever."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: expected a file, found a folder, pipe or device. Restore it from a copy.")


def read_json(path: Path) -> Any:
    """Return the value in a JSON file; nesting and size are bounded.

    Raises:
        DataError: missing, unreadable, too large or not JSON.
    """
    check_regular(path)
    try:
        with path.open("rb") as file:
            text = file.read(MOST_JSON + 1)
        if len(text) > MOST_JSON:
            raise ValueError(f"larger than {MOST_JSON // 2**20} MiB")
        return pydantic_core.from_json(text)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: damaged ({error}). Restore it from a copy, or record again.") from error


def parse_json(text: Any) -> Any:
    """Return the value of a JSON text, of bounded nesting.

    Raises:
        ValueError: not JSON, or not text.
    """
    if not isinstance(text, str | bytes):
        raise ValueError(f"expected text, found {type(text).__name__}")
    return pydantic_core.from_json(text)


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

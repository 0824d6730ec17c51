"""Write files completely or not at all, and never through a link.

An untrusted folder may hold links with guessed names. So each file is first written under a random name,
and is opened only where nothing of that name lies.
"""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

_SORTS = ("tmp", "old")  # of hidden names that `remove_leftovers` deletes


def hidden(path: Path, sort: str) -> Path:
    """Return a random name beside `path`, used while `path` is written."""
    assert sort in _SORTS
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.{sort}")


def create(path: Path) -> int:
    """Open a new file for writing; returns its descriptor.

    Raises:
        FileExistsError: something lies there, be it a link that leads nowhere.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def write_atomically(path: Path | str, data: str | bytes) -> Path:
    """Write a whole file or nothing: a reader, or a kill in the middle, sees the old content or the new.

    A link at `path` is replaced, not followed.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = data.encode() if isinstance(data, str) else memoryview(data)
    temp = hidden(path, "tmp")
    try:
        with os.fdopen(create(temp), "wb") as file:
            file.write(content)
        fsync(temp)
        temp.replace(path)
    finally:
        temp.unlink(missing_ok=True)
    fsync(path.parent)
    return path


def fsync(path: Path) -> None:
    """Force a file or directory to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_leftovers(folder: Path) -> None:
    """Delete the files that a killed process left in `folder` while writing."""
    for path in (p for sort in _SORTS for p in folder.glob(f".*.{sort}")):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

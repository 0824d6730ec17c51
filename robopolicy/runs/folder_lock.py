"""Let one process at a time work in a folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from robopolicy.core.errors import ConfigError


class BusyError(ConfigError):
    """Another process is at work in the folder."""


@contextlib.contextmanager
def claimed(folder: Path, key: str) -> Iterator[None]:
    """Lock `folder`, which `key` names on the command line, while the block lasts.

    Raises:
        BusyError: another process has the lock. ConfigError: the file system has no locks.
    """
    try:  # O_NOFOLLOW: a link could lead to any file of the user
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(f"{key}={folder}: its .lock cannot be opened ({error}). Remove it.") from error
    with os.fdopen(handle, "r") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(f"{key}={folder}: another process is at work in it. Wait for it, or stop it.") from None
        except OSError as error:
            why = f"this file system has no locks ({error}). Mount it with the option flock, or give another folder"
            raise ConfigError(f"{key}={folder}: {why}.") from error
        yield

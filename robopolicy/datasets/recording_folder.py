"""Hold a recording in a hidden folder beside its dataset until it ends."""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from robopolicy.core.errors import DataError
from robopolicy.datasets.metadata import META_FILE, check_free


class RecordingFolder:
    """Folder `.<name>.recording-…` beside a dataset; its lock ends with the process that records."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.recording-", dir=path.parent))
        self.root = self.folder / path.name
        self._lock = _open(self.folder)
        with suppress(OSError):  # a file system without locks: its folders are never removed by others
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def place(self, *, replaced: bool) -> None:
        """Move the dataset to its path; `replaced`: in place of one that lies there.

        Raises:
            DataError: another recording has taken the path meanwhile; names the folder that keeps the episodes.
        """
        try:
            check_free(self.path, replaced=replaced)
        except DataError as error:
            raise DataError(f"{error} The episodes of this recording are in {self.keep()}.") from None
        if self.path.exists():
            self.path.rename(self.folder / "replaced")
        self.root.rename(self.path)
        self.remove()

    def keep(self) -> Path:
        """Move the episodes to the visible folder `<name>.kept-…` beside the path, and return it."""
        kept = self.root.rename(self.path.with_name(f"{self.path.name}.kept-{self.folder.name.rpartition('-')[2]}"))
        self.remove()
        return kept

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


def left_by_killed(path: Path) -> list[Path]:
    """Return the folders of recordings of `path` whose process has ended."""
    found = []
    for folder in sorted(path.parent.glob(f".{glob.escape(path.name)}.recording-*")):
        with suppress(OSError):  # its process is at work
            lock = _open(folder)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found.append(folder)
            finally:
                os.close(lock)
    return found


def finished(path: Path, folder: Path) -> Path | None:
    """Return the dataset in the folder of a recording that was killed before it came to `path`; None: there is none."""
    root = folder / path.name
    return root if (root / META_FILE).exists() else None


def clear_killed(path: Path) -> None:
    """Remove the folders of killed recordings; a finished dataset comes to `path`, or stays where that is taken."""
    for folder in left_by_killed(path):
        if (root := finished(path, folder)) is not None:
            if path.exists():
                continue
            root.rename(path)
        shutil.rmtree(folder, ignore_errors=True)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

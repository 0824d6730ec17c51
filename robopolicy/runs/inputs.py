"""What a run was begun with, by contents: a dataset or a policy may lie elsewhere when the run is resumed."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from robopolicy.core.errors import RobopolicyError
from robopolicy.core.trees import flatten
from robopolicy.datasets.files import read_json, visible
from robopolicy.policies.find import find_policy, policy_digest
from robopolicy.utils.atomic import write_atomically

INPUTS = "inputs.json"  # key of the config -> sha256
_POLICIES = ("base", "teacher")


def write_inputs(run_dir: Path, config: Mapping[str, Any]) -> None:
    """Write down the contents of every dataset and policy that a config names; those written before stay."""
    file = run_dir / INPUTS
    if file.is_file():
        return
    found = {key: digest for key, value in flatten(config).items() if (digest := _digest(key, value)) is not None}
    if found:
        write_atomically(file, json.dumps(found, indent=1) + "\n")


def same_input(run_dir: Path, key: str, old: Any, new: Any) -> bool:
    """Whether two values of a key name the same place, or two places with the same contents."""
    if not isinstance(old, str) or not isinstance(new, str):
        return False
    before = there(old)
    if before is not None and before == there(new):
        return True
    if (now := _digest(key, new)) is None:
        return False
    saved = read_json(run_dir / INPUTS) if (run_dir / INPUTS).is_file() else {}
    was = saved.get(key) if isinstance(saved, dict) else None
    if was is None and before is None:  # a run of an older version: the training compares what it fits to the data
        return key == "dataset"
    return now == (was or _digest(key, old))


def there(text: str) -> Path | None:
    """What a text of a config names, links followed; None: nothing lies there, or the text cannot be a path."""
    try:
        path = Path(text).expanduser().resolve()
        return path if path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long, of no user, a null byte
        return None


def _digest(key: str, value: Any) -> str | None:
    """Of a dataset's rows and films, or of a policy's files; None: it is neither."""
    path = there(value) if isinstance(value, str) and value else None
    if path is None:
        return None
    with contextlib.suppress(RobopolicyError, OSError):
        if (path / "meta" / "info.json").is_file():
            return dataset_digest(path)
        if key in _POLICIES and path.is_dir():
            return policy_digest(find_policy(path))
    return None


def dataset_digest(path: Path) -> str:
    """sha256 over the tables of a LeRobot dataset, and the names and sizes of its films."""
    whole = hashlib.sha256()
    for file in visible([*path.glob("data/*/*.parquet"), *path.glob("meta/tasks.parquet")]):
        with file.open("rb") as stream:
            whole.update(f"{file.relative_to(path)}\0{hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    for film in visible(path.glob("videos/**/*.mp4")):
        whole.update(f"{film.relative_to(path)}\0{film.stat().st_size}\n".encode())
    return whole.hexdigest()

"""Record the datasets and policies of a run by their contents: on resume they may have another path."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from robopolicy.core.errors import RobopolicyError
from robopolicy.core.trees import flatten
from robopolicy.datasets.files import read_json, visible
from robopolicy.policies.find import find_policy, policy_digest
from robopolicy.utils.atomic import write_atomically

INPUTS = "inputs.json"  # key of the config -> sha256
_POLICIES = ("base", "teacher", "expert.checkpoint")


def write_inputs(run_dir: Path, config: Mapping[str, Any]) -> None:
    """Write down the contents of every dataset and policy that a config names; those written before stay."""
    file = run_dir / INPUTS
    if file.is_file():
        return
    texts = {key: os.path.expanduser(v) for key, v in flatten(config).items() if isinstance(v, str) and v}
    found = {key: _digest(key, Path(text)) for key, text in texts.items() if os.path.exists(text)}
    if found := {key: digest for key, digest in found.items() if digest is not None}:
        write_atomically(file, json.dumps(found, indent=1) + "\n")


def same_input(run_dir: Path, key: str, old: Any, new: Any) -> bool:
    """Return whether two values of a key name the same path, or two paths with the same contents."""
    if not isinstance(old, str) or not isinstance(new, str):
        return False
    before, after = there(old), there(new)
    if before is not None and before == after:
        return True
    if after is None or (now := _digest(key, after)) is None:
        return False
    saved = read_json(run_dir / INPUTS) if (run_dir / INPUTS).is_file() else {}
    was = saved.get(key) if isinstance(saved, dict) else None
    if was is None and before is None:  # a run of an older version: the training compares what it fits to the data
        return key == "dataset"
    return now == (was or (_digest(key, before) if before is not None else None))


def changed_inputs(run_dir: Path, config: Mapping[str, Any]) -> list[str]:
    """List the keys of a config whose dataset or policy has other contents than the run began with."""
    saved = read_json(run_dir / INPUTS) if (run_dir / INPUTS).is_file() else {}
    given = {key: there(value) for key, value in flatten(config).items() if key in saved and isinstance(value, str)}
    return [key for key, path in given.items() if path is not None and _digest(key, path) != saved[key]]


def there(text: str) -> Path | None:
    """Return the path that a text of a config names, links followed; None: nothing lies there, or it is no path."""
    try:
        path = Path(text).expanduser().resolve()
        return path if path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long, of no user, a null byte
        return None


def _digest(key: str, path: Path) -> str | None:
    """Return the digest of a dataset's rows and films, or of a policy's files; None: it is neither."""
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

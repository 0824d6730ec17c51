"""Record the datasets, policies and models of a run by their contents: on resume they may have another path."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from robopolicy.config.compose import input_of
from robopolicy.core.errors import RobopolicyError
from robopolicy.core.trees import flatten
from robopolicy.core.untrusted import pointed, read_bytes
from robopolicy.datasets.files import read_json, visible
from robopolicy.datasets.metadata import RecordingMeta
from robopolicy.policies.find import find_policy, policy_digest
from robopolicy.utils.atomic import write_atomically
from robopolicy.utils.storage import MANIFEST

INPUTS = "inputs.json"  # key of the config -> sha256
_POLICIES = ("base", "teacher", "expert.checkpoint")
_MODELS = ("model", "init")  # last parts of keys of world models: world.model, loop.synthetic.model, loop.init
_READING = ("action", "dt", "tasks", "observation", "rename", "outcomes")  # of RecordingMeta; `data import` sets them
_MODEL_FOLDERS = ("model", "trajectories", ".")  # in a checkpoint, see world_models.models.model_files


def write_inputs(run_dir: Path, config: Mapping[str, Any]) -> None:
    """Write down the contents of every dataset, policy and model that a config names; those written before stay."""
    file = run_dir / INPUTS
    if file.is_file():
        return
    flat = flatten(config)
    texts = {key: os.path.expanduser(v) for key, v in flat.items() if isinstance(v, str) and v}
    found = {key: _digest(key, Path(text), flat) for key, text in texts.items() if os.path.exists(text)}
    if found := {key: digest for key, digest in found.items() if digest is not None}:
        write_atomically(file, json.dumps(found, indent=1) + "\n")


def same_input(run_dir: Path, key: str, old: Any, new: Any, config: Mapping[str, Any] | None = None) -> bool:
    """Return whether two values of a key name the same path, or two paths with the same contents.

    Args:
        config: of the run; it says which checkpoint of a world model is read. None: the newest.
    """
    flat = flatten(config or {})
    if not isinstance(old, str) or not isinstance(new, str):
        return False
    before, after = there(old), there(new)
    if before is not None and before == after:
        return True
    if after is None or (now := _digest(key, after, flat)) is None:
        return False
    saved = read_json(run_dir / INPUTS) if (run_dir / INPUTS).is_file() else {}
    was = saved.get(key) if isinstance(saved, dict) else None
    if was is None and before is None:  # a run of an older version: the training compares what it fits to the data
        return key == "dataset"
    return now == (was or (_digest(key, before, flat) if before is not None else None))


def changed_inputs(run_dir: Path, config: Mapping[str, Any]) -> list[str]:
    """List the keys of a config whose dataset, policy or model has other contents than the run began with."""
    saved, flat = read_json(run_dir / INPUTS) if (run_dir / INPUTS).is_file() else {}, flatten(config)
    given = {key: there(value) for key, value in flat.items() if key in saved and isinstance(value, str)}
    return [key for key, path in given.items() if path is not None and _digest(key, path, flat) != saved[key]]


def unchanged_input(run_dir: Path, key: str, text: str) -> Path | None:
    """Return the path that a key of a run names; None: nothing, or other contents than at its start, lies there."""
    path = there(text)
    return None if path is None or changed_inputs(run_dir, {key: text}) else path


def there(text: str) -> Path | None:
    """Return the path that a text of a config names, links followed; None: nothing lies there, or it is no path."""
    try:
        path = Path(text).expanduser().resolve()
        return path if path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long, of no user, a null byte
        return None


def _digest(key: str, path: Path, flat: Mapping[str, Any]) -> str | None:
    """Return the digest of a dataset's rows and films, or of the files of a policy or model; None: it is none of them.

    Args:
        flat: all keys of the config; <node>.which beside <node>.model is the checkpoint that is read.
    """
    with contextlib.suppress(RobopolicyError, OSError):
        if input_of(key) and (path / "meta" / "info.json").is_file():
            return dataset_digest(path)
        if key in _POLICIES:
            return policy_digest(find_policy(path))
        node, _, name = key.rpartition(".")
        if name in _MODELS and path.is_dir():
            return model_digest(path, "best" if flat.get(f"{node}.which") == "best" else "latest")
    return None


def model_digest(path: Path, which: str) -> str | None:
    """Return the sha256 over all files of a world model that a run, checkpoint or model directory holds."""
    if (path / "checkpoints").is_dir():
        path = pointed(path / "checkpoints" / which)
    manifest = next((f for name in _MODEL_FOLDERS if (f := path / name / MANIFEST).is_file()), None)
    return None if manifest is None else hashlib.sha256(read_bytes(manifest)).hexdigest()


def dataset_digest(path: Path) -> str:
    """sha256 over a LeRobot dataset's tables, the names and sizes of its films, and how its columns are read."""
    whole = hashlib.sha256()
    for file in visible([*path.glob("data/*/*.parquet"), *path.glob("meta/tasks.parquet")]):
        with file.open("rb") as stream:
            whole.update(f"{file.relative_to(path)}\0{hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    for film in visible(path.glob("videos/**/*.mp4")):
        whole.update(f"{film.relative_to(path)}\0{film.stat().st_size}\n".encode())
    if (meta := RecordingMeta.load(path)) is not None:
        whole.update(json.dumps([asdict(meta)[key] for key in _READING]).encode())
    return whole.hexdigest()

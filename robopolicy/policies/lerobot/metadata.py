"""Read and write the metadata that LeRobot's policies lack: the meaning and the rate of their actions.

Sources, in this order: robopolicy.json beside the weights, which `annotate_policy` writes; the dataset that
train_config.json names, if it still exists; the env that the policy will run on, with a warning.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import pydantic

from robopolicy.core.errors import CheckpointError, DataError, SpecError
from robopolicy.core.specs import ActionFile
from robopolicy.core.types import TASK, ActionSpec, Feature
from robopolicy.core.untrusted import Strict, check_links, checked, read_json
from robopolicy.datasets.source import DatasetInfo
from robopolicy.datasets.tables import task_texts
from robopolicy.policies.lerobot.find import CONFIG, find_lerobot
from robopolicy.utils.atomic import write_atomically

NOTE = "robopolicy.json"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PolicyMetadata:
    """Metadata of the training data of a policy; None: unknown. `source`: its origin."""

    source: str = ""
    action: ActionSpec | None = None
    dt: float | None = None
    tasks: tuple[str, ...] | None = None
    observation: dict[str, Feature] = field(default_factory=dict)
    rename: dict[str, str] = field(default_factory=dict)  # LeRobot's key → ours
    repeats_state: bool = False  # the dataset says that its ENV_STATE is a copy


def read_metadata(folder: Path) -> PolicyMetadata:
    """Read the directory's robopolicy.json, or else the metadata of the training dataset.

    Raises:
        CheckpointError: the note is damaged.
    """
    if (folder / NOTE).is_file():
        note = checked(_Note, read_json(folder / NOTE, finite=False), f"{folder}/{NOTE}")
        try:
            return PolicyMetadata(NOTE, note.action.action, note.dt, note.tasks, rename=note.rename)
        except SpecError as error:
            raise CheckpointError(f"{folder}/{NOTE}: damaged ({error}); rewrite it by annotate_policy") from error
    file = folder / "train_config.json"
    trained = read_json(file, finite=False).get("dataset") if file.is_file() else None
    root = trained.get("root") if isinstance(trained, dict) else None
    if not isinstance(root, str) or not _is_folder(root):
        return PolicyMetadata()
    try:
        source = DatasetInfo.open(Path(root))
        tasks = tuple(source.meta.tasks) if source.meta else task_texts(source)
    except DataError as error:
        _log.warning("%s: the dataset it was trained on cannot be read: %s", folder.name, error)
        return PolicyMetadata()
    observation = {k: v for k, v in source.offered.items() if k != TASK}
    rename = {theirs: ours for ours, theirs in source.names_there.items() if ours != theirs}
    says, dt = f"its dataset {Path(root).name}", 1.0 / source.fps
    if source.meta is None:
        return PolicyMetadata(says, None, dt, tasks, observation, rename)
    return PolicyMetadata(says, source.meta.action, source.meta.dt, tasks, observation, rename, source.repeats_state)


class _Note(Strict):
    """robopolicy.json."""

    action: ActionFile
    dt: Annotated[float, pydantic.Field(gt=0.0, le=3600.0, allow_inf_nan=False)]
    tasks: tuple[str, ...]
    rename: dict[str, str]


def _is_folder(name: str) -> bool:
    try:
        return bool(name) and Path(name).is_dir()
    except ValueError:  # a null byte
        return False


def annotate_policy(
    path: Path | str, *, action: ActionSpec, dt: float, tasks: tuple[str, ...] = (),
    rename: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """Write the metadata that LeRobot's policies lack to `robopolicy.json` beside the weights.

    Args:
        action: meaning of its actions. dt: seconds per action.
        tasks: instructions it was trained on, in the order of the env's.
        rename: LeRobot's key -> ours, e.g. {"observation.image": "observation.images.top"}.

    Raises:
        CheckpointError: no LeRobot policy there, one with a link out of its folder, or a key that it does not read.
    """
    folder = find_lerobot(Path(path))
    if folder is None:
        raise CheckpointError(f"{path}: no LeRobot policy there; expected {CONFIG}")
    check_links(folder)
    reads = set(read_json(folder / CONFIG).get("input_features") or {})
    if strange := sorted(set(rename or {}) - reads):
        raise CheckpointError(f"rename: {folder} does not read {strange}; it reads {sorted(reads)}")
    note = {"action": asdict(action), "dt": dt, "tasks": tasks, "rename": dict(rename or {})}
    write_atomically(folder / NOTE, json.dumps(note, indent=2) + "\n")

"""Read and write `meta/robopolicy.json`: facts for training that LeRobot's own metadata lack."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

from robopolicy.core.errors import DataError, SpecError
from robopolicy.core.types import ActionSpec
from robopolicy.datasets.files import problems, read_json
from robopolicy.utils.atomic import write_atomically
from robopolicy.utils.suite_packages import installed

META_VERSION = 1
META_FILE = Path("meta") / "robopolicy.json"
RESTORE = "Restore it, or delete it and give action_spec=…."
SEED = "episode_seed"  # column that robopolicy adds; edits of the dataset by LeRobot's tools keep it right


def installed_versions() -> dict[str, str]:
    """Versions of the packages that shape a recording."""
    return {n: installed(n) or "not installed" for n in ("robopolicy", "lerobot", "mujoco", "torch", "numpy")}


@dataclass
class RecordingMeta:
    """Contents of `meta/robopolicy.json`.

    `dt`: seconds per frame. `tasks`: instructions in the env's order, which `task_index` counts in.
    `observation`: keys that the env emitted. `complete`: the recording reached its end (ask `recorded`).
    `rename`, `outcomes`: how to read a dataset that others recorded, see `load_episodes` and `annotate_dataset`.
    `provenance`: env id and digest, expert, expert_noise, numbers of requested and attempted episodes, and more.
    """

    action: ActionSpec
    dt: Annotated[float, pydantic.Field(gt=0.0, allow_inf_nan=False)]
    tasks: tuple[str, ...]
    observation: tuple[str, ...]
    complete: bool = False
    rename: dict[str, str | None] = field(default_factory=dict)
    outcomes: Literal["recorded", "success"] = "recorded"
    provenance: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=installed_versions)
    version: Annotated[int, pydantic.Field(strict=True, ge=1)] = META_VERSION
    __pydantic_config__ = pydantic.ConfigDict(extra="forbid")

    def save(self, root: Path) -> None:
        write_atomically(root / META_FILE, json.dumps(asdict(self), indent=2))

    @classmethod
    def load(cls, root: Path) -> RecordingMeta | None:
        """Read the file; None where robopolicy did not record the dataset.

        Raises:
            DataError: not JSON, a newer version, fields missing, unknown or of another type.
        """
        path = root / META_FILE
        if not path.exists():
            return None
        data = read_json(path)
        version = data.get("version")
        if isinstance(version, int) and version > META_VERSION:
            raise DataError(f"{path}: version {version}; this robopolicy reads up to {META_VERSION}. Upgrade it.")
        try:
            return _MODEL.validate_python({"version": None, **data})
        except pydantic.ValidationError as error:
            wrong = "; ".join(f"{'.'.join(place)}: {problem}" for place, problem in problems(error, depth=2))
            raise DataError(f"{path}: {wrong}. {RESTORE}") from error
        except SpecError as error:
            raise DataError(f"{path}: action: {error}. {RESTORE}") from error


_MODEL = pydantic.TypeAdapter(RecordingMeta)


def recorded(root: Path) -> Literal["nothing", "part", "whole"]:
    """Return whether `root` holds no dataset, an interrupted recording, or a whole dataset.

    A dataset that robopolicy did not record counts as whole.

    Raises:
        DataError: its `meta/robopolicy.json` is damaged.
    """
    if not (root / "meta" / "info.json").exists():
        return "nothing"
    meta = RecordingMeta.load(root)
    return "whole" if meta is None or meta.complete else "part"


def num_episodes(root: Path) -> int:
    """Episodes of a LeRobot dataset, by its `meta/info.json`.

    Raises:
        DataError: the number is missing.
    """
    return _total(root, "total_episodes")


def num_frames(root: Path) -> int:
    """Frames of a LeRobot dataset, by its `meta/info.json`.

    Raises:
        DataError: the number is missing.
    """
    return _total(root, "total_frames")


def env_steps_of(root: Path) -> int:
    """Return the env steps of a recording, also of episodes that were not kept; its frames where it does not say."""
    meta = RecordingMeta.load(root)
    steps = None if meta is None else meta.provenance.get("env_steps")
    return steps if isinstance(steps, int) else num_frames(root)


def _total(root: Path, key: str) -> int:
    file = root / "meta" / "info.json"
    count = read_json(file).get(key)
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise DataError(f"{file}: {key}: expected a whole number, found {count!r}. Restore it from a copy.")
    return count


def check_free(path: Path, *, replaced: bool) -> None:
    """Raise DataError unless a dataset may be written to `path`; `replaced`: in place of one that lies there."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not (path / "meta" / "info.json").is_file() or any(
        (path / name).exists() for name in ("checkpoints", "config.yaml")
    ):
        raise DataError(f"{path}: exists already and is no dataset. Choose another path.")
    if not replaced:
        raise DataError(f"{path}: exists already. Choose another path, or replace it with overwrite=true.")

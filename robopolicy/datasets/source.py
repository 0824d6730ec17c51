"""Read `meta/info.json` of a LeRobot dataset, before any frame is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

import pydantic

from robopolicy.core.command_line import argument
from robopolicy.core.errors import DataError, closest
from robopolicy.core.specs import check_action_spec
from robopolicy.core.types import ENV_STATE, POINTS, TASK, ActionSpec, Feature
from robopolicy.datasets.checks import Defect, raise_defects
from robopolicy.datasets.files import problems, read_json
from robopolicy.datasets.info_models import Column, Info
from robopolicy.datasets.metadata import META_FILE, RESTORE, RecordingMeta
from robopolicy.datasets.recording_folder import finished, left_by_killed

INFO_FILE = Path("meta") / "info.json"
OLD = "v2.1"  # the format that `data import` converts
_GIVE_SPEC = (
    "Nothing says what its actions mean. Say it once: `robopolicy data import {dataset}` infers what it can and "
    "asks for the rest. In Python pass action_spec= whenever it is loaded; docs/bring_your_own/dataset.md shows how."
)
_COUNTERS = {"timestamp", "frame_index", "episode_index", "index", "task_index"}  # LeRobot's columns of every dataset
_RESTORE = "Restore meta/info.json from a copy, or record again"
# Stands for a value that is unusable, so that a check can go on with the others.
_INSTEAD: dict[str, Any] = {
    "codebase_version": "v3.0", "fps": 1.0, "total_episodes": 0, "total_frames": 0, "video_path": None, "features": {},
}  # fmt: skip


@dataclass(frozen=True)
class DatasetInfo:
    """Content of `meta/info.json`, with images as uint8 (3, h, w).

    `unknown`: top-level keys of info.json that were unusable; empty after `open`. `repeats_state`: a column repeats
    the state for LeRobot's policies (lerobot_writer.py), and is left out of `offered`.
    """

    root: Path
    info: Info
    fps: float  # NaN: unknown
    offered: dict[str, Feature]  # observation keys, renamed
    names_there: dict[str, str]  # our key -> the dataset's
    meta: RecordingMeta | None
    unknown: frozenset[str] = field(default_factory=frozenset)
    repeats_state: bool = False

    @classmethod
    def open(cls, path: Path, rename: Mapping[str, str | None] | None = None) -> DatasetInfo:
        """Read the metadata.

        Args:
            rename: the dataset's key -> ours, or None to leave it out. None for the whole: as it was annotated.

        Raises:
            DataError: no LeRobot v3 dataset; names every value that is missing or of another type.
        """
        source, defects = cls.examine(path, rename)
        raise_defects(defects, path)
        return source

    @classmethod
    def examine(
        cls, path: Path, rename: Mapping[str, str | None] | None = None
    ) -> tuple[DatasetInfo, list[Defect]]:  # fmt: skip
        """Open a dataset like `open`, but list all defects and leave the broken parts out.

        Raises:
            DataError: no dataset, damaged JSON, or another version of the format.
        """
        info, unknown, defects = _read_info(path)
        meta = None
        try:
            meta = RecordingMeta.load(path)
        except DataError as error:
            problem = str(error).removeprefix(f"{path / META_FILE}: ").removesuffix(RESTORE).rstrip(" .")
            defects.append(Defect(str(META_FILE), problem, RESTORE.rstrip(".")))
        columns = info.features
        rename = rename if rename is not None else meta.rename if meta else {}
        for old in rename:
            if old not in columns:
                raise DataError(f"{path}: rename names {old!r}, which is not there. {closest(old, columns)}")
            _check_rename(path, old, rename[old], columns[old])
        offered: dict[str, Feature] = {}
        names_there: dict[str, str] = {}
        recorded = meta.observation if meta is not None and meta.provenance.get("annotated") is not True else None
        repeats = recorded is not None and ENV_STATE in columns and ENV_STATE not in (*recorded, *rename)
        for key, column in columns.items():
            name = rename.get(key, key)
            if not (key.startswith("observation") or key in rename) or column.is_text or column.is_depth:
                continue
            if name is None or (repeats and key == ENV_STATE):
                continue
            try:
                feature = _feature(key, column, info.video_path)
            except ValueError as error:
                defects.append(Defect(f"meta/info.json, features.{key}", str(error), _RESTORE))
                continue
            if name in offered:
                defects.append(Defect(name, f"{key!r} and {names_there[name]!r} both have this name", "Rename one"))
                continue
            offered[name], names_there[name] = feature, key
        if meta is None or TASK in meta.observation:
            offered[TASK] = Feature((), "int64")
        fps = math.nan if "fps" in unknown else info.fps
        if meta is not None and math.isfinite(fps) and not abs(meta.dt * fps - 1.0) <= 1e-3:
            problem = f"is {meta.dt:g} s a frame, meta/info.json says {fps:g} frames a second"
            defects.append(Defect("dt", problem, "Correct the one that is wrong, in meta/robopolicy.json or info.json"))
        return cls(path, info, fps, offered, names_there, meta, unknown, repeats), defects

    @property
    def columns(self) -> dict[str, Column]:
        """Every column by the dataset's name."""
        return self.info.features

    def has_film(self, key: str) -> bool:
        """Return whether column `key` is a video whose files can be named."""
        return self.columns[key].dtype == "video" and self.info.video_path is not None and is_plain(key)

    def film(self, key: str, chunk: int, file: int) -> Path:
        """Return the video file of camera `key` (the dataset's name)."""
        return self.root / str(self.info.video_path).format(video_key=key, chunk_index=chunk, file_index=file)


def _check_rename(path: Path, old: str, new: str | None, column: Column) -> None:
    """Raise DataError unless a column may be read as the observation `new`, or be left out."""
    if old == "action" or old in _COUNTERS or old.startswith("next."):
        raise DataError(f"{path}: rename names {old!r}, which is no observation. Name observations alone.")
    if new is not None and not new.startswith("observation."):
        raise DataError(f"{path}: rename={{{old}: {new}}}: expected a name that begins with 'observation.'")
    if new is not None and (column.is_text or column.is_depth):
        kind = "text" if column.is_text else "a depth picture"
        raise DataError(f"{path}: rename names {old!r}, which is {kind} and cannot be read. Leave it away.")


def _read_info(path: Path) -> tuple[Info, frozenset[str], list[Defect]]:
    """Return the file's content, its unusable top-level keys, and their defects."""
    file = path / INFO_FILE
    if str(path).startswith("hub:"):
        raise DataError(
            f"dataset={path}: is not on this machine. Fetch it: robopolicy data import {argument('dataset', path)} "
            f"{argument('out', f'data/{path.name.partition("@")[0]}')}"
        )
    if not file.exists():
        killed = left_by_killed(path)
        whole = next(filter(None, (finished(path, folder) for folder in killed)), None)
        hint = (
            f"A recording was killed while it put it there. Move it back: mv {quote(str(whole))} {quote(str(path))}"
            if whole
            else f"A recording of it was killed before it could finish ({killed[0]}). Record it again."
            if killed
            else "Expected the directory of a LeRobotDataset v3 (meta/info.json, data/…)."
        )
        raise DataError(f"{path}: no dataset here, {file} is missing. {hint}")
    data = read_json(file)
    version = data.get("codebase_version")
    if isinstance(version, str) and not version.startswith("v3."):
        how = f"First to {OLD}, by the converter of an older LeRobot"
        if version == OLD:
            how = f"robopolicy data import {argument('dataset', path)} {argument('out', f'{path}_v3')}"
        raise DataError(f"{path}: LeRobot format {version}, expected v3.x. Convert it: {how}")
    try:
        return Info.model_validate(data), frozenset(), []
    except pydantic.ValidationError as error:
        wrong = list(problems(error, depth=3))
    defects = [Defect(f"meta/info.json, {'.'.join(place)}", problem, _RESTORE) for place, problem in wrong]
    unknown = frozenset(place[0] for place, _ in wrong if place[0] != "features" or len(place) < 2)
    usable = {**_INSTEAD, **{k: v for k, v in data.items() if k not in unknown}}
    broken = {place[1] for place, _ in wrong if len(place) > 1}
    usable["features"] = {k: v for k, v in usable["features"].items() if k not in broken}
    return Info.model_validate(usable), unknown, defects


def _feature(key: str, column: Column, video_path: str | None) -> Feature:
    """Return the feature that a column offers; raises ValueError where it is none that can be read."""
    if column.is_picture:
        if column.dtype == "video" and not is_plain(key):
            raise ValueError("expected a name without / \\ and .., which a film's path is made of")
        if column.dtype == "video" and video_path is None:
            raise ValueError("is a video, and video_path says nothing of where it lies")
        return Feature((3, *column.picture_size()), "uint8")
    if not column.is_number:
        raise ValueError(f"dtype: expected numbers, video or image, found {column.dtype!r}")
    plain = len(column.shape) == 1 or (len(column.shape) == 2 and key.startswith(POINTS))
    names = column.names if plain and column.names and len(column.names) == column.shape[-1] else None
    return Feature(column.shape, "float32", names)  # whole numbers and flags too: policies read float32


def is_plain(key: str) -> bool:
    """Return whether a name leads nowhere else as part of a path."""
    return "/" not in key and "\\" not in key and ".." not in key


def resolve_action_spec(source: DatasetInfo, given: ActionSpec | None) -> ActionSpec:
    """Return the meaning of a dataset's actions.

    Raises:
        DataError: no actions, actions of another size or another meaning than `given`, or no meaning at all.
    """
    recorded = source.meta.action if source.meta else None
    if "action" not in source.columns:
        raise DataError(f"{source.root}: has no 'action'. {closest('action', source.columns)}")
    if recorded and given:
        problems = check_action_spec(given, recorded, needs="action_spec", offers="the dataset")
        if problems:
            raise DataError(f"{source.root}: recorded with other actions:\n  - " + "\n  - ".join(problems))
    spec = given or recorded
    column = source.columns["action"]
    if not column.is_number:
        raise DataError(f"{source.root}: action: expected numbers, found dtype {column.dtype!r}")
    if spec is None:
        how = _GIVE_SPEC.format(dataset=argument("dataset", source.root))
        raise DataError(f"{source.root}: action_spec is missing. {how} Its action names are {column.names}.")
    if column.shape != (spec.dim,):
        raise DataError(
            f"{source.root}: action has shape {column.shape}, action_spec has {spec.dim} dimensions {spec.names}"
        )
    return spec

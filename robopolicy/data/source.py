"""What a LeRobot dataset says about itself (`meta/info.json`), before any frame is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robopolicy.data.meta import RecordingMeta
from robopolicy.errors import DataError, closest
from robopolicy.spec import check_action_spec
from robopolicy.types import ENV_STATE, TASK, ActionSpec, Feature

_GIVE_SPEC = (
    "It was not recorded by robopolicy, so nothing says what its actions mean. Say it once with "
    "robopolicy.data.lerobot.annotate_dataset(path, action_spec=ActionSpec(names=…, units=…, low=…, high=…, frame=…, "
    "tcp=…, rotation=…, reference=…, gripper=…, gripper_meaning=…)), or pass action_spec= whenever it is loaded; "
    "docs/bring_your_own/dataset.md shows how."
)


@dataclass(frozen=True)
class Source:
    """What `meta/info.json` says, with images as uint8 (3, h, w)."""

    root: Path
    fps: float
    columns: dict[str, Any]  # info.json's "features"
    offered: dict[str, Feature]  # observation keys, renamed
    names_there: dict[str, str]  # our key -> the dataset's
    total_frames: int
    video_path: str | None
    meta: RecordingMeta | None

    @classmethod
    def open(cls, path: Path, rename: Mapping[str, str] | None = None) -> Source:
        """`rename`: the dataset's key -> ours; None: as it was annotated."""
        info, meta = _read_info(path), RecordingMeta.load(path)
        columns = info["features"]
        rename = rename if rename is not None else meta.rename if meta else {}
        for old in rename:
            if old not in columns:
                raise DataError(f"{path}: rename names {old!r}, which is not there. {closest(old, columns)}")
        offered, names_there = {}, {}
        for key, column in columns.items():
            is_text = column["dtype"] in ("string", "language")
            copied = key == ENV_STATE and meta is not None and key not in meta.observation
            if key.startswith("observation") and not is_text and not copied and not _is_depth(column):
                name = rename.get(key, key)
                offered[name], names_there[name] = _feature(column), key
        if meta is None or TASK in meta.observation:
            offered[TASK] = Feature((), "int64")
        total, fps = int(info["total_frames"]), float(info["fps"])
        return cls(path, fps, columns, offered, names_there, total, info.get("video_path"), meta)


def _read_info(path: Path) -> dict[str, Any]:
    file = path / "meta" / "info.json"
    if not file.exists():
        killed = sorted(path.parent.glob(f".{path.name}.recording-*"))
        hint = (
            f"A recording of it was killed before it could finish ({killed[0]}): remove that and record again."
            if killed
            else "Expected the directory of a LeRobotDataset v3 (meta/info.json, data/…)."
        )
        raise DataError(f"{path}: no dataset here, {file} is missing. {hint}")
    try:
        info = json.loads(file.read_text())
        version, _, _, _ = info["codebase_version"], info["features"], info["fps"], info["total_frames"]
    except (ValueError, KeyError) as error:
        raise DataError(f"{file}: damaged ({error!r}). Restore it from a copy, or record again.") from error
    if not version.startswith("v3."):
        raise DataError(
            f"{path}: LeRobot format {version}, expected v3.x. Convert it: "
            "python -m lerobot.scripts.convert_dataset_v21_to_v30 --repo-id=…"
        )
    return dict(info)


def _is_depth(column: Mapping[str, Any]) -> bool:
    infos = {**(column.get("video_info") or {}), **(column.get("info") or {})}
    return bool(infos.get("is_depth_map") or infos.get("video.is_depth_map"))


def _feature(column: Mapping[str, Any]) -> Feature:
    shape, names = tuple(column["shape"]), column.get("names")
    if column["dtype"] in ("video", "image"):
        last = (shape[-1] == 3 and shape[0] != 3) or (names and str(list(names)[2]).startswith("channel"))
        h, w = shape[:2] if last else shape[1:]
        return Feature((3, h, w), "uint8")
    if isinstance(names, dict):  # LeRobot's older style: {"motors": [...]}
        names = [n for group in names.values() for n in (group if isinstance(group, list) else [group])]
    flat = tuple(map(str, names)) if names and len(shape) == 1 and len(names) == shape[0] else None
    dtype = "float32" if column["dtype"].startswith("float") else column["dtype"]
    return Feature(shape, dtype, flat)


def resolve_action_spec(source: Source, given: ActionSpec | None) -> ActionSpec:
    recorded = source.meta.action if source.meta else None
    if "action" not in source.columns:
        raise DataError(f"{source.root}: has no 'action'. {closest('action', source.columns)}")
    if recorded and given:
        problems = check_action_spec(given, recorded, needs="action_spec", offers="the dataset")
        if problems:
            raise DataError(f"{source.root}: recorded with other actions:\n  - " + "\n  - ".join(problems))
    spec = given or recorded
    if spec is None:
        names = source.columns["action"].get("names")
        raise DataError(f"{source.root}: action_spec is missing. {_GIVE_SPEC} Its action names are {names}.")
    shape = tuple(source.columns["action"]["shape"])
    if shape != (spec.dim,):
        raise DataError(f"{source.root}: action has shape {shape}, action_spec has {spec.dim} dimensions {spec.names}")
    return spec

"""Find every defect of a dataset, by episode and frame (`robopolicy data check`).

Loading a dataset stops at the first kind of defect; the check lists all of them. It repairs nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from robopolicy.config.schema import Count, Fraction
from robopolicy.core.errors import DataError
from robopolicy.core.types import ENV_STATE, IMAGES, STATE, TASK, ActionSpec
from robopolicy.datasets import frame_checks
from robopolicy.datasets.checks import Array, Defect, raise_defects
from robopolicy.datasets.hdf5.convert import find_hdf5, inspect_hdf5
from robopolicy.datasets.importing import mending_command
from robopolicy.datasets.parquet import number, whole
from robopolicy.datasets.remarks import coarse
from robopolicy.datasets.source import INFO_FILE, DatasetInfo, resolve_action_spec
from robopolicy.datasets.spans import FilmBlock, blocks_of, check_blocks, check_rows, check_spans, read_episodes
from robopolicy.datasets.stats import check_stats
from robopolicy.datasets.tables import Columns, read_driver, read_files, read_outcomes, read_tasks
from robopolicy.datasets.video import check_video
from robopolicy.utils.threads import set_threads


def data_check(*, dataset: Path, saturated: Fraction = 0.5, shown: Count = 50, threads: Count | None = None) -> None:
    """Name every defect of a LeRobot dataset, or of an HDF5 file of another project.

    Args:
        saturated: share of an episode's frames up to which an action may lie at its limit; the gripper always may.
        shown: most defects in the message.
        dataset: a LeRobotDataset v3, or an HDF5 file as `convert` reads it.
        threads: of torch; None: torch's choice.

    Raises:
        DataError: there are defects, or no dataset.
        ConfigError: an HDF5 file, and h5py is missing.
    """
    set_threads(threads)
    if not (dataset / INFO_FILE).exists() and dataset.exists() and (file := find_hdf5(dataset)) is not None:
        contents, found = inspect_hdf5(file)
        raise_defects(found, dataset, shown=shown)
        print(f"{dataset}: {len(contents.episodes)} episodes of {contents.format}, no defects")
        return
    source, found = DatasetInfo.examine(dataset)
    raise_defects(found + inspect(source, saturated=saturated), dataset, shown=shown)
    cameras = [k for k in source.offered if k.startswith(IMAGES)]
    columns = f"{len(_numeric(source))} columns" + f" and {len(cameras)} cameras" * bool(cameras)
    print(f"{dataset}: {source.info.total_frames} frames at {source.fps:g} Hz, no defects in {columns}")
    if source.repeats_state:
        print(f"{ENV_STATE} repeats {STATE}: read once")
    for remark in coarse(source):
        print(remark)
    if source.meta is None and "action" in source.columns:
        print(f"It does not say what its actions mean, which training needs to know: {mending_command(source)}")


def inspect(source: DatasetInfo, *, saturated: float = 0.5) -> list[Defect]:
    """Return all defects of rows, then of episodes; an unusable column does not hide defects of the others."""
    found, table = _stray(source), None
    keys = [k for k in _numeric(source) if k in source.columns]
    with _noted(found, "dataset", "Copy the whole folder again, or record again"):
        table, bad = read_files(source, keys)
        found += bad
    cameras = [k for k, c in source.columns.items() if c.dtype == "video" and source.has_film(k)]
    episodes, bad = read_episodes(source, cameras)
    found += bad
    if table is not None:
        found += _check_count(source, table)
    if table is None or not table.num_rows or "episode_index" not in table.column_names:
        return found + check_stats(source, {})
    blocks = blocks_of(whole(table, "episode_index"))
    column = Columns(table, torch.tensor([0, *(b.end for b in blocks)]), source)
    has, values, spec = set(table.column_names), dict[str, Array](), None
    for key in (k for k in keys if k in has):
        with _noted(found, key, "Record again, or mend the table"):
            values[key] = column(key, source.columns[key].shape).reshape(table.num_rows, -1)
    stamps = number(table, "timestamp") if "timestamp" in has else None
    if source.repeats_state and not _equal(values.get(ENV_STATE), values.get(STATE)):
        fix = "Delete meta/robopolicy.json and annotate the dataset, which then offers both"
        found.append(Defect(ENV_STATE, f"differs from {STATE!r}, whose copy it is taken for, and is not read", fix))
    if source.meta is not None:  # without it limits are not checked
        with _noted(found, "action", "Give the spec that these data were recorded with"):
            spec = resolve_action_spec(source, None)
    found += _rows(source, blocks, table, values, stamps, spec, saturated)
    found += _check_duplicates(blocks, values)
    if "task_index" in has:
        with _noted(found, TASK, "Mend meta/tasks.parquet, or record again"):
            read_tasks(source, column("task_index", ()))
    found += check_stats(source, values)
    found += check_blocks(blocks, episodes).of(None)
    if episodes is not None:
        found += check_rows(blocks, episodes).of(None)
        for camera in cameras:
            found += check_spans(camera, episodes, blocks, stamps, source.fps).of(None)
            if stamps is not None and np.isfinite(source.fps):
                found += check_video(source, camera, blocks, stamps, episodes.where(camera))
    with _noted(found, "outcomes", "Mend the column, or record again"):  # which loading would refuse
        read_driver(column)
        read_outcomes(column, "recorded")
    return found


def _rows(
    source: DatasetInfo, blocks: list[FilmBlock], table: pa.Table, values: Mapping[str, Array], stamps: Array | None,
    spec: ActionSpec | None, saturated: float,
) -> Iterator[Defect]:  # fmt: skip
    """Defects of single frames, episode by episode."""
    frames = whole(table, "frame_index") if "frame_index" in table.column_names else None
    names = {k: c.names for k, c in source.columns.items()}
    action = values.get("action")
    for block in blocks:
        if frames is not None:
            yield from frame_checks.check_frames(block, frames)
        if stamps is not None:
            yield from frame_checks.check_rate(block, stamps, source.fps)
        yield from frame_checks.check_finite(block, values, names)
        yield from frame_checks.check_clouds(block, values)
        yield from frame_checks.check_stride(block, values, source.fps)
        if action is not None:
            yield from frame_checks.check_limits(block, action, spec)
            yield from frame_checks.check_saturation(block, action, spec, saturated)


# -- inside ---------------------------------------------------------------------------------------------------------
def _numeric(source: DatasetInfo) -> list[str]:
    """Columns of numbers that are compared frame by frame."""
    wanted = [source.names_there[k] for k in source.offered if k in source.names_there]
    known = [*wanted, *([ENV_STATE] if source.repeats_state else []), "action", "next.reward"]
    return [k for k in dict.fromkeys(known) if k in source.columns and not source.columns[k].is_picture]


def _equal(a: Array | None, b: Array | None) -> bool:
    """Return whether two columns hold the same, apart from defects of their own: missing or not finite."""
    if a is None or b is None or a.shape != b.shape:
        return a is None or b is None
    return bool((a == b)[np.isfinite(a) & np.isfinite(b)].all())


@contextmanager
def _noted(found: list[Defect], key: str, fix: str) -> Iterator[None]:
    """Note an error of reading as a defect of `key`, without the place before its reason."""
    try:
        yield
    except DataError as error:
        found.append(Defect(key, (str(error).partition(": ")[2] or str(error)).rstrip("."), fix))


def _stray(source: DatasetInfo) -> list[Defect]:
    """Find hidden copies by macOS, which LeRobot reads as parquet files."""
    found = sorted(p for part in ("data", "meta") for p in (source.root / part).rglob("._*.parquet"))
    problem = "is no table: macOS leaves such files beside others on foreign disks"
    return [Defect(str(p.relative_to(source.root)), problem, "Remove it; it is ignored here") for p in found]


def _check_count(source: DatasetInfo, table: pa.Table) -> list[Defect]:
    fix = "A file is missing or the recording was cut off: copy it again, or re-record"
    if not table.num_rows:
        return [Defect("dataset", "holds no frames", fix)]
    found = []
    if "total_frames" not in source.unknown and table.num_rows != source.info.total_frames:
        problem = f"data/ holds {table.num_rows} frames, meta/info.json says {source.info.total_frames}"
        found.append(Defect("dataset", problem, fix))
    if "total_episodes" not in source.unknown and "episode_index" in table.column_names:
        there = len(np.unique(whole(table, "episode_index")))
        if there != source.info.total_episodes:
            problem = f"data/ holds {there} episodes, meta/info.json says {source.info.total_episodes}"
            found.append(Defect("total_episodes", problem, fix))
    return found


def _check_duplicates(episodes: list[FilmBlock], values: Mapping[str, frame_checks.Array]) -> Iterator[Defect]:
    first: dict[bytes, int] = {}
    for episode in episodes if values else ():
        digest = hashlib.sha256()
        for key in sorted(values):
            digest.update(key.encode() + np.ascontiguousarray(values[key][episode.rows]).tobytes())
        same = first.setdefault(digest.digest(), episode.index)
        if same != episode.index:
            fix = "It counts twice in training, and splits share it: leave one out (in Python, by load_episodes)"
            yield Defect("episode", f"is episode {same} again, in every frame", fix, episode.index, 0)

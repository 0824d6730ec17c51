"""Parquet files of a LeRobot dataset as arrays: read whole, verified, no row-by-row access."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from robopolicy.core.errors import DataError, closest
from robopolicy.datasets.checks import Defect, raise_defects
from robopolicy.datasets.files import check_regular
from robopolicy.datasets.frame_checks import check_frames, check_rate
from robopolicy.datasets.metadata import SEED
from robopolicy.datasets.parquet import Kind, number, parquet_files, read_parts, whole
from robopolicy.datasets.source import DatasetInfo
from robopolicy.datasets.spans import EpisodeSpans, blocks_of, check_blocks, check_spans, read_episodes

DRIVER = {  # columns that say who drove, and their types; the last is that of LeRobot's HIL-SERL
    "driver": ("int64",), "intervention": ("bool",), "complementary_info.is_intervention": ("bool", "float32"),
}  # fmt: skip
OUTCOMES = ("next.reward", "next.done", "next.truncated", "next.success")
_PLACES = ("frame_index", "episode_index", "task_index")
_KILLED = "The recording was killed before `finalize`, or the file was damaged: copy it again, or record again"
DRIVERS = ("policy", "human", "rewind")  # values of `driver`


def read_files(source: DatasetInfo, keys: Sequence[str]) -> tuple[pa.Table | None, list[Defect]]:
    """Read all rows with the columns `keys` and those of a frame's place, and all defects.

    A column that is unusable, or a file that cannot be read, is left out of the table.

    Raises:
        DataError: no files.
    """
    files = parquet_files(source.root / "data")
    if not files:
        raise DataError(f"{source.root}: empty, no parquet file under data/. Copy the whole folder, or record again.")
    wanted: dict[str, Kind] = {"action": "any", "timestamp": "number", **dict.fromkeys(_PLACES, "whole")}
    wanted |= {k: "any" for k in (SEED, *OUTCOMES) if k in source.columns}
    wanted |= {k: "any" for k, types in DRIVER.items() if k in source.columns and source.columns[k].dtype in types}
    wanted |= {k: "any" for k in keys if source.columns[k].dtype != "video" and k not in wanted}
    return read_parts(files, wanted, source.root, fix=_KILLED)


def read_table(
    source: DatasetInfo, episodes: Sequence[int] | None, keys: Sequence[str]
) -> tuple[Columns, EpisodeSpans]:
    """Return all wanted columns of `episodes` (None: all), and the spans of their films.

    Args:
        keys: columns; of videos the spans of their films.

    Raises:
        DataError: as `read_files`; frames are missing, or belong to no episode, or to several; films do not fit.
    """
    table, found = read_files(source, keys)
    raise_defects(found, source.root)
    assert table is not None
    if table.num_rows != source.info.total_frames or not table.num_rows:
        raise DataError(
            f"{source.root}: data/ holds {table.num_rows} frames, meta/info.json says {source.info.total_frames}. A "
            "file is missing or the recording was cut off."
        )
    if episodes is not None:
        known = pc.unique(table["episode_index"]).to_pylist()
        unknown = sorted(set(episodes) - set(known))
        if unknown or not len(episodes):
            raise DataError(f"{source.root}: episodes {unknown or 'none'} asked for; it has 0 to {max(known)}")
    cameras = [k for k in keys if source.columns[k].dtype == "video"]
    spans = _check_places(source, table, cameras, episodes)
    if episodes is not None:
        table = table.filter(pc.is_in(table["episode_index"], pa.array(sorted(set(episodes)), pa.int64())))
    table = table.combine_chunks()
    blocks, frames = blocks_of(whole(table, "episode_index")), whole(table, "frame_index")
    raise_defects((d for block in blocks for d in check_frames(block, frames)), source.root)
    return Columns(table, torch.tensor([0, *(b.end for b in blocks)]), source), spans


def _check_places(
    source: DatasetInfo, table: pa.Table, cameras: Sequence[str], episodes: Sequence[int] | None
) -> EpisodeSpans:
    """Which frames and films are whose; raises DataError where that cannot be true of one of `episodes`."""
    spans, found = read_episodes(source, cameras)
    raise_defects(found, source.root)
    if spans is None:
        raise DataError(f"{source.root}: meta/episodes cannot be read")
    blocks, stamps = blocks_of(whole(table, "episode_index")), number(table, "timestamp")
    found = check_blocks(blocks, spans).of(episodes)
    for camera in cameras:
        found += check_spans(camera, spans, blocks, stamps, source.fps).of(episodes)
    if found and stamps is not None:  # films of another rate do not fit their frames either
        chosen = [block for block in blocks if episodes is None or block.index in episodes]
        raise_defects((d for block in chosen for d in check_rate(block, stamps, source.fps)), source.root)
    raise_defects(found, source.root)
    return spans


@dataclass(frozen=True)
class Columns:
    """Frames of whole episodes; episode e is rows starts[e]:starts[e+1]."""

    table: pa.Table
    starts: Tensor
    source: DatasetInfo

    def __call__(self, key: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Column `key` as a writable array [F *shape]; a trailing axis of one is dropped for shape ()."""
        column = self.table[key].combine_chunks()
        flat = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        while isinstance(flat, pa.ExtensionArray):
            flat = flat.storage
        count, outer, ragged = math.prod(shape), flat, False
        while isinstance(flat, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):  # lists of lists
            ragged |= len(pc.unique(pc.list_value_length(flat))) > 1
            flat = flat.flatten()
        if flat.null_count and not pa.types.is_floating(flat.type):  # of floats they are NaN: named by their frames
            raise DataError(f"{self.source.root}: {key!r} holds empty (null) values")
        if not (pa.types.is_integer(flat.type) or pa.types.is_floating(flat.type) or pa.types.is_boolean(flat.type)):
            raise DataError(f"{self.source.root}: {key!r} must hold numbers, found {flat.type}")
        values = flat.to_numpy(zero_copy_only=False)
        if ragged or len(values) != self.table.num_rows * count:
            where, lengths = "", pc.list_value_length(outer) if outer is not flat and len(shape) == 1 else pa.array([])
            if len(wrong := np.flatnonzero(lengths.to_numpy(zero_copy_only=False) != count)):
                row = int(wrong[0])
                episode = int(torch.searchsorted(self.starts, torch.tensor(row), right=True)) - 1
                where = f"; episode {episode}, frame {row - int(self.starts[episode])} has {lengths[row].as_py()}"
            raise DataError(f"{self.source.root}: {key!r} must have shape {shape} in every frame{where}")
        return np.array(values.reshape(self.table.num_rows, *shape))


def read_tasks(source: DatasetInfo, index: NDArray[np.int64]) -> tuple[tuple[str, ...], Tensor]:
    """Instructions, in the env's order where it is known, and the index [F] into them."""
    by_index = _task_table(source)
    unknown = sorted(set(np.unique(index).tolist()) - set(by_index))
    if unknown:
        raise DataError(f"{source.root}: task_index {unknown[0]} of data/ has no text in meta/tasks.parquet")
    tasks = source.meta.tasks if source.meta else tuple(by_index.values())
    for text in by_index.values():
        if text not in tasks:
            raise DataError(f"task: no instruction {text!r}. {closest(text, tasks)}")
    position = {i: tasks.index(text) for i, text in by_index.items()}
    return tasks, torch.tensor([position[i] for i in index.tolist()], dtype=torch.int64)


def task_texts(source: DatasetInfo) -> tuple[str, ...]:
    """Return the dataset's instructions in the order of its task_index."""
    return tuple(_task_table(source).values())


def _task_table(source: DatasetInfo) -> dict[int, str]:
    """Instruction by index, in the order of the indices.

    Raises:
        DataError: the table cannot be read, lacks a text, or has an index twice.
    """
    file = source.root / "meta" / "tasks.parquet"
    try:
        check_regular(file)
        known = pq.read_schema(file).names
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{file}: cannot be read ({error})") from error
    text = next((k for k in ("task", "__index_level_0__") if k in known), "task")
    wanted: dict[str, Kind] = {"task_index": "whole", text: "text"}
    table, found = read_parts([file], wanted, source.root, fix="Restore it from a copy, or record again")
    raise_defects(found, source.root)
    assert table is not None
    index, texts = table["task_index"].to_pylist(), table[text].to_pylist()
    if len(set(index)) < len(index):
        twice = next(i for i in index if index.count(i) > 1)
        raise DataError(f"{source.root}: task_index {twice} is twice in meta/tasks.parquet: restore it from a copy")
    if not all(t.strip() for t in texts):
        raise DataError(f"{source.root}: task {index[[bool(t.strip()) for t in texts].index(False)]} has no text in "
                        "meta/tasks.parquet: restore it from a copy")  # fmt: skip
    return dict(sorted(zip(index, texts, strict=True)))


def read_driver(column: Columns) -> Tensor | None:
    """Return the drivers [F] int64, see Episodes; None where they are not recorded.

    Recordings of deployments say it under `driver`, data made of bags and LeRobot's rollouts under `intervention`: a
    human, or his rewind.

    Raises:
        DataError: a number that is no driver.
    """
    for key in DRIVER:
        if key in column.table.column_names:
            found = torch.from_numpy(column(key, ()))
            driver = found.to(torch.int64)
            wrong = ((driver != found) | (driver < 0) | (driver >= len(DRIVERS))).nonzero()
            if len(wrong):
                who = ", ".join(f"{i} ({name})" for i, name in enumerate(DRIVERS))
                frame = int(wrong[0, 0])
                raise DataError(
                    f"{column.source.root}: {key!r} is {found[frame].item():g} in frame {frame}, expected {who}. "
                    "Correct the column, or remove it: its frames are demonstrations then."
                )
            return driver
    return None


def read_outcomes(column: Columns, outcomes: str) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Return reward [F], terminated [F], success [F], and whether the dataset (or the caller) says so.

    Without `next.success`, sparse rewards say it: 1 or, with −1 a step, 0 at an episode's last frame alone, as
    LeRobot's HIL-SERL and the Fetch tasks have them. Other rewards may be shaped, and say nothing of success.

    Without `next.truncated`, `next.done` marks the end of every episode, time limits included. There an episode
    terminates only where it ends in success; where that is not known either, nothing is said of outcomes. Without
    `next.done`, an episode terminates where its last frame is a success.

    Raises:
        DataError: a flag is neither 0 nor 1.
    """
    frames = column.table.num_rows
    last = torch.zeros(frames, dtype=torch.bool)
    last[column.starts[1:] - 1] = True
    if outcomes == "success":
        return last.float(), last, last.clone(), True
    if outcomes != "recorded":
        raise DataError(f"outcomes must be 'recorded' or 'success', found {outcomes!r}")

    def flags(key: str) -> Tensor | None:
        return _flags(column, key) if key in column.table.column_names else None

    reward = torch.from_numpy(column("next.reward", ())) if "next.reward" in column.table.column_names else None
    done, truncated, success = (flags(f"next.{k}") for k in ("done", "truncated", "success"))
    if success is None and reward is not None:
        success = _sparse_success(reward, last)
    known = success is not None or (reward is not None and (truncated is not None or done is None))
    reached = torch.zeros_like(last) if success is None else success
    ends = last & reached if done is None else done
    terminated = ends & (reached if truncated is None else ~truncated)
    return torch.zeros(frames) if reward is None else reward.float(), terminated, reached, known


def _flags(column: Columns, key: str) -> Tensor:
    """Return a column of flags [F] as bool."""
    found = np.asarray(column(key, ()))
    if found.dtype != np.bool_ and len(bad := np.flatnonzero((found != 0) & (found != 1))):
        frame = int(bad[0])
        episode = int(np.searchsorted(column.starts.numpy(), frame, side="right")) - 1
        raise DataError(
            f"{column.source.root}: {key!r} is {found[frame]} in episode {episode}, frame {frame}, expected 0 or 1. "
            "Correct the column, or remove it"
        )
    return torch.from_numpy(found.astype(np.bool_))


def _sparse_success(reward: Tensor, last: Tensor) -> Tensor | None:
    """Return success [F] of sparse rewards, 0 and 1 or −1 and 0; None: they are others."""
    for failed in (0.0, -1.0):
        reached = reward == failed + 1.0
        if bool(((reward == failed) | (reached & last)).all()):
            return reached
    return None

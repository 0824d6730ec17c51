"""Parquet files of a LeRobot dataset as arrays: read whole, verified, no row-by-row access."""

from __future__ import annotations

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

from robopolicy.data.meta import SEED, task_order
from robopolicy.data.source import Source
from robopolicy.errors import DataError, closest

DRIVER = {"driver": "int64", "intervention": "bool"}  # columns that say who drove, and their types
DRIVERS = ("policy", "human", "rewind")  # what `driver` counts in


def read_files(source: Source, keys: Sequence[str]) -> pa.Table:
    """All rows that there are, with the columns `keys` and those that say where a frame belongs.

    Raises:
        DataError: no files, files that are cut off, a column that is missing.
    """
    files = sorted((source.root / "data").glob("*/*.parquet"))
    if not files:
        raise DataError(f"{source.root}: empty, no parquet file under data/. Copy the whole folder, or record again.")
    extra = [k for k in (SEED, "next.reward", "next.done", "next.truncated", "next.success") if k in source.columns]
    extra += [k for k, dtype in DRIVER.items() if source.columns.get(k, {}).get("dtype") == dtype]
    wanted = ["action", "timestamp", "frame_index", "episode_index", "task_index", *extra]
    wanted += [k for k in keys if source.columns[k]["dtype"] != "video" and k not in wanted]
    parts = []
    for file in files:
        try:
            with pq.ParquetFile(file) as parquet:
                missing = sorted(set(wanted) - set(parquet.schema_arrow.names))
                if missing:
                    known = parquet.schema_arrow.names
                    raise DataError(f"{file}: column {missing[0]!r} is missing. {closest(missing[0], known)}")
                parts.append(parquet.read(columns=wanted).select(wanted))
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(
                f"{file}: cannot be read ({error}). The recording was killed before `finalize`; record again."
            ) from error
    return pa.concat_tables(parts)


def read_table(source: Source, episodes: Sequence[int] | None, keys: Sequence[str]) -> tuple[pa.Table, Tensor]:
    """All wanted columns, and `starts` [E+1].

    Raises:
        DataError: as `read_files`, or frames are missing.
    """
    table = read_files(source, keys)
    if table.num_rows != source.total_frames:
        raise DataError(
            f"{source.root}: data/ holds {table.num_rows} frames, meta/info.json says {source.total_frames}. "
            f"A file is missing or the recording was cut off."
        )
    if not table.num_rows:
        raise DataError(f"{source.root}: empty, 0 frames")
    if episodes is not None:
        known = pc.unique(table["episode_index"]).to_pylist()
        unknown = sorted(set(episodes) - set(known))
        if unknown or not len(episodes):
            raise DataError(f"{source.root}: episodes {unknown or 'none'} asked for; it has 0 to {max(known)}")
        table = table.filter(pc.is_in(table["episode_index"], pa.array(sorted(set(episodes)), pa.int64())))
    table = table.combine_chunks()
    index, inside = table["episode_index"].to_numpy(), table["frame_index"].to_numpy()
    starts = np.flatnonzero(np.r_[True, index[1:] != index[:-1]])
    lengths = np.diff(np.r_[starts, len(index)])
    expected = np.arange(len(index)) - np.repeat(starts, lengths)
    if (inside != expected).any():
        row = int(np.flatnonzero(inside != expected)[0])
        raise DataError(
            f"{source.root}: frame_index, episode {index[row]}: expected {expected[row]}, found {inside[row]}. "
            f"Frames are missing or out of order."
        )
    return table, torch.from_numpy(np.r_[starts, len(index)])


@dataclass(frozen=True)
class Columns:
    table: pa.Table
    starts: Tensor
    source: Source

    def __call__(self, key: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Column `key` as a writable array [F *shape]; a trailing axis of one is dropped for shape ()."""
        column = self.table[key].combine_chunks()
        flat = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        while isinstance(flat, pa.ExtensionArray):
            flat = flat.storage
        count = int(np.prod(shape))
        outer = flat
        while pa.types.is_nested(flat.type):  # lists of lists
            flat = flat.flatten()
        if flat.null_count:
            raise DataError(f"{self.source.root}: {key!r} holds empty (null) values")
        values = flat.to_numpy(zero_copy_only=False)
        if len(values) != self.table.num_rows * count:
            where = ""
            if outer is not flat and len(shape) == 1:
                row = int(np.flatnonzero(pc.list_value_length(outer).to_numpy(zero_copy_only=False) != count)[0])
                episode = int(torch.searchsorted(self.starts, torch.tensor(row), right=True)) - 1
                found = pc.list_value_length(outer)[row].as_py()
                where = f"; episode {episode}, frame {row - int(self.starts[episode])} has {found}"
            raise DataError(f"{self.source.root}: {key!r} must have shape {shape} in every frame{where}")
        return np.array(values.reshape(self.table.num_rows, *shape))


def read_tasks(source: Source, index: NDArray[np.int64]) -> tuple[tuple[str, ...], Tensor]:
    """Instructions, in the env's order where it is known, and the index [F] into them."""
    by_index = _task_table(source)
    unknown = sorted(set(np.unique(index).tolist()) - set(by_index))
    if unknown:
        raise DataError(
            f"{source.root}: task_index {unknown[0]} is used in data/ but has no text in meta/tasks.parquet"
        )
    recorded = tuple(by_index.values())
    tasks = source.meta.tasks if source.meta else recorded
    order = task_order(recorded, tasks)
    position = {i: order[k] for k, i in enumerate(by_index)}
    return tasks, torch.tensor([position[i] for i in index.tolist()], dtype=torch.int64)


def task_texts(source: Source) -> tuple[str, ...]:
    """The dataset's instructions in the order of its task_index."""
    return tuple(_task_table(source).values())


def _task_table(source: Source) -> dict[int, str]:
    file = source.root / "meta" / "tasks.parquet"
    try:
        table = pq.read_table(file).to_pydict()
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{file}: cannot be read ({error})") from error
    text = next((table[k] for k in ("task", "__index_level_0__") if k in table), None)
    if text is None or "task_index" not in table:
        raise DataError(f"{file}: expected columns 'task' and 'task_index', found {sorted(table)}")
    return dict(sorted(zip(table["task_index"], text, strict=True)))


def read_driver(column: Columns) -> Tensor | None:
    """[F] int64 who drove, see Episodes; None where the dataset does not say.

    Recordings of deployments say it under `driver`, data made of bags under `intervention`: a human, or his rewind.

    Raises:
        DataError: a number that names nobody.
    """
    for key in DRIVER:
        if key in column.table.column_names:
            driver = torch.from_numpy(column(key, ())).to(torch.int64)
            wrong = ((driver < 0) | (driver >= len(DRIVERS))).nonzero()
            if len(wrong):
                who = ", ".join(f"{i} ({name})" for i, name in enumerate(DRIVERS))
                frame = int(wrong[0, 0])
                raise DataError(
                    f"{column.source.root}: {key!r} is {int(driver[frame])} in frame {frame}, expected {who}. Correct "
                    "the column, or remove it: its frames are demonstrations then."
                )
            return driver
    return None


def read_outcomes(column: Columns, starts: Tensor, frames: int, outcomes: str) -> tuple[Tensor, Tensor, Tensor, bool]:
    """reward [F], terminated [F], success [F], and whether the dataset (or the caller) says so."""
    last = torch.zeros(frames, dtype=torch.bool)
    last[starts[1:] - 1] = True
    if outcomes == "success":
        return last.float(), last, last.clone(), True
    if outcomes != "recorded":
        raise DataError(f"outcomes must be 'recorded' or 'success', found {outcomes!r}")

    def get(key: str) -> Tensor | None:
        return torch.from_numpy(column(key, ())) if key in column.table.column_names else None

    reward, done, truncated, success = (get(f"next.{k}") for k in ("reward", "done", "truncated", "success"))
    terminated = torch.zeros(frames, dtype=torch.bool) if done is None else done.bool()
    if truncated is not None:
        terminated &= ~truncated.bool()
    known = reward is not None or success is not None
    success = torch.zeros(frames, dtype=torch.bool) if success is None else success.bool()
    return torch.zeros(frames) if reward is None else reward.float(), terminated, success, known

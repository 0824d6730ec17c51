"""The statistics that LeRobot keeps of a dataset: of all frames in `meta/stats.json`, of each episode in its table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from robopolicy.data.check import Defect
from robopolicy.data.source import Source

NEEDED = ("mean", "std", "min", "max")  # LeRobot's policies normalise by these
_TOLERANCE = 1e-4  # of the range; statistics are rounded
_FIX = "LeRobot's policies need them to normalise: write the dataset again (DatasetWriter, LeRobotDataset)"


def check_stats(source: Source, values: Mapping[str, NDArray[Any]]) -> list[Defect]:
    """What is missing of them, is no number, or is not of these data.

    Args:
        values: columns of numbers [F ·], whose extremes are compared where they are vectors: of others LeRobot reduces
            several axes.
    """
    keys = [k for k, c in source.columns.items() if c["dtype"] not in ("string", "language")]
    return [*_whole(source, keys, values), *_each(source, keys)]


def _whole(source: Source, keys: list[str], values: Mapping[str, NDArray[Any]]) -> Iterator[Defect]:
    file = source.root / "meta" / "stats.json"
    try:
        stats = json.loads(file.read_text(encoding="utf-8"))
    except OSError:
        yield Defect("stats", "meta/stats.json is missing", _FIX)
        return
    except ValueError as error:
        yield Defect("stats", f"meta/stats.json is damaged ({error})", _FIX)
        return
    for key in keys:
        missing = [n for n in NEEDED if n not in stats.get(key, {})]
        if missing:
            yield Defect("stats", f"{key}: {' and '.join(missing)} are missing in meta/stats.json", _FIX)
            continue
        numbers = {n: np.asarray(stats[key][n], dtype=np.float64).reshape(-1) for n in NEEDED}
        if any(not np.isfinite(v).all() for v in numbers.values()):
            yield Defect("stats", f"{key}: not all are finite in meta/stats.json", _FIX)
        elif key in values and len(source.columns[key]["shape"]) == 1 and np.isfinite(values[key]).all():
            yield from _stale(key, numbers, values[key])


def _stale(key: str, numbers: Mapping[str, NDArray[Any]], value: NDArray[Any]) -> Iterator[Defect]:
    low, high = value.min(axis=0).astype(np.float64), value.max(axis=0).astype(np.float64)
    slack = _TOLERANCE * np.maximum(high - low, np.abs(high)) + 1e-9
    for name, true in (("min", low), ("max", high)):
        said = numbers[name]
        if said.shape != true.shape:
            yield Defect("stats", f"{key}: {name} has {len(said)} elements, the column {len(true)}", _FIX)
            return
        if (np.abs(said - true) > slack).any():
            k = int(np.argmax(np.abs(said - true) > slack))
            problem = f"{key}: {name} of element {k} is {said[k]:.4g} in meta/stats.json, {true[k]:.4g} in the data"
            yield Defect("stats", problem, "They are of other data, and would normalise these wrongly. " + _FIX)
            return


def _each(source: Source, keys: list[str]) -> Iterator[Defect]:
    """Of every episode, from which LeRobot computes those of merged and split datasets."""
    try:
        parts = [pq.read_table(f) for f in sorted((source.root / "meta" / "episodes").glob("*/*.parquet"))]
        table = pa.concat_tables(parts)
        index = table["episode_index"].to_pylist()
    except (pa.ArrowInvalid, OSError, KeyError) as error:
        yield Defect("stats", f"meta/episodes cannot be read ({error})", _FIX)
        return
    for key in keys:
        names = [f"stats/{key}/{n}" for n in NEEDED]
        if absent := [n for n in names if n not in table.column_names]:
            yield Defect("stats", f"{absent[0]} is missing in meta/episodes", _FIX)
            continue
        columns = [table[n].to_pylist() for n in names]
        for episode, *found in zip(index, *columns, strict=True):
            if any(v is None for v in found):
                yield Defect("stats", f"{key}: are missing in meta/episodes", _FIX, episode)

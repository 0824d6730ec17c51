"""Check LeRobot's statistics: of all frames in `meta/stats.json`, of each episode in `meta/episodes`."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pydantic
from numpy.typing import NDArray

from robopolicy.core.errors import DataError
from robopolicy.datasets.checks import Defect
from robopolicy.datasets.files import read_json
from robopolicy.datasets.parquet import Kind, parquet_files, read_parts
from robopolicy.datasets.source import DatasetInfo

NEEDED = ("mean", "std", "min", "max")  # LeRobot's policies normalise by these
_TOLERANCE = 1e-4  # of the range; statistics are rounded
_FIX = "LeRobot's policies need them to normalise: write the dataset again (DatasetWriter, LeRobotDataset)"


_Numbers = pydantic.TypeAdapter(float | list[float] | list[list[float]] | list[list[list[float]]])


def check_stats(source: DatasetInfo, values: Mapping[str, NDArray[Any]]) -> list[Defect]:
    """Return statistics that are missing, no numbers, or of other data.

    Args:
        values: columns of numbers [F ·]; extremes are compared for vectors alone, as LeRobot reduces several axes of
            other columns.
    """
    keys = [k for k, c in source.columns.items() if not c.is_text]
    return [*_whole(source, keys, values), *_each(source, keys)]


def _whole(source: DatasetInfo, keys: list[str], values: Mapping[str, NDArray[Any]]) -> Iterator[Defect]:
    file = source.root / "meta" / "stats.json"
    if not file.exists():
        yield Defect("stats", "meta/stats.json is missing", _FIX)
        return
    try:
        stats = read_json(file)
    except DataError as error:
        yield Defect("stats", f"meta/stats.json: {str(error).partition(': ')[2]}", _FIX)
        return
    if not isinstance(stats, dict):
        yield Defect("stats", f"meta/stats.json: expected an object, found {type(stats).__name__}", _FIX)
        return
    for key in keys:
        said = stats.get(key, {})
        if not isinstance(said, dict):
            yield Defect("stats", f"{key}: expected an object in meta/stats.json, found {reprlib.repr(said)}", _FIX)
            continue
        missing = [n for n in NEEDED if n not in said]
        if missing:
            yield Defect("stats", f"{key}: {' and '.join(missing)} are missing in meta/stats.json", _FIX)
            continue
        try:
            numbers = {n: _numbers(said[n]) for n in NEEDED}
        except ValueError:
            yield Defect("stats", f"{key}: expected numbers in meta/stats.json, found {reprlib.repr(said)}", _FIX)
            continue
        if not all(np.isfinite(v).all() for v in numbers.values()):
            yield Defect("stats", f"{key}: not all are finite in meta/stats.json", _FIX)
        elif key in values and len(source.columns[key].shape) == 1 and np.isfinite(values[key]).all():
            yield from _stale(key, numbers, values[key])


def _numbers(value: Any) -> NDArray[np.float64]:
    """Numbers of a statistic; raises ValueError where something else is among them."""
    return np.asarray(_Numbers.validate_python(value, strict=True), dtype=np.float64).reshape(-1)


def _stale(key: str, numbers: Mapping[str, NDArray[Any]], value: NDArray[Any]) -> Iterator[Defect]:
    low, high = value.min(axis=0).astype(np.float64), value.max(axis=0).astype(np.float64)
    slack = _TOLERANCE * np.maximum(high - low, np.abs(high)) + 1e-9
    for name, true in (("min", low), ("max", high)):
        said = numbers[name]
        if said.shape != true.shape:
            yield Defect("stats", f"{key}: {name} has {len(said)} elements, the column {len(true)}", _FIX)
            return
        if not (good := np.abs(said - true) <= slack).all():
            k = int(np.argmin(good))
            problem = f"{key}: {name} of element {k} is {said[k]:.4g} in meta/stats.json, {true[k]:.4g} in the data"
            yield Defect("stats", problem, "They are of other data, and would normalise these wrongly. " + _FIX)
            return


def _each(source: DatasetInfo, keys: list[str]) -> Iterator[Defect]:
    """Check the statistics of episodes, from which LeRobot computes those of merged and split datasets."""
    wanted: dict[str, Kind] = {"episode_index": "any", **{f"stats/{k}/{n}": "any" for k in keys for n in NEEDED}}
    files = parquet_files(source.root / "meta" / "episodes")
    table, found = read_parts(files, wanted, source.root, fix=_FIX)
    yield from (Defect("stats", f"{d.problem} ({d.key})", d.fix) for d in found if "stats/" in d.key)
    if table is None or "episode_index" not in table.column_names:
        return  # a defect of meta/episodes itself
    index = table["episode_index"].to_pylist()
    for key in keys:
        names = [f"stats/{key}/{n}" for n in NEEDED]
        columns = [table[n].to_pylist() for n in names if n in table.column_names]
        for episode, *those in zip(index, *columns, strict=True):
            if any(v is None for v in those):
                yield Defect("stats", f"{key}: are missing in meta/episodes", _FIX, episode)

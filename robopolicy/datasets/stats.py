"""Check LeRobot's statistics: of all frames in `meta/stats.json`, of each episode in `meta/episodes`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import numpy as np
import pydantic
from numpy.typing import NDArray

from robopolicy.core.errors import DataError
from robopolicy.datasets.checks import Defect
from robopolicy.datasets.files import problems, read_json
from robopolicy.datasets.parquet import Kind, parquet_files, read_parts
from robopolicy.datasets.source import DatasetInfo

_TOLERANCE = 1e-4  # of the range; statistics are rounded
_FIX = "LeRobot's policies need them to normalise: write the dataset again (DatasetWriter, LeRobotDataset)"


def _vector(value: Any) -> NDArray[np.float64]:
    """Return a statistic as a vector; raises ValueError unless it holds finite numbers alone."""
    found = np.asarray(value)
    if found.dtype.kind not in "iuf" or not np.isfinite(found).all():
        raise ValueError("expected finite numbers")
    return found.astype(np.float64).reshape(-1)


_Numbers = Annotated[Any, pydantic.PlainValidator(_vector)]


class _ColumnStats(pydantic.BaseModel):
    """Statistics of a column that LeRobot's policies normalise by, as vectors."""

    mean: _Numbers
    std: _Numbers
    min: _Numbers
    max: _Numbers


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
        yield Defect("stats", str(error).replace(str(file), "meta/stats.json"), _FIX)
        return
    for key in keys:
        try:
            said = _ColumnStats.model_validate(stats.get(key, {}))
        except pydantic.ValidationError as error:
            wrong = "; ".join(f"{'.'.join(place)} {problem}" for place, problem in problems(error))
            yield Defect("stats", f"{key}: {wrong} in meta/stats.json", _FIX)
            continue
        if key in values and len(source.columns[key].shape) == 1 and np.isfinite(values[key]).all():
            yield from _stale(key, said, values[key])


def _stale(key: str, stats: _ColumnStats, value: NDArray[Any]) -> Iterator[Defect]:
    low, high = value.min(axis=0).astype(np.float64), value.max(axis=0).astype(np.float64)
    slack = _TOLERANCE * np.maximum(high - low, np.abs(high)) + 1e-9
    for name, true in (("min", low), ("max", high)):
        said: Any = getattr(stats, name)
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
    needed = [f"stats/{k}/{n}" for k in keys for n in _ColumnStats.model_fields]
    wanted: dict[str, Kind] = dict.fromkeys(("episode_index", *needed), "any")
    files = parquet_files(source.root / "meta" / "episodes")
    table, found = read_parts(files, wanted, source.root, fix=_FIX)
    yield from (Defect("stats", f"{d.problem} ({d.key})", d.fix) for d in found if "stats/" in d.key)
    if table is None or "episode_index" not in table.column_names:
        return  # a defect of meta/episodes itself
    index = table["episode_index"].to_pylist()
    for key in keys:
        names = [f"stats/{key}/{n}" for n in _ColumnStats.model_fields]
        columns = [table[n].to_pylist() for n in names if n in table.column_names]
        for episode, *those in zip(index, *columns, strict=True):
            if any(v is None for v in those):
                yield Defect("stats", f"{key}: are missing in meta/episodes", _FIX, episode)

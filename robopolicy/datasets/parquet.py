"""Read columns of parquet files by type; missing, empty or mistyped columns are reported, never converted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from robopolicy.core.errors import DataError, closest
from robopolicy.datasets.checks import Defect
from robopolicy.datasets.files import check_regular, visible

Kind = Literal["whole", "number", "text", "any"]
_IS = {
    "whole": pa.types.is_integer,
    "number": lambda t: pa.types.is_integer(t) or pa.types.is_floating(t),
    "text": lambda t: pa.types.is_string(t) or pa.types.is_large_string(t),
    "any": lambda t: True,
}
_RESTORE = "Restore the file from a copy, or record again"
_MEANT = {"whole": "whole numbers", "number": "numbers", "text": "text"}


def parquet_files(folder: Path) -> list[Path]:
    """Return the files of a folder of LeRobot's (chunk-000/file-000.parquet …), in order."""
    return visible(folder.glob("*/*.parquet"))


def read_parts(
    files: Sequence[Path], wanted: Mapping[str, Kind], root: Path, *, fix: str
) -> tuple[pa.Table | None, list[Defect]]:
    """Return the columns `wanted` of several files under one another, and all defects.

    Args:
        fix: advice for a file that cannot be read.

    Returns:
        The table holds the rows of files and the columns that are sound; None where there are none.
    """
    parts: list[pa.Table] = []
    found: list[Defect] = []
    bad: set[str] = set()
    for file in files:
        name = str(file.relative_to(root))
        try:
            check_regular(file)
            with pq.ParquetFile(file) as parquet:
                known = parquet.schema_arrow.names
                part = parquet.read(columns=[k for k in wanted if k in known])
        except (pa.ArrowException, OSError, ValueError, DataError) as error:
            found.append(Defect(name, f"cannot be read ({error})", fix))
            continue
        wrong = {k: problem for k, kind in wanted.items() if (problem := _problem(part, known, k, kind))}
        found += [Defect(f"{name}, {k}", problem, _RESTORE) for k, problem in wrong.items()]
        bad |= set(wrong)
        parts.append(part)
    keys = [k for k in wanted if k not in bad]
    for key in keys:
        kinds = list(dict.fromkeys(str(p.schema.field(key).type) for p in parts))
        if len(kinds) > 1:
            found.append(Defect(key, f"is {' in one file and '.join(kinds)} in another", _RESTORE))
            bad.add(key)
    if not parts:
        return None, found
    return pa.concat_tables([p.select([k for k in keys if k not in bad]) for p in parts]).combine_chunks(), found


def whole(table: pa.Table, key: str) -> NDArray[np.int64]:
    """Return a checked column [F] of whole numbers."""
    return np.asarray(table[key].combine_chunks().to_numpy(zero_copy_only=False), dtype=np.int64)


def number(table: pa.Table, key: str) -> NDArray[np.float64]:
    """Return [F] a column of numbers; NaN where it is empty."""
    return np.asarray(table[key].combine_chunks().to_numpy(zero_copy_only=False), dtype=np.float64)


def _problem(part: pa.Table, known: Sequence[str], key: str, kind: Kind) -> str:
    """Return the defect of a column of one file, else ""."""
    if key not in known:
        return f"column {key!r} is missing. {closest(key, known)}".rstrip(".")
    column: Any = part[key]
    if not _IS[kind](column.type):
        return f"expected {_MEANT[kind]}, found {column.type}"
    if kind != "any" and column.null_count:
        row = next(i for i, value in enumerate(column) if not value.is_valid)
        return f"is empty (null) in row {row}, {column.null_count} such"
    return ""

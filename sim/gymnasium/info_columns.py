"""Read entries of a vector env's infos as columns, one value for each env.

An info is a dict of [N] columns, where `_<key>` marks the envs that have it, or a list of N dicts. A value may be a
nested dict, whose entries are named with dots: "episode.success".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robopolicy.core.errors import SpecError


def column(info: Any, path: str, n: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Values [N] of the entry `path`, and in which envs [N] it is. A dict as value: an object array of dicts.

    Raises:
        SpecError: there is such an entry, but not one for each env.
    """
    if isinstance(info, Mapping):
        key, _, rest = (path, "", "") if path in info else path.partition(".")
        if key not in info:
            return np.full(n, None), np.zeros(n, dtype=bool)
        value = info[key]
        present: NDArray[np.bool_] = np.ones(n, dtype=bool)
        if f"_{key}" in info:
            present = flags(_each(info[f"_{key}"], n, f"info['_{key}']"), present, f"info['_{key}']")
        if isinstance(value, Mapping):
            inner = column(value, rest, n) if rest else (_rows_of(value, n), present)
            return inner[0], inner[1] & present
        values = _each(value, n, f"info[{key!r}]")
    elif info is None or isinstance(info, str | bytes) or not hasattr(info, "__len__"):
        return np.full(n, None), np.zeros(n, dtype=bool)
    else:
        values, present, rest = _each(info, n, "info"), np.ones(n, dtype=bool), path
    if rest:
        values = objects([entry(row, rest) for row in values])
    if values.dtype == object:
        present = present & np.array([value is not None for value in values])
    return values, present


def flags(values: NDArray[Any], rows: NDArray[np.bool_], what: str) -> NDArray[np.bool_]:
    """Return [N], `values` where `rows`, else False.

    Raises:
        SpecError: one of them is neither true nor false: a fraction, NaN, text. It names `what`.
    """
    if values.dtype == bool:
        return values & rows
    found = np.zeros(len(values), dtype=bool)
    if {type(value) for value in values[rows]} <= {bool, np.bool_}:  # as Gymnasium collects NumPy's
        found[rows] = values[rows].astype(bool)
        return found
    for i in rows.nonzero()[0]:
        found[i] = flag(values[i], f"{what} of env {i}")
    return found


def flag(value: Any, what: str) -> bool:
    """True or False, also as a number or an array of one element.

    Raises:
        SpecError: another value.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    try:
        number = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):  # ragged, or a tensor on a GPU
        number = np.asarray(None)
    if number.dtype.kind in "buif" and number.size == 1 and number.item() in (0, 1):
        return bool(number.item())
    raise SpecError(f"{what}: expected True or False (or 1 or 0), found {value!r} ({type(value).__name__})")


def names_of(info: Any) -> list[str]:
    """Return the entries of an info, nested ones with dots, without masks."""
    if isinstance(info, Mapping):
        found = []
        for key, value in info.items():
            if str(key).startswith("_") and str(key)[1:] in info:
                continue
            found += [f"{key}.{name}" for name in names_of(value)] or [str(key)]
        return found
    if info is None or isinstance(info, str | bytes) or not hasattr(info, "__len__"):
        return []
    rows = [row for row in info if isinstance(row, Mapping)]
    return sorted({name for row in rows for name in names_of(row)})


def objects(values: list[Any]) -> NDArray[Any]:
    """Return an array [N] of these objects, of any type."""
    return np.fromiter(values, dtype=object, count=len(values))


def _each(value: Any, n: int, what: str) -> NDArray[Any]:
    """Return one entry for each env; arrays of more axes become objects."""
    try:
        found = np.asarray(value) if not isinstance(value, list | tuple) else objects(list(value))
    except (TypeError, ValueError, RuntimeError) as error:  # a tensor on a GPU
        raise SpecError(f"{what}: expected NumPy arrays, found {type(value).__name__} ({error})") from error
    if found.ndim < 1 or len(found) != n:
        raise SpecError(f"{what}: expected one entry for each of {n} envs, found shape {found.shape}")
    return found if found.ndim == 1 else objects(list(found))


def _rows_of(columns: Mapping[str, Any], n: int) -> NDArray[Any]:
    names = [key for key in columns if not (str(key).startswith("_") and str(key)[1:] in columns)]  # no masks
    found = {name: column(columns, name, n) for name in names}
    return objects([{name: values[i] for name, (values, has) in found.items() if has[i]} for i in range(n)])


def entry(row: Any, path: str) -> Any:
    """Return the entry `path` of one env's own info; None where it has none."""
    if not isinstance(row, Mapping):
        return None
    if path in row:
        return row[path]
    key, _, rest = path.partition(".")
    return entry(row.get(key), rest) if rest else None

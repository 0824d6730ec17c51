"""What the formats have in common: a file that is opened with care, and what it holds in words of ours."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robopolicy.errors import ConfigError, DataError, closest

Group = Any  # h5py.Group; h5py is an extra
Column = Any  # h5py.Dataset


@dataclass(frozen=True)
class Trajectory:
    """An episode of T control steps as it lies in the file; columns are read when they are indexed."""

    name: str
    obs: Mapping[str, Column]  # [T ...], or [T+1 ...] with the last successor
    action: Column  # [T Da]
    reward: Column | None  # [T]
    success: NDArray[np.bool_] | bool | None  # [T], or of the whole episode; None: the file does not say
    terminated: bool | None  # the task itself ended; None: where it succeeded
    task: str | None = None
    seed: int | None = None
    length: int | None = None  # T as the file claims it elsewhere


@dataclass(frozen=True)
class Contents:
    """A file. `action`: the fields of `ActionSpec` that it settles; one value may stand for all channels.

    `control`: what the file calls its actions, one of `controls` where that is known here. `successor`: observations
    have one frame more than actions. `usual`: keys of which the state is made where all of them are there. `hints`:
    what to say beside a key that must be given.
    """

    format: str
    episodes: tuple[Trajectory, ...]
    rate_hz: float | None
    action: Mapping[str, Any]
    control: str
    controls: tuple[str, ...]
    successor: bool
    usual: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    hints: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def opened(path: Path) -> Iterator[Group]:
    """An HDF5 file to read.

    Raises:
        ConfigError: h5py is missing.
        DataError: not HDF5, cut off, or damaged wherever it is read.
    """
    try:
        import h5py
    except ImportError as error:
        raise ConfigError(
            f"{path}: reading HDF5 needs h5py, which is not installed: ./scripts/setup.sh suites, or elsewhere: "
            "pip install 'robopolicy[hdf5]'"
        ) from error
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    try:
        with h5py.File(path, "r") as file:
            yield file
    except OSError as error:
        raise DataError(f"{path}: cannot be read as HDF5 ({error}). Is it whole? Copy or download it again.") from error


def numbered(group: Group, prefix: str) -> list[str]:
    """Names of the groups called <prefix><number>, by number."""
    return sorted((k for k in group if k.startswith(prefix) and k[len(prefix) :].isdigit()),
                  key=lambda k: int(k[len(prefix) :]))  # fmt: skip


def leaves(group: Group | Column) -> dict[str, Column]:
    """Every dataset below a group by its path, in alphabetical order; a dataset itself is called "main"."""
    if not hasattr(group, "keys"):
        return {"main": group}
    found: dict[str, Column] = {}
    for key in sorted(group):
        inner = group[key]
        found |= {f"{key}/{k}": v for k, v in leaves(inner).items()} if hasattr(inner, "keys") else {key: inner}
    return found


def get(group: Group, key: str) -> Any:
    """`group[key]`.

    Raises:
        DataError: it is missing; the closest keys are offered.
    """
    if key not in group:
        raise DataError(f"{group.file.filename}: {group.name.rstrip('/')}/{key} is missing. {closest(key, group)}")
    return group[key]


def column(group: Group, key: str) -> Column:
    """`group[key]`, a dataset with an axis of time.

    Raises:
        DataError: it is missing, a group, or a single value.
    """
    found = get(group, key)
    if not getattr(found, "shape", ()):
        raise DataError(f"{group.file.filename}: {found.name}: expected an array over time, found none")
    return found


def parsed(text: Any, where: str) -> dict[str, Any]:
    """A JSON object that a file carries as text.

    Raises:
        DataError: it is none.
    """
    try:
        found = json.loads(text)
    except (ValueError, TypeError) as error:
        raise DataError(f"{where}: expected a JSON object, found what is none ({error})") from error
    if not isinstance(found, dict):
        raise DataError(f"{where}: expected a JSON object, found {type(found).__name__}")
    return found

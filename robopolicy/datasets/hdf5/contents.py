"""Shared code of the HDF5 readers: open a file safely, read its parts and note the broken ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import pydantic
from numpy.typing import NDArray

from robopolicy.core.errors import ConfigError, DataError, closest
from robopolicy.core.untrusted import parse_json
from robopolicy.datasets.checks import Defect
from robopolicy.datasets.files import problems
from robopolicy.utils.install_commands import setup_or_pip

Group = Any  # h5py.Group; h5py is an extra
Column = Any  # h5py.Dataset
Rate = Annotated[float, pydantic.Field(strict=True, gt=0.0, allow_inf_nan=False)]  # Hz
AGAIN = "The file is damaged or was edited: take it from its source again, or leave the episode out"
_DEPTH = 16  # groups within one another; links may form a ring
_MEMORY = 0.8  # share of the free memory for one column


class BrokenError(DataError):
    """A part of a file that cannot be used; the others are still read, so that all defects are listed at once."""

    def __init__(self, key: str, problem: str, fix: str = AGAIN) -> None:
        self.defect = Defect(key, problem.rstrip("."), fix)
        super().__init__(str(self.defect))


class Defects(list[Defect]):
    """Defects of the parts of a file."""

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note a broken part and continue after the block."""
        try:
            yield
        except BrokenError as error:
            self.append(error.defect)

    def collect[T, R](self, items: Iterable[T], read: Callable[[T], R]) -> list[R]:
        """Return `read(item)` of all items; note those that are broken."""
        found = list[R]()
        for item in items:
            with self.noted():
                found.append(read(item))
        return found

    def model[M: pydantic.BaseModel](self, model: type[M], text: Any, where: str) -> M:
        """Return the JSON object `text` as `model`; where it is None or broken, `model()`."""
        with self.noted():
            if text is not None:
                return modelled(model, parsed(text, where), where)
        return model()


@dataclass(frozen=True)
class Trajectory:
    """Episode of T control steps in the file; columns are read when they are indexed."""

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
    """Content of a file.

    `action`: fields of `ActionSpec` that the file defines; one value may stand for all channels. `control`: the file's
    name for its actions, see actions.yaml. `successor`: observations have one frame more than actions. `usual`: keys of
    the state if all exist. `rate_hint`: text for an error. `defects`: of parts that are missing from `episodes`.
    """

    format: str
    episodes: tuple[Trajectory, ...]
    action: Mapping[str, Any]
    rate_hz: float | None = None
    control: str = ""
    successor: bool = True
    usual: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    rate_hint: str = ""
    defects: tuple[Defect, ...] = ()


@contextmanager
def opened(path: Path) -> Iterator[Group]:
    """Open an HDF5 file to read.

    Raises:
        ConfigError: h5py is missing.
        DataError: not HDF5, cut off, or damaged wherever it is read.
    """
    try:
        import h5py
    except ImportError as error:
        install = setup_or_pip("suites", "robopolicy[hdf5]")
        raise ConfigError(f"{path}: reading HDF5 needs h5py, which is not installed. Install it: {install}") from error
    if not path.is_file():  # a pipe or device would block
        raise DataError(f"{path}: no such file")
    try:
        with h5py.File(path, "r") as file:
            yield file
    except (OSError, RuntimeError, MemoryError) as error:
        raise DataError(f"{path}: cannot be read as HDF5 ({error}). Is it whole? Copy or download it again.") from error


def numbered(group: Group, prefix: str) -> list[str]:
    """Names of the groups called <prefix><number>, by number."""
    return sorted((k for k in group if k.startswith(prefix) and k[len(prefix) :].isdecimal()),
                  key=lambda k: int(k[len(prefix) :]))  # fmt: skip


def leaves(group: Group | Column, depth: int = 0) -> dict[str, Column]:
    """Return every dataset below a group by its path, in alphabetical order; a dataset itself is called "main".

    Raises:
        BrokenError: it leads into another file, is too large, or its groups form a ring.
    """
    if not hasattr(group, "keys"):
        return {"main": group}
    if depth > _DEPTH:
        raise BrokenError(group.name, f"holds groups more than {_DEPTH} deep")
    found: dict[str, Column] = {}
    for key in sorted(group):
        inner = get(group, key)
        found |= {f"{key}/{k}": v for k, v in leaves(inner, depth + 1).items()} if hasattr(inner, "keys") \
            else {key: inner}  # fmt: skip
    return found


def get(group: Group, key: str) -> Any:
    """Return `group[key]`.

    Raises:
        BrokenError: it is missing (the closest keys are offered), lies in another file, or is too large.
    """
    where = f"{group.name.rstrip('/')}/{key}"
    if not hasattr(group, "keys"):
        raise BrokenError(group.name, "expected a group, found an array")
    if type(group.get(key, getlink=True)).__name__ == "ExternalLink":
        raise BrokenError(where, "leads into another file, which is not followed")
    if key not in group:
        raise BrokenError(where, f"is missing. {closest(key, group)}")
    try:
        found = group[key]
    except (KeyError, OSError, RuntimeError, ValueError) as error:
        raise BrokenError(where, f"cannot be read ({error})") from error
    if getattr(found, "is_virtual", False) or getattr(found, "external", None):
        raise BrokenError(where, "takes its values from another file, which is not followed")
    free = psutil.virtual_memory().available
    if getattr(found, "nbytes", 0) > _MEMORY * free:
        raise BrokenError(where, f"needs {found.nbytes / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free")
    return found


def column(group: Group, key: str) -> Column:
    """Return `group[key]`, a dataset of numbers with an axis of time.

    Raises:
        BrokenError: it is missing, a group, a single value, or holds something else than numbers.
    """
    found = get(group, key)
    if not getattr(found, "shape", ()):
        raise BrokenError(found.name, "expected an array over time, found none")
    if found.dtype.kind not in "fiub":
        raise BrokenError(found.name, f"expected numbers, found {found.dtype}")
    return found


def optional_column(group: Group, key: str) -> Column | None:
    """Return `column(group, key)`, or None where there is no such key."""
    return column(group, key) if key in group else None


def flags(values: Any, where: str) -> NDArray[np.bool_]:
    """Return [T] yes or no, given as booleans or as 0 and 1; of arrays [T 1] the one element.

    Raises:
        BrokenError: something else is among them: NaN, a fraction, a text.
    """
    array = np.asarray(values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise BrokenError(where, f"expected one value a step, found shape {array.shape}")
    if not (good := (array == 0) | (array == 1)).all():
        raise BrokenError(where, f"expected true or false, found {array[~good][0]!r} in step {int(np.argmin(good))}")
    return array.astype(bool)


def whole_attribute(group: Group, key: str) -> int | None:
    """Return a whole number among a group's attributes; None where it is not there.

    Raises:
        BrokenError: it is no whole number.
    """
    value = group.attrs.get(key)
    if value is None:
        return None
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not float(value).is_integer() or value < 0:
        raise BrokenError(f"{group.name}, attribute {key}", f"expected a whole number, found {value!r}")
    return int(value)


def parsed(text: Any, where: str) -> dict[str, Any]:
    """Return a JSON object that a file carries as text.

    Raises:
        BrokenError: it is none.
    """
    if not isinstance(text, str | bytes):
        raise BrokenError(where, f"expected a JSON object, found {type(text).__name__}")
    try:
        found = parse_json(text, "it", error=DataError, finite=False)
    except DataError as error:
        raise BrokenError(where, f"expected a JSON object: {error}") from error
    if not isinstance(found, dict):
        raise BrokenError(where, f"expected a JSON object, found {type(found).__name__}")
    return found


def modelled[M: pydantic.BaseModel](model: type[M], data: Any, where: str) -> M:
    """Return `data` as `model`.

    Raises:
        BrokenError: a value is missing or of another type; all are named.
    """
    try:
        return model.model_validate(data)
    except pydantic.ValidationError as error:
        wrong = [f"{'.'.join(place) or 'it'}: {problem}" for place, problem in problems(error, depth=4)]
        raise BrokenError(where, "; ".join(wrong)) from error

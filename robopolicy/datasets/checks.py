"""Name defects that make a dataset unfit for training, by key, episode and frame; nothing is repaired silently."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robopolicy.core.errors import DataError
from robopolicy.core.specs import check_features
from robopolicy.core.types import Feature

Array = NDArray[Any]
LIMIT_TOLERANCE = 1e-3  # of the range high − low; recorded actions are rounded to float32


@dataclass(frozen=True)
class Defect:
    """A defect of a dataset; `episode` and `frame` (within the episode) are its first occurrence."""

    key: str
    problem: str
    fix: str
    episode: int | None = None
    frame: int | None = None

    def __str__(self) -> str:
        place = "" if self.episode is None else f", episode {self.episode}"
        place += "" if self.frame is None else f", frame {self.frame}"
        return f"{self.key}{place}: {self.problem}{'' if self.problem.endswith('?') else '.'} {self.fix}"


def raise_defects(defects: Iterable[Defect], source: str | Path, *, shown: int = 10) -> None:
    """Raise DataError with all of `defects` (at most `shown` in words), or return if there are none."""
    defects = list(defects)
    if defects:
        lines = "".join(f"\n  - {d}" for d in defects[:shown])
        more = f"\n  … and {len(defects) - shown} more" if len(defects) > shown else ""
        raise DataError(f"{source}: {len(defects)} defect{'s' * (len(defects) > 1)}{lines}{more}")


def limit_slack(low: Sequence[float] | Array, high: Sequence[float] | Array) -> Array:
    """Return the tolerance [Da] beyond the limits: a share of their range, or of the only finite limit."""
    low, high = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
    end = np.where(np.isfinite(low), np.abs(low), np.where(np.isfinite(high), np.abs(high), 0.0))
    with np.errstate(invalid="ignore"):
        span = high - low
    return LIMIT_TOLERANCE * np.where(np.isfinite(span), span, end)


def outside_limits(values: Array, low: Sequence[float] | Array, high: Sequence[float] | Array) -> NDArray[np.bool_]:
    """Return [F Da] whether a number lies beyond its limits; False for NaN, which is a defect of its own."""
    slack = limit_slack(low, high)
    inside = (np.asarray(low) - slack <= values) & (values <= np.asarray(high) + slack)
    return ~inside & ~np.isnan(values)


def check_needed(needed: Mapping[str, Feature], offered: Mapping[str, Feature]) -> list[Defect]:
    """Features that are missing (the closest names are offered) or have another shape, dtype or element names."""
    problems = check_features(dict(needed), dict(offered), needs="the policy", offers="the dataset")
    fix = (
        "Is it the dataset of another task? Else record with this feature, rename it (load_episodes(rename=…)), or "
        "train a policy without it"
    )
    return [Defect("features", problem.rstrip("."), fix) for problem in problems]

"""Check acceptance criteria of experiments against measured rows (docs/results/acceptance_criteria.json)."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import pydantic

from robopolicy.core.errors import DataError
from robopolicy.core.untrusted import checked, parse_json, read_text
from robopolicy.reporting.result_rows import ALL, ROOT, Evidence
from robopolicy.reporting.templates import number

_NO_OTHER_KEYS = pydantic.ConfigDict(extra="forbid")
Status = Literal["met", "shown", "not met", "incomplete", "not measured"]


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """Condition on all matching rows of one experiment; without `min` and `max` the rows must only exist.

    setting: shell pattern on the rows' setting. field: value, low, high, env_steps, wall_s or episodes.
    over: "each" training seed, or the row "all". settings: least number of matching settings. count: least number of
    rows of each setting. episodes: least number of evaluated episodes of each row. misses: settings that may miss it.
    """

    text: str
    setting: str
    metric: str
    field: Literal["value", "low", "high", "env_steps", "wall_s", "episodes"] = "value"
    min: float | None = None
    max: float | None = None
    over: Literal["each", "all"] = "each"
    settings: int = 1
    count: int = 1
    episodes: int = 0
    misses: int = 0
    __pydantic_config__ = _NO_OTHER_KEYS


@dataclass(frozen=True)
class Goal:
    """The criteria of one experiment."""

    id: str
    title: str
    criteria: tuple[Criterion, ...]
    __pydantic_config__ = _NO_OTHER_KEYS


_GOALS = pydantic.TypeAdapter(list[Goal])


class AcceptanceVerdict(NamedTuple):
    status: Status
    measured: str  # range of the values, as text
    reason: str  # why it is neither "met" nor "shown", or ""


def read_goals(path: Path | str = ROOT / "acceptance_criteria.json") -> list[Goal]:
    """Goals in the file's order; none where there is no file.

    Raises:
        DataError: not JSON, or unknown, missing or mistyped keys; names each by goal and criterion.
    """
    path = Path(path)
    if not path.is_file():
        return []
    return checked(_GOALS, parse_json(read_text(path, error=DataError), path.name, error=DataError), path.name,
                   error=DataError)  # fmt: skip


def check_criterion(criterion: Criterion, rows: Sequence[Evidence]) -> AcceptanceVerdict:
    """Check the matching rows. A violation is "not met", also where rows are still missing."""
    matching = [r for r in rows if fnmatch.fnmatchcase(r.setting, criterion.setting) and r.metric == criterion.metric]
    seeds = [r for r in matching if r.seeds != ALL]
    chosen = seeds if criterion.over == "each" and seeds else [r for r in matching if r.seeds == ALL]
    if not chosen:
        return AcceptanceVerdict("not measured", "–", "no such rows")
    found = [(r, getattr(r, criterion.field)) for r in chosen]
    values = [v for _, v in found if v is not None]
    measured = _range(values, criterion)
    bad = [r for r, v in found if v is not None and not _within(v, criterion)]
    if len({r.setting for r in bad}) > criterion.misses:
        names = ", ".join(dict.fromkeys(f"{r.setting}" + (f" seed {r.seeds}" if r.seeds != ALL else "") for r in bad))
        return AcceptanceVerdict("not met", measured, f"{len(bad)} of {len(chosen)} rows miss it: {names}")
    if len(values) < len(chosen):
        return AcceptanceVerdict("incomplete", measured, f"{len(chosen) - len(values)} rows without {criterion.field}")
    counts = Counter(r.setting for r in chosen)
    if len(counts) < criterion.settings:
        return AcceptanceVerdict("incomplete", measured, f"{len(counts)} of {criterion.settings} settings")
    if min(counts.values()) < criterion.count:
        return AcceptanceVerdict("incomplete", measured, f"{min(counts.values())} of {criterion.count} training seeds")
    short = min((r.episodes or 0) for r in chosen)
    if short < criterion.episodes:
        return AcceptanceVerdict("incomplete", measured, f"{short} of {criterion.episodes} episodes")
    return AcceptanceVerdict("shown" if criterion.min is None and criterion.max is None else "met", measured, "")


def _within(value: float, criterion: Criterion) -> bool:
    return (criterion.min is None or value >= criterion.min) and (criterion.max is None or value <= criterion.max)


def _range(values: Sequence[float], criterion: Criterion) -> str:
    if not values:
        return "–"
    rate = criterion.metric.endswith("success_rate") and criterion.field in ("value", "low", "high")
    show = [f"{100 * v:.1f}%" if rate else number(v) for v in (min(values), max(values))]
    return show[0] if show[0] == show[1] else f"{show[0]} to {show[1]}"

"""Bars: what an experiment set out to show, held against what it measured. Data in docs/results/bars.json."""

from __future__ import annotations

import fnmatch
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

from robopolicy.core.errors import DataError, closest
from robopolicy.reporting.plots import number
from robopolicy.reporting.result_rows import ALL, ROOT, Evidence

Status = Literal["met", "shown", "not met", "incomplete", "not measured"]


@dataclass(frozen=True, kw_only=True)
class AcceptanceBar:
    """A condition on rows of one experiment; every row that matches must fulfil it. Without `min` and `max` they only
    have to be there.

    setting: shell pattern on the rows' setting. field: value, low, high, env_steps, wall_s or episodes.
    over: "each" training seed by itself, or the row "all". Needed: `settings` different settings that match, `count`
    rows in each of them, `episodes` evaluated episodes in each row.
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


@dataclass(frozen=True)
class Goal:
    """The bars of one experiment."""

    id: str
    title: str
    bars: tuple[AcceptanceBar, ...]


class AcceptanceVerdict(NamedTuple):
    status: Status
    measured: str  # range of what was found, for people
    reason: str  # why it is neither "met" nor "shown", or ""


def read_goals(path: Path | str = ROOT / "bars.json") -> list[Goal]:
    """Goals in the file's order; none where there is no file.

    Raises:
        DataError: unknown or missing keys; names experiment and bar.
    """
    path = Path(path)
    if not path.is_file():
        return []
    goals = []
    for entry in json.loads(path.read_text(encoding="utf-8")):
        where = f"{path.name}, {entry.get('id', 'an entry without id')}"
        if set(entry) != {"id", "title", "bars"}:
            raise DataError(f"{where}: expected the keys id, title and bars, found {sorted(entry)}")
        bars = tuple(_bar(b, f"{where}, bar {i + 1}") for i, b in enumerate(entry["bars"]))
        goals.append(Goal(entry["id"], entry["title"], bars))
    return goals


def _bar(data: dict[str, Any], where: str) -> AcceptanceBar:
    known = [f.name for f in fields(AcceptanceBar)]
    unknown = [k for k in data if k not in known]
    if unknown:
        raise DataError(f"{where}: unknown key {unknown[0]!r}. {closest(unknown[0], known)}")
    missing = [k for k in ("text", "setting", "metric") if k not in data]
    if missing:
        raise DataError(f"{where}: {missing} must be given")
    return AcceptanceBar(**data)


def judge(bar: AcceptanceBar, rows: Sequence[Evidence]) -> AcceptanceVerdict:
    """Hold the matching rows against a bar. A violation is "not met" however many rows are still missing."""
    matching = [r for r in rows if fnmatch.fnmatchcase(r.setting, bar.setting) and r.metric == bar.metric]
    seeds = [r for r in matching if r.seeds != ALL]
    chosen = seeds if bar.over == "each" and seeds else [r for r in matching if r.seeds == ALL]
    if not chosen:
        return AcceptanceVerdict("not measured", "–", "no such rows")
    found = [(r, getattr(r, bar.field)) for r in chosen]
    values = [v for _, v in found if v is not None]
    measured = _range(values, bar)
    bad = [r for r, v in found if v is not None and not _within(v, bar)]
    if bad:
        names = ", ".join(dict.fromkeys(f"{r.setting}" + (f" seed {r.seeds}" if r.seeds != ALL else "") for r in bad))
        return AcceptanceVerdict("not met", measured, f"{len(bad)} of {len(chosen)} rows miss it: {names}")
    if len(values) < len(chosen):
        return AcceptanceVerdict("incomplete", measured, f"{len(chosen) - len(values)} rows without {bar.field}")
    counts = Counter(r.setting for r in chosen)
    if len(counts) < bar.settings:
        return AcceptanceVerdict("incomplete", measured, f"{len(counts)} of {bar.settings} settings")
    if min(counts.values()) < bar.count:
        return AcceptanceVerdict("incomplete", measured, f"{min(counts.values())} of {bar.count} training seeds")
    short = min((r.episodes or 0) for r in chosen)
    if short < bar.episodes:
        return AcceptanceVerdict("incomplete", measured, f"{short} of {bar.episodes} episodes")
    return AcceptanceVerdict("shown" if bar.min is None and bar.max is None else "met", measured, "")


def _within(value: float, bar: AcceptanceBar) -> bool:
    return (bar.min is None or value >= bar.min) and (bar.max is None or value <= bar.max)


def _range(values: Sequence[float], bar: AcceptanceBar) -> str:
    if not values:
        return "–"
    rate = bar.metric.endswith("success_rate") and bar.field in ("value", "low", "high")
    show = [f"{100 * v:.1f}%" if rate else number(v) for v in (min(values), max(values))]
    return show[0] if show[0] == show[1] else f"{show[0]} to {show[1]}"

"""docs/results.md and its plots, made from docs/results/*.json and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from statistics import fmean

from robopolicy.config.overrides import RENAMED
from robopolicy.reporting.acceptance import Goal, check_criterion, read_goals
from robopolicy.reporting.plots import Series, Whisker, interval_chart, line_chart
from robopolicy.reporting.result_rows import ALL, Evidence, read_all
from robopolicy.reporting.templates import number, render

_MARK = {
    "met": "met",
    "shown": "shown",
    "not met": "**not met**",
    "incomplete": "incomplete",
    "not measured": "not measured yet",
}
CURVE = "curve_success_rate"  # of rows that are drawn over env steps and time, setting <route>/at_<env step>
_COLOURS = ("c1", "c2", "c3", "c4", "c5", "c6", "c7")


def generate(docs: Path | str = "docs") -> dict[Path, str]:
    """Generate the content of docs/results.md and docs/img/results/<id>.svg."""
    docs = Path(docs)
    evidence, goals = read_all(docs / "results"), read_goals(docs / "results" / "acceptance_criteria.json")
    titles = {g.id: g.title for g in goals}
    files, experiments = dict[Path, str](), []
    for id in (i for i in titles | evidence if evidence.get(i)):
        plots = {f"{id}{end}.svg": plot for end, plot in _plots(evidence[id]).items() if plot}
        files |= {docs / "img" / "results" / name: plot + "\n" for name, plot in plots.items()}
        experiments.append(_experiment(id, titles.get(id, id), evidence[id], plots))
    files[docs / "results.md"] = render(
        "results.md", refinements=_refinements(goals, evidence), goals=goals, evidence=evidence,
        experiments=experiments, check_criterion=check_criterion, statuses=_MARK, time=_time,
    )  # fmt: skip
    return files


def stale(docs: Path | str = "docs") -> list[str]:
    """Return the differences between the generated files and those on disk, one sentence each."""
    wanted = generate(docs)
    found = []
    for path, text in wanted.items():
        if not path.is_file():
            found.append(f"{path.as_posix()} is missing")
        elif path.read_text(encoding="utf-8") != text:
            found.append(f"{path.as_posix()} is not what the rows give")
    old = [p for p in sorted((Path(docs) / "img" / "results").glob("*.svg")) if p not in wanted]
    return found + [f"{p.as_posix()} belongs to no experiment" for p in old]


def _refinements(
    goals: Sequence[Goal], evidence: Mapping[str, Sequence[Evidence]]
) -> list[tuple[str, str, Evidence, Evidence]]:
    """(title, id, before, after) of every refinement, all training seeds of an experiment pooled."""
    rows = []
    for goal in goals:
        pooled = {r.setting: r for r in evidence.get(goal.id, []) if r.metric == "success_rate" and r.seeds == ALL}
        for setting, after in pooled.items():
            before = pooled.get(setting.removesuffix("refined") + "base")
            if setting.endswith("refined") and before is not None:
                title = goal.title + (f", {setting.split('/')[0]}" if "/" in setting else "")
                rows.append((title, goal.id, before, after))
    return rows


def _experiment(id: str, title: str, rows: Sequence[Evidence], plots: Iterable[str]) -> str:
    commands: dict[str, dict[str, None]] = {}  # places without repetition, in order
    for r in rows:
        commands.setdefault(r.command, {})[f"commit {r.commit}, {r.hardware}"] = None
    lengths = [len(series.x) for series in _over(rows, "-steps")]
    text = render(
        "experiment.md", id=id, title=title, rows=rows, plots=plots, commands=commands, curve=CURVE, value=_value,
        renamed=_renamed(rows), time=_time, curves=any(n > 1 for n in lengths), dots=1 in lengths,
    )  # fmt: skip
    return text.rstrip() + "\n"


def _renamed(rows: Sequence[Evidence]) -> list[tuple[str, str]]:
    """Return (old, new) of options that the rows name and that were renamed since."""
    said = "\n".join(f"{r.command}\n{r.notes}" for r in rows)
    return [(before, f"{before.partition('=')[0]}={now}") for before, now in RENAMED.items()
            if re.search(rf"(?<![\w.]){before}(?!\w)", said)]  # fmt: skip


def _plots(rows: Sequence[Evidence]) -> dict[str, str]:
    """SVGs, each by the end of its file's name."""
    charts = {"": interval_chart(_whiskers(rows), standalone=True)}
    for group, part in _groups(rows).items():
        name, about = (f"-{group.replace('/', '-')}", f", {group}") if group else ("", "")
        for end, label in (("-steps", "env steps"), ("-minutes", "minutes of training")):
            series = _over(part, end)
            charts[name + end] = line_chart(
                series, title=f"Success by {label}{about}", x_label=label, share=True, standalone=True,
                width=520 if len(series) < 6 else 760,
            )  # fmt: skip
    return charts


def _groups(rows: Sequence[Evidence]) -> dict[str, list[Evidence]]:
    """Curves by what stands before their route's name, where there are more routes than colours; else all rows."""
    curves = [row for row in rows if row.metric == CURVE]
    if len({row.setting.rpartition("/")[0] for row in curves}) <= len(_COLOURS):
        return {"": list(rows)}
    groups: dict[str, list[Evidence]] = {}
    for row in curves:
        route, _, step = row.setting.rpartition("/")
        group, _, name = route.rpartition("/")
        groups.setdefault(group, []).append(replace(row, setting=f"{name}/{step}"))
    return groups


def _over(rows: Sequence[Evidence], end: str) -> list[Series]:
    """Draw evaluations during training as curves, and routes without them as dots."""
    curves: dict[str, list[Evidence]] = {}
    for row in rows:
        if row.metric == CURVE:
            curves.setdefault(row.setting.rpartition("/")[0], []).append(row)
    dots = [dot for dot in _routes(rows, end) if dot.name not in curves]
    beside = len(dots) > 1  # more than the base; both kinds then have the colours of the other charts
    colours = dict(zip(curves, cycle(_COLOURS), strict=False)) | (_colours(rows) if beside else {})
    series = [_series(name, mine, end, colours[name]) for name, mine in curves.items()]
    return series + (dots if beside else [])


def _series(name: str, rows: Sequence[Evidence], end: str, colour: str) -> Series:
    """Mean and range over training seeds at each env step, over env steps or over their mean training time."""
    at = {step: [r for r in rows if r.env_steps == step] for step in sorted({r.env_steps or 0 for r in rows})}
    rates = [[r.value for r in mine] for mine in at.values()]
    minutes = [sum(r.wall_s or 0.0 for r in mine) / len(mine) / 60 for mine in at.values()]
    x = [float(step) for step in at] if end == "-steps" else minutes
    return Series(name, x, [sum(v) / len(v) for v in rates], [min(v) for v in rates], [max(v) for v in rates], colour)


def _routes(rows: Sequence[Evidence], end: str) -> list[Series]:
    """Return a dot for each refinement of a common base: its cost in env steps or minutes, and its final success.

    Both are means of the training seeds. None for fewer than two refinements, or more than there are colours.
    """
    rates = [r for r in rows if r.metric == "success_rate" and r.seeds != ALL and "/" not in r.setting]
    base = [r.value for r in rates if r.setting == "base"]
    routes: dict[str, list[Evidence]] = {}
    for row in rates:
        if row.env_steps and row.wall_s:
            routes.setdefault(row.setting, []).append(row)
    if not base or not 1 < len(routes) <= len(_COLOURS):
        return []
    colours, found = _colours(rows), [Series("base", [0.0], [fmean(base)], colour="c0")]
    for name, mine in routes.items():
        cost = [float(r.env_steps or 0) if end == "-steps" else (r.wall_s or 0.0) / 60 for r in mine]
        found.append(Series(name, [fmean(cost)], [fmean(r.value for r in mine)], colour=colours[name]))
    return found


def _colours(rows: Sequence[Evidence]) -> dict[str, str]:
    """Setting → its colour in every chart of an experiment; those without a prefix have the first ones."""
    settings = dict.fromkeys(r.setting for r in rows if r.metric == "success_rate" and r.low is not None)
    bases = [s for s in settings if s == "base" or s.endswith("/base")]
    others = sorted((s for s in settings if s not in bases), key=lambda s: "/" in s)  # stable
    return dict.fromkeys(bases, "c0") | {s: _COLOURS[i % len(_COLOURS)] for i, s in enumerate(others)}


def _whiskers(rows: Sequence[Evidence]) -> list[Whisker]:
    """Return every training seed's success rate, pooled rows where there is but one; none for a single rate."""
    rates, colours = [r for r in rows if r.metric == "success_rate" and r.low is not None], _colours(rows)
    found = []
    for setting in dict.fromkeys(r.setting for r in rates) if len(rates) > 1 else ():
        mine = [r for r in rates if r.setting == setting]
        for r in [r for r in mine if r.seeds != ALL] or mine:
            name = setting + (f", seed {r.seeds}" if r.seeds != ALL else "")
            assert r.low is not None
            assert r.high is not None
            found.append(Whisker(name, r.value, r.low, r.high, f"{100 * r.value:.1f}%", colours[setting]))
    return found


def _value(metric: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{100 * value:.1f}%" if metric.endswith("success_rate") else number(value)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.0f} s" if seconds < 180 else f"{seconds / 60:.1f} min"

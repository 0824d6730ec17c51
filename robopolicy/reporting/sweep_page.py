"""Write one self-contained page about many runs: training seeds are pooled for each setting (assets/sweep.html)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import batched
from pathlib import Path

import numpy as np

from robopolicy.evaluation.statistics import Interval
from robopolicy.reporting import plots
from robopolicy.reporting.run_reader import Run
from robopolicy.reporting.setting_figures import sentence
from robopolicy.reporting.settings import SweepRun, copies_of, grouped, read_members
from robopolicy.reporting.sweep_figures import SweepFigures, faults_of_rows, summarize
from robopolicy.reporting.templates import render
from robopolicy.utils.atomic import write_atomically

_PER_CHART = 6  # settings
_SUCCESS = ("eval/success_rate", "train/success")  # the first that was logged


def write_sweep_report(
    run_dirs: Sequence[Path], out: Path, *, title: str = "", command: str = ""
) -> tuple[Path, SweepFigures]:
    """Write the page; return it and its figures.

    Args:
        run_dirs: runs, complete or not. command: that made them, for the page.

    Raises:
        DataError: a run directory does not exist.
    """
    members = read_members(run_dirs)
    figures = summarize(members)
    groups = grouped(members)
    copies = copies_of(members)
    counted = {name: [m for m in runs if m.run.path not in copies] for name, runs in groups.items()}
    styles = dict(zip(groups, plots.styles(len(groups)), strict=True))
    text = render(
        "sweep.html", title=title or out.absolute().parent.name, figures=figures, sentence=sentence,
        meta=[f"{len(members)} runs", f"{len(groups)} settings", datetime.now(UTC).strftime("%-d %B %Y")],
        rates=[(task, _rates(figures, task, styles)) for task in figures.tasks], curves=curves(counted, styles),
        aggregates=_aggregates(figures, styles), differences=_differences(figures),
        rows=[(m, _last(m)) for runs in groups.values() for m in runs], command=command,
        missing=[(m.name, why) for m in members for why in m.run.missing
                 if "damaged" in why or why in faults_of_rows(m.run)],
    )  # fmt: skip
    return write_atomically(out, text), figures


def curves(
    groups: dict[str, list[SweepRun]], styles: dict[str, plots.Style]
) -> list[tuple[tuple[plots.Series, ...], str]]:
    """Return (curves for the legend, chart) of success by steps: for each task, six settings a chart.

    A line is the mean over training seeds; its band reaches from the worst to the best of them at each step. Finished
    runs are drawn; of a setting without one, those that have begun.
    """
    charts = []
    for task in sorted({m.task for runs in groups.values() for m in runs}):
        series = list[plots.Series]()
        for name, runs in groups.items():
            own = [m for m in runs if m.task == task]
            ended = [m for m in own if m.state == "finished"]
            if (curve := pooled_curve(name, [m.run for m in ended or own], styles[name].colour)) is not None:
                series.append(replace(curve, dash=styles[name].dash))
        for part in batched(series, _PER_CHART):
            title = f"Success by steps{f', {task}' * bool(task)}"
            chart = plots.line_chart(part, title=title, x_label="steps", share=True, legend=False)
            charts.append((part, chart))
    return charts


def pooled_curve(name: str, runs: Sequence[Run], colour: str) -> plots.Series | None:
    """Return mean, minimum and maximum over runs at every step that any of them logged and all have reached."""
    key = next((k for k in _SUCCESS if any(k in row for run in runs for row in run.metrics)), "")
    found = [curve for run in runs if len((curve := run.curve(key))[0]) > 0]
    if not found:
        return None
    first, last = max(min(x) for x, _ in found), min(max(x) for x, _ in found)
    steps = sorted({step for x, _ in found for step in x if first <= step <= last})
    values = np.array([np.interp(steps, *_sorted(x, y)) for x, y in found])
    if not values.size:
        return None
    low, high = (values.min(axis=0).tolist(), values.max(axis=0).tolist()) if len(found) > 1 else ([], [])
    return plots.Series(name, steps, values.mean(axis=0).tolist(), low, high, colour)


def _sorted(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    pairs = sorted(dict(zip(x, y, strict=True)).items())
    return [a for a, _ in pairs], [b for _, b in pairs]


def _rates(figures: SweepFigures, task: str, styles: dict[str, plots.Style]) -> str:
    rows = [_whisker(s.name, s.rates[task], f"{len(s.seeds[task])} seeds", styles[s.name].colour)
            for s in figures.settings if task in s.rates]  # fmt: skip
    return plots.intervals_of_page(rows)


def _aggregates(figures: SweepFigures, styles: dict[str, plots.Style]) -> list[tuple[str, str]]:
    """Return (name, chart) of aggregates over tasks; [] for one task."""
    if len(figures.tasks) < 2:
        return []
    kinds = {"Mean": lambda s: s.total, "Interquartile mean": lambda s: s.iqm}
    return [
        (name, plots.intervals_of_page([_whisker(s.name, of(s), "", styles[s.name].colour) for s in figures.whole]))
        for name, of in kinds.items()
    ]


def _differences(figures: SweepFigures) -> str:
    rows = [plots.Whisker(c.b, *c.difference, f"{100 * c.difference.value:+.1f} points")
            for c in figures.comparisons]  # fmt: skip
    low, high = (f(v for row in rows for v in (row.low, row.high)) if rows else 0.0 for f in (min, max))
    marks = [(0.0, "no difference")]
    return plots.intervals_of_page(rows, low=min(-0.1, low - 0.05), high=max(0.1, high + 0.05), marks=marks)


def _whisker(name: str, rate: Interval, note: str, colour: str) -> plots.Whisker:
    return plots.Whisker(name, *rate, f"{100 * rate.value:.1f}%  {note}".strip(), colour)


def _last(member: SweepRun) -> tuple[float | None, float | None]:
    """Return the last logged step and success of a run."""
    steps, _ = member.run.curve("step")
    found = [y for key in reversed(_SUCCESS) for y in member.run.curve(key)[1][-1:]]
    return (steps[-1] if steps else None), (found[-1] if found else None)

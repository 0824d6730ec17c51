"""Learning curves of runs, from what they logged, and success rates of their evaluations."""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import batched

from robopolicy.config.schema import TARGET
from robopolicy.core.errors import RobopolicyError
from robopolicy.reporting.plots import Series, Style, Whisker, line_chart, styles
from robopolicy.reporting.run_reader import Evaluation, Run, is_finite
from robopolicy.runs.run_dir import read_config

_MAX_POINTS = 400
_MOST_CHARTS = 24  # of training metrics
_EVALUATED, _TRAINED = "eval/success_rate", "train/success"
_UNITS = {"offline": "updates", "offline_rl": "updates", "on_policy": "env steps", "off_policy": "env steps",
          "synthetic_off_policy": "env steps"}  # fmt: skip


def learning_curves(
    runs: Sequence[Run], base: tuple[float, str] | None = None, *, legend: bool | None = None
) -> list[str]:
    """Success against steps and against time, one SVG each; updates and env steps have a chart of their own.

    Args:
        base: rate and name of a dashed reference. legend: False: without one; None: for several curves.
    """
    marks = [base] if base is not None else []
    looks, names, charts = styles(len(runs)), _curve_names(runs), list[str]()
    axes = [("step", unit, group) for unit, group in _by_unit(runs).items()]
    for x, label, group in (*axes, ("seconds", "minutes of training", list(range(len(runs))))):
        series = [s for i in group if (s := _success(runs[i], x, looks[i], names[i]))]
        if any(len(s.x) > 1 for s in series):
            warmups = {runs[i].warmup_steps for i in group}
            warmup = warmups.pop() if len(warmups) == 1 else 0
            at = float(warmup) if x == "step" else _minutes(runs, warmup)
            charts.append(line_chart(
                series, title=f"Success by {label}", x_label=label, share=True, marks=marks, width=430, height=250,
                begin=(at, "warm-up") if warmup else None, legend=legend,
            ))  # fmt: skip
    return charts


def legend_of(runs: Sequence[Run]) -> list[Series]:
    """Return a series without points for each of several runs that logged metrics: the legend of their charts."""
    looks = zip(runs, _curve_names(runs), styles(len(runs)), strict=True)
    found = [Series(name, [], [], colour=look.colour, dash=look.dash) for run, name, look in looks if run.metrics]
    return found if len(found) > 1 else []


def success_metrics(runs: Sequence[Run]) -> set[str]:
    """Return the metrics that the curves of `runs` show: evaluations, training episodes, or both."""
    return {key for run in runs if (key := _metric(run))}


def _metric(run: Run) -> str:
    return next((key for key in (_EVALUATED, _TRAINED) if any(key in m for m in run.metrics)), "")


def _curve_names(runs: Sequence[Run]) -> list[str]:
    """Return the name of each run; where others show evaluations, one of training episodes says so."""
    metrics = [_metric(run) for run in runs]
    mixed = len({*metrics} - {""}) > 1
    return [run.name + ", training episodes" * (mixed and metric == _TRAINED)
            for run, metric in zip(runs, metrics, strict=True)]  # fmt: skip


def _by_unit(runs: Sequence[Run]) -> dict[str, list[int]]:
    """Return {what a run's steps are: indices of runs}; "steps" where its config does not say."""
    found: dict[str, list[int]] = {}
    for i, run in enumerate(runs):
        unit = "steps"
        with contextlib.suppress(RobopolicyError):
            loop = (read_config(run.path) or {}).get("loop")
            unit = _UNITS.get(str(loop.get(TARGET)), unit) if isinstance(loop, dict) else unit
        found.setdefault(unit, []).append(i)
    return found


def success_intervals(evaluations: Sequence[Evaluation], reference: Evaluation | None = None) -> list[Whisker]:
    """Return the success rate of each evaluation with its Wilson interval; `reference` has a colour of its own."""
    rows = []
    for e in evaluations:
        rate = e.rows.success_rate()
        said = e.rows.split == "test" or e.name.endswith(e.rows.split)
        name = e.name if said else f"{e.name} ({e.rows.split} seeds)"
        colour = "c0" if e is reference else "c1"
        rows.append(Whisker(name, *rate, f"{100 * rate.value:.1f}%  n = {len(e.rows)}", colour))
    return rows


def _success(run: Run, x: str, look: Style, name: str) -> Series | None:
    key = _metric(run)
    points = [m for m in run.metrics if is_finite(m.get(key)) and is_finite(m.get("step"))]
    if not points:
        return None
    steps = [float(m["step"]) for m in points]
    at = steps if x == "step" else [t / 60 for t in _seconds(run, steps, points)]
    if any(math.isnan(v) for v in at):
        return None
    low, high = ([m.get(f"eval/success_{side}", math.nan) for m in points] for side in ("low", "high"))
    band = key == _EVALUATED and all(map(is_finite, low + high))
    rate = [float(m[key]) for m in points]
    return Series(name, at, rate, low if band else [], high if band else [], look.colour, look.dash)


def _minutes(runs: Sequence[Run], step: int) -> float:
    """Return the longest training time of `runs` until `step`; 0 where it was not logged."""
    timed = [curve for run in runs if len((curve := run.curve("train/seconds"))[0]) > 1]
    return max((_interpolate([0.0, *xs], [0.0, *ts], step) / 60 for xs, ts in timed), default=0.0)


def _seconds(run: Run, steps: Sequence[float], points: Sequence[dict]) -> list[float]:
    """Training time at `steps`: `train/seconds` leaves out evaluations; `wall_s` where that was not logged."""
    xs, ts = run.curve("train/seconds")
    if xs:
        return [_interpolate([0.0, *xs], [0.0, *ts], s) for s in steps]
    return [m["wall_s"] if is_finite(m.get("wall_s")) else math.nan for m in points]


def training_charts(runs: Sequence[Run], *, limit: int = _MOST_CHARTS) -> list[str]:
    """Small charts of every scalar under `train/`, losses first; updates and env steps have a chart of their own."""
    charts, looks, by_unit = [], styles(len(runs)), _by_unit(runs)
    for key in _training_metrics(runs)[:limit]:
        for unit, group in by_unit.items():
            series = []
            for i in group:
                x, y = runs[i].curve(key)
                if len(x) > 1:
                    series.append(Series(runs[i].name, *_thin(x, y), colour=looks[i].colour, dash=looks[i].dash))
            if series:
                title = key.removeprefix("train/") + (f" by {unit}" if len(by_unit) > 1 else "")
                charts.append(line_chart(series, title=title, width=300, height=170, legend=False))
    return charts


def metrics_not_drawn(runs: Sequence[Run]) -> list[str]:
    """Return the names of the scalars that `training_charts` leaves out."""
    return [key.removeprefix("train/") for key in _training_metrics(runs)[_MOST_CHARTS:]]


def _training_metrics(runs: Sequence[Run]) -> list[str]:
    found = {k for run in runs for m in run.metrics for k in m if k.startswith("train/")}
    return sorted(found, key=lambda k: ("loss" not in k, k))


def _thin(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return at most _MAX_POINTS points: means over equal runs of points, so that nothing is picked by chance."""
    size = max(1, math.ceil(len(x) / _MAX_POINTS))
    thin_x, thin_y = ([sum(part) / len(part) for part in batched(values, size)] for values in (x, y))
    return thin_x, thin_y


def _interpolate(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Piecewise linear, continued with the last slope."""
    i = min(max(bisect_left(xs, x), 1), len(xs) - 1)
    span = xs[i] - xs[i - 1]
    return ys[i] if span <= 0 else ys[i - 1] + (ys[i] - ys[i - 1]) * (x - xs[i - 1]) / span

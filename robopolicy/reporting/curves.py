"""Learning curves of runs, from what they logged, and success rates of their evaluations."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import batched, cycle

from robopolicy.reporting.plots import Series, Whisker, line_chart
from robopolicy.reporting.run_reader import Evaluation, Run, is_finite

_MAX_POINTS = 400
_COLOURS = ("c1", "c2", "c3", "c4", "c5", "c0")


def learning_curves(runs: Sequence[Run], base: tuple[float, str] | None = None) -> list[str]:
    """Success against env steps and against time, one SVG each. `base`: rate and name of a dashed reference."""
    marks = [base] if base is not None else []
    charts, warmups = [], {run.warmup_steps for run in runs}
    warmup = warmups.pop() if len(warmups) == 1 else 0
    for x, label in (("step", "steps"), ("seconds", "minutes of training")):
        series = [s for run, colour in zip(runs, cycle(_COLOURS), strict=False) if (s := _success(run, x, colour))]
        if any(len(s.x) > 1 for s in series):
            at = float(warmup) if x == "step" else _minutes(runs, warmup)
            charts.append(line_chart(
                series, title=f"Success by {label}", x_label=label, share=True, marks=marks, width=430, height=250,
                begin=(at, "warm-up") if warmup else None,
            ))  # fmt: skip
    return charts


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


def _success(run: Run, x: str, colour: str) -> Series | None:
    key = "eval/success_rate" if any("eval/success_rate" in m for m in run.metrics) else "train/success"
    points = [m for m in run.metrics if is_finite(m.get(key)) and is_finite(m.get("step"))]
    if not points:
        return None
    steps = [float(m["step"]) for m in points]
    at = steps if x == "step" else [t / 60 for t in _seconds(run, steps, points)]
    if any(math.isnan(v) for v in at):
        return None
    low, high = ([m.get(f"eval/success_{side}", math.nan) for m in points] for side in ("low", "high"))
    band = key.startswith("eval") and all(map(is_finite, low + high))
    rate = [float(m[key]) for m in points]
    return Series(run.name, at, rate, low if band else [], high if band else [], colour)


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


def training_charts(runs: Sequence[Run], *, limit: int = 24) -> list[str]:
    """Small charts of every scalar under `train/`, losses first."""
    keys = sorted(
        {k for run in runs for m in run.metrics for k in m if k.startswith("train/")},
        key=lambda k: ("loss" not in k, k),
    )
    charts = []
    for key in keys[:limit]:
        series = []
        for run, colour in zip(runs, cycle(_COLOURS), strict=False):
            x, y = run.curve(key)
            if len(x) > 1:
                series.append(Series(run.name, *_thin(x, y), colour=colour))
        if series:
            charts.append(line_chart(series, title=key.removeprefix("train/"), width=300, height=170, legend=False))
    return charts


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

"""Write the sections of a report on gates and imagination: decisions, rounds, real beside imagined episodes, errors.

They read decision.json of `gate`, and gate.json, rounds.json and world_model_report.json of world_models/.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robopolicy.core.errors import DataError
from robopolicy.core.types import IMAGES
from robopolicy.core.untrusted import parse_json, read_bytes, refusing
from robopolicy.evaluation.gate_text import text, without_run
from robopolicy.evaluation.off_policy_evaluation import GateResult
from robopolicy.reporting.plots import Series, Whisker, intervals_of_page, line_chart
from robopolicy.reporting.run_reader import Run
from robopolicy.reporting.templates import render

_NUMBERS = 5  # of a state that are shown of an episode: those which truth and imagination differ most in
_BASELINES = {"model": ("model", "c1"), "linear": ("linear model", "c2"), "copy_last": ("copying the last state", "c0")}


def imagination(runs: Sequence[Run]) -> list[str]:
    """Return all sections of all runs; none where no run learned in imagination."""
    parts = []
    for run in runs:
        name = f" ({run.name})" if len(runs) > 1 else ""
        for file, writers in _SECTIONS.items():
            if (run.path / file).is_file():
                parts += [_shown(run.path / file, write, name) for write in writers]
    return parts


def _shown(path: Path, write: Callable[[Any, str], str], name: str) -> str:
    """Return one section, or the reason that its file is damaged."""
    try:
        found = parse_json(read_bytes(path, error=DataError), path.name, error=DataError, finite=False)
        with refusing(path.name, DataError), np.errstate(all="ignore"):
            return write(found, name) if found != [] else ""
    except DataError as error:
        return render("not_shown.html", name=name, reason=str(error))


def _decision(found: dict[str, Any], name: str) -> str:
    """Show the decision of `gate` about this run's policy; rates of success are drawn, other values are not."""
    result, chart = GateResult(**found), ""
    if result.estimator == "world_model":
        row = Whisker("gain", result.gain, result.low, result.high, f"{100 * result.gain:+.1f} points")
        room = 1.2 * max(abs(result.low), abs(result.high), 0.01)
        chart = intervals_of_page([row], low=-room, high=room, marks=[(0.0, "no difference")])
    return render("decision.html", name=name, lines=[*text(result).splitlines(), *without_run(result)], chart=chart)


def _gate(found: list[dict[str, Any]], name: str) -> str:
    return render("gate.html", found=found, name=name, chart=_gap_chart(found, "step", "kept", "imagined steps"))


def _rounds(found: list[dict[str, Any]], name: str) -> str:
    chart = _gap_chart(found, "real_steps_total", "imagined", "real env steps")
    return render("rounds.html", found=found, name=name, chart=chart)


def _side_by_side(found: dict[str, Any], name: str) -> str:
    shown = []
    for episode in found["episodes"]:
        names = found["names"] or [str(k) for k in range(len(episode["real"]["state"]))]
        charts = [_two_curves(episode, "state", i, found["dt"], names[i], "c1")
                  for i in _differing(found["episodes"], episode)]  # fmt: skip
        marks = [(found["bound"], "bound")]
        charts.append(_two_curves(episode, "uncertainty", 0, found["dt"], "uncertainty", "c3", marks))
        shown.append((episode, charts))
    return render("real_and_imagined.html", found=found, name=name, shown=shown)


def _model(found: dict[str, Any], name: str) -> str:
    errors = {int(k): e for k, e in found["open_loop"].items() if e["windows"]}
    series = [
        Series(label, list(errors), [e[key] for e in errors.values()], colour=colour)
        for key, (label, colour) in _BASELINES.items()
    ]
    chart = line_chart(series, title="open-loop error by steps ahead", x_label="steps ahead")
    return render("world_model.html", found=found, name=name, chart=chart, errors=errors,
                  baselines=_BASELINES, prefix=IMAGES)  # fmt: skip


def _gap_chart(records: list[dict[str, Any]], x: str, imagined: str, label: str) -> str:
    """Success in imagination and in truth, where that is known, with their intervals."""
    known = [r for r in records if r["true"] is not None and r["true"][0] is not None]
    series = []
    for name, key, colour, rows in (("imagined", imagined, "c1", records), ("true", "true", "c2", known)):
        value, low, high = (_numbers(r[key][k] for r in rows) for k in range(3))
        series += [Series(name, [float(r[x]) for r in rows], value, low, high, colour)] if rows else []
    return line_chart(series, title="Success, imagined and true", x_label=label, share=True)


def _two_curves(
    episode: dict[str, Any], key: str, i: int, dt: float, title: str, colour: str,
    marks: Sequence[tuple[float, str]] = (),
) -> str:  # fmt: skip
    """Draw element `i` of `key` over the seconds of an episode, real and imagined."""
    series = []
    for who, shade in (("real", "c0"), ("imagined", colour)):
        y = _numbers(episode[who][key][i])
        series.append(Series(who, [t * dt for t in range(len(y))], y, colour=shade))
    return line_chart(series, title=title, width=300, height=170, marks=marks)


def _numbers(values: Any) -> list[float]:
    """Return JSON's numbers, NaN for null."""
    return [math.nan if v is None else float(v) for v in values]


def _differing(episodes: list[dict[str, Any]], episode: dict[str, Any]) -> list[int]:
    """Numbers of the state, the largest mean difference first, in deviations over all episodes shown."""

    def miss(i: int) -> float:
        values = [v for e in episodes for v in e["real"]["state"][i] if v is not None]
        pairs = zip(episode["real"]["state"][i], episode["imagined"]["state"][i], strict=False)
        gaps = [abs(a - b) for a, b in pairs if a is not None and b is not None]
        return sum(gaps) / max(1, len(gaps)) / (float(np.std(values or [0.0])) or math.inf)

    return sorted(range(len(episode["real"]["state"])), key=lambda i: (-miss(i), i))[:_NUMBERS]


_SECTIONS: dict[str, tuple[Callable[[Any, str], str], ...]] = {
    "decision.json": (_decision,),
    "gate.json": (_gate,),
    "rounds.json": (_rounds,),
    "world_model_report.json": (_model, _side_by_side),
}

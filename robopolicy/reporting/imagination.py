"""Write the sections of a report on imagination: gate, rounds, real beside imagined episodes, errors of the model.

They read gate.json, rounds.json and world_model_report.json of a run in imagination (world_models/).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from robopolicy.core.errors import DataError
from robopolicy.core.types import IMAGES
from robopolicy.core.untrusted import parse_json, read_bytes, refusing
from robopolicy.reporting.plots import Series, line_chart
from robopolicy.reporting.run_reader import Run
from robopolicy.reporting.sections import section

_NUMBERS = 5  # of a state that are shown of an episode: those which truth and imagination differ most in
_BASELINES = {"model": ("model", "c1"), "linear": ("linear model", "c2"), "copy_last": ("copying the last state", "c0")}


def imagination(runs: Sequence[Run]) -> str:
    """Return all sections of all runs; "" where no run learned in imagination."""
    parts = []
    for run in runs:
        name = f" ({escape(run.name)})" if len(runs) > 1 else ""
        for file, writers in _SECTIONS.items():
            if (run.path / file).is_file():
                parts += [_shown(run.path / file, write, name) for write in writers]
    return "\n".join(p for p in parts if p)


def _shown(path: Path, write: Callable[[Any, str], str], name: str) -> str:
    """Return one section, or the reason that its file is damaged."""
    try:
        found = parse_json(read_bytes(path, error=DataError), path.name, error=DataError, finite=False)
        with refusing(path.name, DataError):
            return write(found, name)
    except DataError as error:
        return section(f"Not shown{name}", "", escape(str(error)))


def _gate(records: list[dict[str, Any]], name: str) -> str:
    if not records:
        return ""
    steps = [float(r["step"]) for r in records]
    chart = _gap_chart(steps, [r["kept"] for r in records], [r["true"] for r in records], "imagined steps")
    head = "<tr><th class=n>step<th class=n>imagined<th class=n>uncertain<th class=n>true<th>the gate"
    body = "".join(
        f"<tr><td class=n>{r['step']}<td class=n>{_rate(r['imagined'])}<td class=n>{100 * r['uncertain']:.0f}%"
        f"<td class=n>{_rate(r['true'])}<td>{escape(r['reason'])}"
        for r in records
    )
    kept = sum(bool(r["accepted"]) for r in records[1:])
    return section(
        f"What was kept{name}",
        f'<div class="charts">{chart}</div><div class="scroll"><table>{head}{body}</table></div>',
        f"{kept} of {len(records) - 1} updates were accepted. The chart shows the policy that was kept; its band "
        "counts uncertain episodes as failures below and as successes above. The true success was logged, never used.",
    )


def _rounds(records: list[dict[str, Any]], name: str) -> str:
    if not records:
        return ""
    steps = [float(r["real_steps_total"]) for r in records]
    chart = _gap_chart(steps, [r["imagined"] for r in records], [r["true"] for r in records], "real env steps")
    head = (
        "<tr><th class=n>round<th class=n>real steps<th class=n>imagined<th class=n>true<th class=n>gap"
        "<th class=n>refitted<th>verdict"
    )
    body = "".join(
        f"<tr><td class=n>{int(r['round'])}<td class=n>{int(r['real_steps'])}<td class=n>{_rate(r['imagined'])}"
        f"<td class=n>{_rate(r['true'])}<td class=n>{100 * r['gap']:+.0f}<td class=n>{_rate(r['imagined_refitted'])}"
        f"<td>{escape(r['reason'])}"
        for r in records
    )
    return section(
        f"Rounds{name}",
        f'<div class="charts">{chart}</div><div class="scroll"><table>{head}{body}</table></div>',
        "Each round imagines, rolls the policy out for real, and refits the model on the rollouts. Gap: imagined minus "
        "true success in points, in the model of the training; refitted: success in the next model.",
    )


def _side_by_side(report: dict[str, Any], name: str) -> str:
    blocks = []
    for episode in report["episodes"]:
        real, imagined = episode["real"], episode["imagined"]
        charts = [
            line_chart(
                [_curve("real", real["state"][i], report["dt"], "c0"),
                 _curve("imagined", imagined["state"][i], report["dt"], "c1")],
                title=(report["names"] or [str(k) for k in range(len(real["state"]))])[i], width=300, height=170,
            )
            for i in _differing(report["episodes"], episode)
        ]  # fmt: skip
        charts.append(
            line_chart(
                [_curve("real", real["uncertainty"][0], report["dt"], "c0"),
                 _curve("imagined", imagined["uncertainty"][0], report["dt"], "c3")],
                title="uncertainty", width=300, height=170, marks=[(report["bound"], "bound")],
            )
        )  # fmt: skip
        ends = [f"{who}: {'success' if side['success'] else 'failure'}" for who, side in
                (("real", real), ("imagined", imagined)) if side["success"] is not None]  # fmt: skip
        head = f"<h3>seed {int(episode['seed'])} · {' · '.join(ends)}</h3>"
        strips = "".join(
            f'<figure class=strip><img src="data:image/png;base64,{escape(png)}" alt="real above imagined pictures">'
            f"<figcaption>{escape(camera)}: real above, imagined below</figcaption></figure>"
            for camera, png in episode.get("strips", {}).items()
        )
        blocks.append(f'{head}{strips}<div class="charts small">{"".join(charts)}</div>')
    how = "the policy acts in each, from the same first frame with the same noise"
    if report["kind"] == "data":
        how = "held-out episodes, and their actions imagined from the first frame on"
    return section(
        f"Real and imagined{name}",
        "".join(blocks),
        f"By seconds; {how}. Of the state, the numbers that differ most. Uncertainty is the disagreement of the "
        "model’s members; an imagined episode ends beyond the bound.",
    )


def _model(report: dict[str, Any], name: str) -> str:
    errors = {int(k): e for k, e in report["open_loop"].items() if e["windows"]}
    series = [
        Series(label, list(errors), [e[key] for e in errors.values()], colour=colour)
        for key, (label, colour) in _BASELINES.items()
    ]
    chart = line_chart(series, title="open-loop error by steps ahead", x_label="steps ahead")
    head = "<tr><th class=n>steps" + "".join(f"<th class=n>{label}" for label, _ in _BASELINES.values())
    body = "".join(
        f"<tr><td class=n>{k}" + "".join(f"<td class=n>{e[key]:.4f}" for key in _BASELINES) for k, e in errors.items()
    )
    shown = "".join(_dreamt_pictures(camera, e) for camera, e in report.get("pictures", {}).items())
    success, trust = report["success"], report["trust"]
    facts = {
        "success classifier": f"precision {success['precision']:.3f}, recall {success['recall']:.3f} over "
        f"{success['episodes']} held-out episodes with {success['positives']} successes",
        "uncertainty": f"its bound ends {100 * trust['flagged_episodes']:.1f}% of held-out episodes; rank correlation "
        f"with the error {trust['spearman_uncertainty_error']:.2f}",
    }
    if report["stuck"]:
        facts["no better than copied"] = report["stuck"]
    listed = "".join(f"<dt>{escape(k)}<dd>{escape(v)}" for k, v in facts.items())
    return section(
        f"The world model{name}",
        f'<div class="charts">{chart}</div><div class="scroll"><table>{head}{body}</table>{shown}</div>'
        f"<dl>{listed}</dl>",
        f"{escape(str(report['model']))}, on held-out episodes: mean state error in deviations, under true actions.",
    )


def _dreamt_pictures(camera: str, errors: dict[str, Any]) -> str:
    """Table of one camera: how far imagined pictures are from the true ones, beside those of not moving."""
    head = "<tr><th class=n>steps" + "".join(f"<th class=n>{_BASELINES[k][0]}" for k in ("model", "copy_last"))
    body = "".join(
        f"<tr><td class=n>{escape(k)}<td class=n>{e['model']['psnr']:.1f} dB<td class=n>{e['copy_last']['psnr']:.1f} dB"
        for k, e in errors.items()
        if e["windows"]
    )
    return f"<h3>{escape(camera.removeprefix(IMAGES))}: signal to noise of its pictures</h3><table>{head}{body}</table>"


def _gap_chart(x: list[float], imagined: list[Any], true: list[Any], label: str) -> str:
    """Success in imagination and in truth, where that is known, with their intervals."""
    series = [_with_band("imagined", x, imagined, "c1")]
    known = [(at, t) for at, t in zip(x, true, strict=True) if t is not None and t[0] is not None]
    if known:
        series.append(_with_band("true", [at for at, _ in known], [t for _, t in known], "c2"))
    return line_chart(series, title="Success, imagined and true", x_label=label, share=True)


def _with_band(name: str, x: list[float], intervals: list[Any], colour: str) -> Series:
    value, low, high = ([math.nan if i[k] is None else float(i[k]) for i in intervals] for k in range(3))
    return Series(name, x, value, low, high, colour)


def _curve(name: str, values: list[float | None], dt: float, colour: str) -> Series:
    y = [math.nan if v is None else v for v in values]
    return Series(name, [t * dt for t in range(len(y))], y, colour=colour)


def _differing(episodes: list[dict[str, Any]], episode: dict[str, Any]) -> list[int]:
    """Numbers of the state, the largest mean difference first, in deviations over all episodes shown."""

    def spread(i: int) -> float:
        values = [v for e in episodes for v in e["real"]["state"][i] if v is not None]
        mean = sum(values) / max(1, len(values))
        return math.sqrt(sum((v - mean) ** 2 for v in values) / max(1, len(values)))

    def miss(i: int) -> float:
        pairs = zip(episode["real"]["state"][i], episode["imagined"]["state"][i], strict=False)
        gaps = [abs(a - b) for a, b in pairs if a is not None and b is not None]
        return sum(gaps) / max(1, len(gaps)) / (spread(i) or math.inf)

    return sorted(range(len(episode["real"]["state"])), key=lambda i: (-miss(i), i))[:_NUMBERS]


def _rate(interval: Any) -> str:
    if interval is None or interval[0] is None:
        return "–"
    ends = "" if interval[1] is None else f" <small>{100 * interval[1]:.0f}–{100 * interval[2]:.0f}</small>"
    return f"{100 * interval[0]:.1f}%{ends}"


_SECTIONS: dict[str, tuple[Callable[[Any, str], str], ...]] = {
    "gate.json": (_gate,),
    "rounds.json": (_rounds,),
    "world_model_report.json": (_side_by_side, _model),
}

"""Write the sections of a report page from plain data to HTML; "" for an empty section.

Every text that comes from a run goes through `escape`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from robopolicy.evaluation.compare import Comparison, format_p
from robopolicy.evaluation.statistics import Interval
from robopolicy.reporting import plots
from robopolicy.reporting.curves import learning_curves, success_intervals, training_charts
from robopolicy.reporting.run_reader import Evaluation, Run

_WIDTH = 1020  # pixels of the page's text column


def _rate(interval: Interval) -> str:
    return f"{100 * interval.value:.1f}<small>%</small>"


def _p(p: float) -> str:
    """Format a p-value as `= 0.034`, `= 3 × 10⁻⁷`, `&lt; 10⁻⁹⁹`."""
    text = format_p(p)
    sign, text = ("&lt;", text[2:]) if text.startswith("<") else ("=", text)
    mantissa, _, exponent = text.partition("e-")
    if not exponent:
        return f"{sign} {text}"
    power = f"10<sup>−{int(exponent)}</sup>"
    return f"{sign} {power}" if mantissa == "1" and sign != "=" else f"{sign} {mantissa} × {power}"


def _ci(interval: Interval, scale: str = "") -> str:
    return f"95% CI {100 * interval.low:.1f} – {100 * interval.high:.1f}{scale}"


def headline(pair: Sequence[Evaluation], comparison: Comparison | None, *, others: int) -> str:
    if not pair:
        return '<section class="hero"><p class="lead">No evaluated episodes yet.</p></section>'
    figures, colours = [], ["c0", "c1"] if len(pair) == 2 else ["c1"]
    for evaluation, colour in zip(pair, colours, strict=True):
        rate = evaluation.rows.success_rate()
        figures.append(
            f'<div class="figure {colour}"><span class="who">{escape(evaluation.name)}</span>'
            f"<b>{_rate(rate)}</b><span>{_ci(rate)}</span></div>"
        )
    rows = pair[-1].rows
    split = f"{rows.split} " if rows.split in ("test", "validation", "train") else ""
    text = f"Success on {len(rows)} {split}episodes, all run to their end."
    if comparison is not None:
        d, p = comparison.difference, comparison.pairs
        text = (
            f"Success on the same {p.total} {split}episodes. <b>{100 * d.value:+.1f} points</b> ({_ci(d)}), exact "
            f"McNemar p {_p(comparison.p_value)}: {escape(comparison.verdict)}. "
            f"{p.only_b or 'No'} {'failure' if p.only_b == 1 else 'failures'} became successes, "
            f"{p.only_a or 'no'} {'success' if p.only_a == 1 else 'successes'} became failures."
        )
    diverged = sum(e.rows.diverged for e in pair)
    if diverged:
        text += f" {diverged} episodes diverged and count as failures."
    if others:
        text += f" {others} more evaluation{'s are' if others > 1 else ' is'} below."
    arrow = '<span class="arrow" aria-hidden="true">→</span>'
    return f'<section class="hero"><div class="figures">{arrow.join(figures)}</div><p class="lead">{text}</p></section>'


def paired(pair: Sequence[Evaluation], c: Comparison | None) -> str:
    if c is None:
        return ""
    a = dict(zip(pair[0].rows.seeds, pair[0].rows.successes(), strict=True))
    b = dict(zip(pair[1].rows.seeds, pair[1].rows.successes(), strict=True))
    kinds = {
        (True, True): ("soft", "both succeed", c.pairs.both),
        (False, True): ("good", f"only {c.b} succeeds", c.pairs.only_b),
        (True, False): ("bad", f"only {c.a} succeeds", c.pairs.only_a),
        (False, False): ("dim", "both fail", c.pairs.neither),
    }
    order = list(kinds)
    cells = sorted(((order.index((a[s], b[s])), s) for s in a), key=lambda k: k[0])[:2000]
    grid = plots.outcome_grid([(kinds[order[k]][0], f"seed {s}: {kinds[order[k]][1]}") for k, s in cells])
    legend = "".join(
        f'<li class="{colour}"><b>{count}</b><span>{escape(text)}</span></li>' for colour, text, count in kinds.values()
    )
    d = c.difference
    row = [plots.Whisker(f"{c.b} − {c.a}", d.value, d.low, d.high, f"{100 * d.value:+.1f} points", "c1")]
    lower = min(-0.1, d.low - 0.05)
    upper = max(0.1, d.high + 0.05)
    chart = plots.interval_chart(row, low=lower, high=upper, marks=[(0.0, "no difference")], width=_WIDTH)
    return section(
        "Episode by episode",
        f'<ul class="legend">{legend}</ul><div class="grid">{grid}</div><div class="wide">{chart}</div>',
        "Both policies start from the same seeds with the same noise, so each square compares like with like. "
        "Interval of the difference: Tango’s score interval for paired proportions.",
    )


def checkpoints(evaluations: Sequence[Evaluation], pair: Sequence[Evaluation]) -> str:
    rows = success_intervals(evaluations, pair[0] if len(pair) == 2 else None)
    if len(rows) < 2:
        return ""
    numeric = ("episodes", "success once", "success at end", "steps", "diverged")
    head = "<tr><th>evaluation<th>checkpoint<th>split" + "".join(f"<th class=n>{name}" for name in numeric)
    body = "".join(
        f"<tr><td>{escape(e.name)}<td><code>{escape(str(e.rows.frame['policy'].iloc[0]))}</code><td>{e.rows.split}"
        f"<td class=n>{len(e.rows)}<td class=n>{_cell(e.rows.success_rate())}"
        f"<td class=n>{_cell(e.rows.success_rate('success_at_end'))}<td class=n>{e.rows.frame['length'].mean():.1f}"
        f"<td class=n>{e.rows.diverged}"
        for e in evaluations
    )
    return section(
        "Every evaluation",
        f'<div class="wide">{plots.interval_chart(rows, width=_WIDTH)}</div>'
        f'<div class="scroll"><table>{head}{body}</table></div>',
        "Success rates with 95% Wilson score intervals.",
    )


def _cell(interval: Interval) -> str:
    return f"{100 * interval.value:.1f}% <small>{100 * interval.low:.1f}–{100 * interval.high:.1f}</small>"


def learning(runs: Sequence[Run], pair: Sequence[Evaluation]) -> str:
    base = (pair[0].rows.success_rate().value, pair[0].name) if len(pair) == 2 else None
    curves, details = learning_curves(runs, base), training_charts(runs)
    if not curves and not details:
        return ""
    body = f'<div class="charts">{"".join(curves)}</div>'
    if details:
        state, count = "" if curves else " open", len(details)
        charts = f'<div class="charts small">{"".join(details)}</div>'
        body += f"<details{state}><summary>Training metrics ({count})</summary>{charts}</details>"
    evaluated = any("eval/success_rate" in m for run in runs for m in run.metrics)
    about = (
        "Evaluations during training, with 95% Wilson intervals where they were logged."
        if evaluated
        else ("Success of the last 100 training episodes, exploration noise included, while policies change.")
    )
    return section("Learning", body, about)


def episodes(evaluations: Sequence[Evaluation], max_rows: int) -> str:
    total = sum(len(e.rows) for e in evaluations)
    if not total:
        return ""
    columns = ["evaluation", "seed", "task", "success_once", "success_at_end", "return", "length", "ended_by"]
    data: list[list[Any]] = []
    for e in evaluations:
        frame = e.rows.frame[columns[1:]]
        data += [[e.name, str(r[0]), r[1], int(r[2]), int(r[3]), round(r[4], 4), r[5], r[6]]
                 for r in frame.itertuples(index=False, name=None)]  # fmt: skip
    if len({row[2] for row in data}) == 1:  # a single instruction needs no column
        columns.pop(2)
        data = [row[:2] + row[3:] for row in data]
    text = json.dumps({"columns": columns, "rows": data[:max_rows]}, ensure_ascii=False, separators=(",", ":"))
    safe = text.replace("<", "\\u003c")  # cannot close the script element
    note = "Click a heading to sort. Seeds are 64-bit numbers; the same seed gives the same episode."
    if total > max_rows:
        note += f" The first {max_rows} of {total} are shown; the run directory has all of them."
    return section(
        "Every episode",
        f'<script type="application/json" id="episodes">{safe}</script>'
        '<div id="table"><noscript>This table needs JavaScript; the rows are in the run directory.</noscript></div>',
        note,
    )


def reproduce(runs: Sequence[Run]) -> str:
    blocks = []
    for run in runs:
        p, parts = run.provenance, []
        if p.get("command"):
            text = escape(str(p["command"]))
            parts.append(f'<div class="command"><pre>{text}</pre><button data-copy>copy</button></div>')
        facts = {k: p[k] for k in ("commit", "hardware", "system", "date") if p.get(k)}
        libraries = p.get("versions")
        if isinstance(libraries, dict):
            facts["versions"] = " · ".join(f"{k} {v}" for k, v in libraries.items())
        if facts:
            parts.append("<dl>" + "".join(f"<dt>{k}<dd>{escape(str(v))}" for k, v in facts.items()) + "</dl>")
        if run.config:
            parts.append(f"<details><summary>config.yaml, resolved</summary><pre>{escape(run.config)}</pre></details>")
        if run.spec:
            text = escape(json.dumps(run.spec, indent=2, ensure_ascii=False))
            parts.append(f"<details><summary>spec.json</summary><pre>{text}</pre></details>")
        if parts:
            head = f"<h3>{escape(run.name)}</h3>" if len(runs) > 1 else ""
            blocks.append(head + "".join(parts))
    return section("How to get this again", "".join(blocks)) if blocks else ""


def missing(runs: Sequence[Run]) -> str:
    items = [f"<li><b>{escape(run.name)}</b>: {escape(text)}" for run in runs for text in run.missing]
    if not items:
        return ""
    return section("Missing", f"<ul class=plain>{''.join(items)}</ul>", "Not found when this page was made.")


def section(title: str, body: str, note: str = "") -> str:
    return f"<section><h2>{title}</h2>{f'<p class=note>{note}</p>' if note else ''}{body}</section>"

"""Write a report as one self-contained HTML page that needs no network (template assets/run.html)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from robopolicy.evaluation.compare import Comparison, compare, format_p
from robopolicy.reporting import plots
from robopolicy.reporting.curves import (
    learning_curves,
    legend_of,
    metrics_not_drawn,
    success_intervals,
    success_metrics,
    training_charts,
)
from robopolicy.reporting.films import films
from robopolicy.reporting.headline import distinct_evaluations, headline_pair, named_pair, paired
from robopolicy.reporting.imagination import imagination
from robopolicy.reporting.imitation import imitations
from robopolicy.reporting.run_reader import Evaluation, Run, distinct_runs, read_run
from robopolicy.reporting.templates import render
from robopolicy.utils.atomic import write_atomically

_MOST_CELLS = 2000  # of the grid of outcomes


def write_report(
    run_dirs: Path | str | Sequence[Path | str],
    out: Path | str,
    *,
    title: str = "",
    names: tuple[str, str] | None = None,
    max_video_mib: float = 16.0,
    max_rows: int = 5000,
) -> Path:
    """Write a self-contained page about one run or several; what is missing is named in it.

    Args:
        run_dirs: in the order to show. The headline compares a run with its base, or two runs, on the episodes that
            both have (headline.headline_pair). Of more runs it compares one with its base, or none.
        names: the two evaluations of the headline (see run_dir.Evaluation); picked when None.
        max_video_mib: films beyond this are left out and named, those that matter least first.

    Raises:
        DataError: a run directory or a named evaluation does not exist.
    """
    paths = [run_dirs] if isinstance(run_dirs, str | Path) else run_dirs
    runs = distinct_runs([read_run(path) for path in paths])
    evaluations = distinct_evaluations(runs)
    envs = sorted({str(e.rows.frame["env"].iloc[0]) for e in evaluations})
    title = title or ", ".join(envs or [run.name for run in runs])
    chosen = named_pair(evaluations, names) if names else headline_pair(runs, evaluations)
    pair = paired(chosen) if len(chosen) == 2 else chosen
    comparison = compare(pair[0].rows, pair[1].rows, names=(pair[0].name, pair[1].name)) if len(pair) == 2 else None
    base = (pair[0].rows.success_rate().value, pair[0].name) if len(pair) == 2 else None
    split = pair[-1].rows.split if pair else ""
    rates = success_intervals(evaluations, chosen[0] if len(pair) == 2 else None)
    columns, rows = _episodes(evaluations)
    tiles, left_out = films([v for run in runs for v in run.videos], max_bytes=int(max_video_mib * 2**20))
    text = render(
        "run.html", title=title, meta=_meta(runs, evaluations), runs=runs, pair=pair,
        several=len([run for run in runs if run.evaluations]),
        evaluations=evaluations, several_envs=len(envs) > 1, comparison=comparison,
        **(_paired(pair, comparison) if comparison else {}),
        split=f"{split} " if split not in ("", "mixed", "none") else "",
        rates=plots.intervals_of_page(rates), curves=learning_curves(runs, base, legend=False), legend=legend_of(runs),
        charts=training_charts(runs), not_drawn=metrics_not_drawn(runs), imitations=imitations(runs),
        imagined=imagination(runs),
        metrics=success_metrics(runs), counts=[len(e.rows) for e in chosen],
        tiles=tiles, left_out=left_out, columns=columns, rows=rows, max_rows=max_rows,
        recorded=[(r, f) for r in runs if (f := _facts(r)) or r.provenance.get("command") or r.config or r.spec],
    )  # fmt: skip
    return write_atomically(out, text)


def _paired(pair: Sequence[Evaluation], c: Comparison) -> dict[str, Any]:
    """Return the figures of two evaluations of the same episodes."""
    a, b = (dict(zip(e.rows.seeds, e.rows.successes(), strict=True)) for e in pair)
    outcomes = {
        (True, True): ("soft", "both succeed", c.pairs.both),
        (False, True): ("good", f"only {c.b} succeeds", c.pairs.only_b),
        (True, False): ("bad", f"only {c.a} succeeds", c.pairs.only_a),
        (False, False): ("dim", "both fail", c.pairs.neither),
    }
    kinds = [[(colour, f"seed {seed}: {text}") for seed in a if (a[seed], b[seed]) == kind]
             for kind, (colour, text, _) in outcomes.items()]  # fmt: skip
    cells = sampled_cells(kinds)
    d = c.difference
    row = plots.Whisker(f"{c.b} − {c.a}", d.value, d.low, d.high, f"{100 * d.value:+.1f} points")
    chart = plots.intervals_of_page(
        [row], low=min(-0.1, d.low - 0.05), high=max(0.1, d.high + 0.05), marks=[(0.0, "no difference")]
    )
    return {"outcomes": list(outcomes.values()), "grid": plots.outcome_grid(cells), "cells": len(cells),
            "difference": chart, "p_text": format_p(c.p_value)}  # fmt: skip


def sampled_cells[T](kinds: Sequence[Sequence[T]], most: int = _MOST_CELLS) -> list[T]:
    """Return at most `most` cells, in the order of their kinds: each kind in proportion, at least one of each."""
    total = sum(map(len, kinds))
    if total <= most:
        return [cell for kind in kinds for cell in kind]
    counts = [max(1, len(kind) * most // total) if kind else 0 for kind in kinds]
    for i in sorted(range(len(kinds)), key=lambda i: len(kinds[i]) - counts[i], reverse=True):
        counts[i] = min(len(kinds[i]), counts[i] + most - sum(counts))
    return [kind[i * len(kind) // count] for kind, count in zip(kinds, counts, strict=True) for i in range(count)]


def _episodes(evaluations: Sequence[Evaluation]) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows of the table of episodes; seeds are texts, as JavaScript has no 64-bit numbers."""
    columns = ["evaluation", "seed", "env", "task", "success_once", "success_at_end", "return", "length", "ended_by"]
    rows = [[e.name, str(seed), *where, int(once), int(end), round(total, 4), length, by] for e in evaluations
            for seed, *where, once, end, total, length, by
            in e.rows.frame[columns[1:]].itertuples(index=False, name=None)]  # fmt: skip
    for column in ("task", "env"):  # a single one needs no column
        at = columns.index(column)
        if len({row[at] for row in rows}) == 1:
            del columns[at]
            rows = [row[:at] + row[at + 1 :] for row in rows]
    return columns, rows


def _facts(run: Run) -> dict[str, Any]:
    facts = {k: run.provenance[k] for k in ("commit", "hardware", "system", "date") if run.provenance.get(k)}
    libraries = run.provenance.get("versions")
    if isinstance(libraries, dict):
        facts["versions"] = " · ".join(f"{k} {v}" for k, v in libraries.items())
    earlier = run.provenance.get("earlier")
    starts = [start for start in earlier if isinstance(start, dict)] if isinstance(earlier, list) else []
    if starts:
        texts = ([str(start.get(key, "")) for key in ("command", "commit", "date")] for start in starts)
        facts["begun by"] = "\n".join(map(" · ".join, texts))
    return facts


def _meta(runs: Sequence[Run], evaluations: Sequence[Evaluation]) -> list[str]:
    tasks = sorted({t for e in evaluations for t in set(e.rows.frame["task"]) if t})
    commits = sorted({str(run.provenance["commit"]) for run in runs if run.provenance.get("commit")})
    return [
        *(f"“{t}”" for t in tasks[:3]), "run " + ", ".join(run.name for run in runs), *(f"commit {c}" for c in commits),
        datetime.now(UTC).strftime("%-d %B %Y"),
    ]  # fmt: skip

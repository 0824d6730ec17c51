"""Write a report as one self-contained HTML page that needs no network (template assets/run.html)."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from robopolicy.core.errors import DataError
from robopolicy.evaluation.compare import Comparison, compare, format_p
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.reporting import plots
from robopolicy.reporting.curves import learning_curves, success_intervals, training_charts
from robopolicy.reporting.imagination import imagination
from robopolicy.reporting.imitation import imitations
from robopolicy.reporting.run_reader import Evaluation, Run, Video, read_run
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
        run_dirs: in the order to show. The headline compares two evaluations of one run or of two: the first that has
            "base" in its name, or the first of all, and the last. Of more runs it compares one with its base, or none.
        names: the two evaluations of the headline (see run_dir.Evaluation); picked when None.
        max_video_mib: films beyond this are left out and named, those that matter least first.

    Raises:
        DataError: a run directory or a named evaluation does not exist.
    """
    runs = [read_run(path) for path in ([run_dirs] if isinstance(run_dirs, str | Path) else run_dirs)]
    evaluations = _named_apart(runs)
    envs = sorted({str(e.rows.frame["env"].iloc[0]) for e in evaluations})
    title = title or ", ".join(envs or [run.name for run in runs])
    pair = _headline_pair(evaluations if names else _compared(runs, evaluations), names)
    comparison = compare(pair[0].rows, pair[1].rows, names=(pair[0].name, pair[1].name)) if len(pair) == 2 else None
    base = (pair[0].rows.success_rate().value, pair[0].name) if len(pair) == 2 else None
    split = pair[-1].rows.split if pair else ""
    rates = success_intervals(evaluations, pair[0] if len(pair) == 2 else None)
    columns, rows = _episodes(evaluations)
    tiles, left_out = films([v for run in runs for v in run.videos], max_bytes=int(max_video_mib * 2**20))
    text = render(
        "run.html", title=title, meta=_meta(runs, evaluations), runs=runs, pair=pair,
        several=len([run for run in runs if run.evaluations]),
        evaluations=evaluations, comparison=comparison, **(_paired(pair, comparison) if comparison else {}),
        split=f"{split} " if split not in ("", "mixed", "none") else "",
        rates=plots.intervals_of_page(rates), curves=learning_curves(runs, base),
        charts=training_charts(runs), imitations=imitations(runs), imagined=imagination(runs),
        evaluated=any("eval/success_rate" in m for run in runs for m in run.metrics),
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
    cells = [(outcomes[kind][0], f"seed {seed}: {outcomes[kind][1]}") for kind in outcomes for seed in a
             if (a[seed], b[seed]) == kind]  # fmt: skip
    d = c.difference
    row = plots.Whisker(f"{c.b} − {c.a}", d.value, d.low, d.high, f"{100 * d.value:+.1f} points")
    chart = plots.intervals_of_page(
        [row], low=min(-0.1, d.low - 0.05), high=max(0.1, d.high + 0.05), marks=[(0.0, "no difference")]
    )
    return {"outcomes": list(outcomes.values()), "grid": plots.outcome_grid(cells[:_MOST_CELLS]), "difference": chart,
            "p_text": format_p(c.p_value)}  # fmt: skip


def _episodes(evaluations: Sequence[Evaluation]) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows of the table of episodes; seeds are texts, as JavaScript has no 64-bit numbers."""
    columns = ["evaluation", "seed", "task", "success_once", "success_at_end", "return", "length", "ended_by"]
    rows = [[e.name, str(seed), task, int(once), int(end), round(total, 4), length, by] for e in evaluations
            for seed, task, once, end, total, length, by in e.rows.frame[columns[1:]].itertuples(index=False, name=None)
            ]  # fmt: skip
    if len({row[2] for row in rows}) == 1:  # a single instruction needs no column
        del columns[2]
        rows = [row[:2] + row[3:] for row in rows]
    return columns, rows


def _facts(run: Run) -> dict[str, Any]:
    facts = {k: run.provenance[k] for k in ("commit", "hardware", "system", "date") if run.provenance.get(k)}
    libraries = run.provenance.get("versions")
    if isinstance(libraries, dict):
        facts["versions"] = " · ".join(f"{k} {v}" for k, v in libraries.items())
    return facts


def _named_apart(runs: Sequence[Run]) -> list[Evaluation]:
    """Return all evaluations, the run's name before those that would otherwise be called the same."""
    found = [(run, e) for run in runs for e in run.evaluations]
    names = [e.name for _, e in found]
    return [
        e if names.count(e.name) == 1 or e.name == run.name else replace(e, name=f"{run.name}/{e.name}")
        for run, e in found
    ]


def _headline_pair(evaluations: Sequence[Evaluation], names: tuple[str, str] | None) -> list[Evaluation]:
    """Return the two evaluations to compare, or the only one, or none.

    Test seeds take precedence over others, the newest checkpoint over the best.
    """
    if names is not None:
        known = {e.name: e for e in evaluations}
        unknown = [n for n in names if n not in known]
        if unknown:
            raise DataError(f"report: no evaluation named {unknown[0]!r}; there are {sorted(known)}")
        return [known[n] for n in names]
    chosen = [e for e in evaluations if e.rows.split == "test"] or list(evaluations)
    chosen = [e for e in chosen if not e.aside] or chosen
    if not chosen:
        return []
    first = next((e for e in chosen if "base" in e.name), chosen[0])
    others = [e for e in chosen if e is not first and _comparable(first.rows, e.rows)]
    return [first, others[-1]] if others else [chosen[-1]]


def _compared(runs: Sequence[Run], evaluations: Sequence[Evaluation]) -> Sequence[Evaluation]:
    """Return the evaluations to choose the headline from: all of two runs; of more, those of one and of its base.

    The first and the last of more runs are no pair: they may be training seeds of two algorithms.

    Args:
        evaluations: of all `runs`, in their order.
    """
    owners = [run for run in runs for _ in run.evaluations]
    evaluated = [run for run in runs if run.evaluations]
    if len(evaluated) <= 2:
        return evaluations
    pairs = [(run, base) for run in evaluated for base in evaluated if run.base == base.path.resolve()]
    return [e for e, owner in zip(evaluations, owners, strict=True) if owner in pairs[0]] if len(pairs) == 1 else []


def _comparable(a: EpisodeTable, b: EpisodeTable) -> bool:
    return set(a.seeds) == set(b.seeds) and all(set(a.frame[c]) == set(b.frame[c]) for c in ("env", "digest"))


def _meta(runs: Sequence[Run], evaluations: Sequence[Evaluation]) -> list[str]:
    tasks = sorted({t for e in evaluations for t in set(e.rows.frame["task"]) if t})
    commits = sorted({str(run.provenance["commit"]) for run in runs if run.provenance.get("commit")})
    return [
        *(f"“{t}”" for t in tasks[:3]), "run " + ", ".join(run.name for run in runs), *(f"commit {c}" for c in commits),
        datetime.now(UTC).strftime("%-d %B %Y"),
    ]  # fmt: skip


_KINDS = ("regression", "improvement", "pair", "failure", "other", "success")  # in the order of the page


class Tile(NamedTuple):
    """One film of the page."""

    kind: str  # one of _KINDS
    pair: bool  # two policies side by side
    outcomes: list[str]
    caption: str
    data: str  # the file in base64


def films(videos: Sequence[Video], *, max_bytes: int) -> tuple[list[Tile], str]:
    """Return the films that fit into `max_bytes`, regressions first, and a sentence about the others."""

    def rank(video: Video) -> int:
        return _KINDS.index(_kind(video))

    # In turns over the folders, so that a tight budget does not spend itself on one policy's films.
    ordered: list[Video] = []
    for _, group in itertools.groupby(sorted(videos, key=rank), key=rank):
        folders: dict[Path, list[Video]] = {}
        for video in group:
            folders.setdefault(video.path.parent, []).append(video)
        ordered += [v for turn in itertools.zip_longest(*folders.values()) for v in turn if v is not None]
    tiles, left_out, used = [], [], 0
    for video in ordered:
        size = video.path.stat().st_size
        if used + size > max_bytes:
            left_out.append(video.path.name)
            continue
        used += size
        which = f"seed {video.seed}" if video.seed is not None else video.path.stem
        tiles.append(
            Tile(
                kind=_kind(video),
                pair=video.kind == "pair",
                outcomes=[o for o in video.outcome.split(" | ") if o],
                caption=" · ".join(part for part in (video.label, which) if part),
                data=base64.b64encode(video.path.read_bytes()).decode(),
            )
        )
    if not left_out:
        return tiles, ""
    more = " …" if len(left_out) > 6 else ""
    return tiles, f" {len(left_out)} films did not fit into this page: {', '.join(left_out[:6])}{more}."


def _kind(video: Video) -> str:
    if video.kind == "pair":
        return {"success | failure": "regression", "failure | success": "improvement"}.get(video.outcome, "pair")
    return video.outcome if video.outcome in _KINDS else "other"

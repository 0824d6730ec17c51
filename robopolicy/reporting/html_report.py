"""Write a report as one self-contained HTML page that needs no network."""

from __future__ import annotations

import importlib.resources
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from robopolicy.core.errors import DataError
from robopolicy.evaluation.compare import compare
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.reporting import plots, sections
from robopolicy.reporting.films import films
from robopolicy.reporting.imagination import imagination
from robopolicy.reporting.run_reader import Evaluation, Run, read_run
from robopolicy.utils.atomic import write_atomically

# No origin is allowed: nothing outside the file can load, and nothing can be sent.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; media-src data:; "
    "base-uri 'none'; form-action 'none'"
)


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
        run_dirs: in the order to show. Others are compared with the first evaluation that has "base" in its name, or
            with the first of all.
        names: the two evaluations of the headline (see run_dir.Evaluation); picked when None.
        max_video_mib: films beyond this are left out and named, those that matter least first.

    Raises:
        DataError: a run directory or a named evaluation does not exist.
    """
    paths = [run_dirs] if isinstance(run_dirs, str | Path) else list(run_dirs)
    runs = [read_run(path) for path in paths]
    evaluations = _named_apart(runs)
    pair = _headline_pair(evaluations, names)
    comparison = compare(pair[0].rows, pair[1].rows, names=(pair[0].name, pair[1].name)) if len(pair) == 2 else None
    title = title or _title(runs, evaluations)
    body = [
        sections.headline(pair, comparison, others=len(evaluations) - len(pair)),
        sections.paired(pair, comparison),
        sections.checkpoints(evaluations, pair),
        sections.learning(runs, pair),
        imagination(runs),
        films([v for run in runs for v in run.videos], max_bytes=int(max_video_mib * 2**20)),
        sections.episodes(evaluations, max_rows),
        sections.reproduce(runs),
        sections.missing(runs),
    ]
    return write_atomically(out, page(title, _meta(runs, evaluations), "\n".join(part for part in body if part)))


def page(title: str, meta: str, body: str) -> str:
    """Return the whole of a page around `body`; `meta` and `body` are HTML, `title` is text."""
    text = _asset("report.html")
    for mark, value in {
        "POLICY": _POLICY,
        "STYLE": _asset("report.css") + plots.STYLE,
        "TITLE": escape(title),
        "META": meta,
        "BODY": body,
        "SCRIPT": _asset("report.js"),
    }.items():
        text = text.replace(f"<!--{mark}-->", value)
    return text


def _asset(name: str) -> str:
    return (importlib.resources.files("robopolicy.reporting") / "assets" / name).read_text(encoding="utf-8")


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


def _comparable(a: EpisodeTable, b: EpisodeTable) -> bool:
    return set(a.seeds) == set(b.seeds) and all(set(a.frame[c]) == set(b.frame[c]) for c in ("env", "digest"))


def _title(runs: Sequence[Run], evaluations: Sequence[Evaluation]) -> str:
    envs = sorted({str(e.rows.frame["env"].iloc[0]) for e in evaluations})
    return ", ".join(envs) or ", ".join(run.name for run in runs)


def _meta(runs: Sequence[Run], evaluations: Sequence[Evaluation]) -> str:
    tasks = sorted({t for e in evaluations for t in set(e.rows.frame["task"]) if t})
    parts = [f"“{escape(t)}”" for t in tasks[:3]]
    parts += [escape("run " + ", ".join(run.name for run in runs))]
    commits = {str(run.provenance["commit"]) for run in runs if run.provenance.get("commit")}
    parts += [f"commit {escape(c)}" for c in sorted(commits)]
    parts.append(datetime.now(UTC).strftime("%-d %B %Y"))
    return " <i>·</i> ".join(parts)

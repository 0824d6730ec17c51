"""Write one self-contained page about the stages of a pipeline (template assets/pipeline.html)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from robopolicy.evaluation.compare import Comparison, compare, format_p
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.reporting import plots
from robopolicy.reporting.curves import learning_curves, legend_of
from robopolicy.reporting.films import films
from robopolicy.reporting.run_reader import read_run
from robopolicy.reporting.templates import render
from robopolicy.utils.atomic import write_atomically

_MOST_BYTES = 16 * 2**20  # of all films


@dataclass(frozen=True)
class StageResult:
    """A stage of a pipeline; `run` and `rows` where it made a policy, `rows` on the seeds of all stages.

    `previous`: name of the stage whose policy it began with. `env_steps`: primitive ones. `seconds`: of the stage.
    """

    name: str
    run: Path | None = None
    rows: EpisodeTable | None = None
    previous: str | None = None
    env_steps: int = 0
    seconds: float = 0.0
    accepted: bool = True
    note: str = ""


def comparisons(stages: Sequence[StageResult]) -> dict[str, Comparison]:
    """Compare each policy with the one that its stage began with, on the same episodes; {stage: comparison}."""
    rows = {stage.name: stage.rows for stage in stages if stage.rows is not None}
    return {
        s.name: compare(rows[s.previous], s.rows, names=(s.previous, s.name))
        for s in stages if s.rows is not None and s.previous in rows
    }  # fmt: skip


def write_pipeline_report(
    stages: Sequence[StageResult], out: Path, *, title: str, command: str, compared: Path | None = None
) -> Path:
    """Write the page: success of every policy, env steps and minutes of every stage, films, and the learning curves.

    Args:
        compared: folder of the comparison, whose films are shown.

    Raises:
        DataError: policies were evaluated on different episodes.
    """
    policies = [stage for stage in stages if stage.rows is not None]
    runs = [read_run(s.run) for s in policies if s.run is not None and (s.run / "metrics.jsonl").is_file()]
    whiskers = [_whisker(stage, stage.rows) for stage in policies if stage.rows is not None]
    videos = read_run(compared).videos if compared is not None and compared.is_dir() else []
    tiles, left_out = films(videos, max_bytes=_MOST_BYTES)
    values: dict[str, Any] = {
        "title": title, "meta": [f"{len(stages)} stages", datetime.now(UTC).strftime("%-d %B %Y")], "stages": stages,
        "compared": comparisons(stages), "ends": [policies[0], _last(policies)] if policies else [],
        "rates": plots.intervals_of_page(whiskers), "curves": learning_curves(runs, legend=False),
        "legend": legend_of(runs), "format_p": format_p, "tiles": tiles, "left_out": left_out,
        "env_steps": sum(s.env_steps for s in stages), "seconds": sum(s.seconds for s in stages), "command": command,
    }  # fmt: skip
    return write_atomically(out, render("pipeline.html", **values))


def _last(policies: Sequence[StageResult]) -> StageResult:
    """Return the newest policy that was accepted."""
    return [stage for stage in policies if stage.accepted or stage is policies[0]][-1]


def _whisker(stage: StageResult, rows: EpisodeTable) -> plots.Whisker:
    name = stage.name if stage.accepted else f"{stage.name} (not accepted)"
    return plots.rate_whisker(name, rows.success_rate(), len(rows), "c1" if stage.accepted else "c0")

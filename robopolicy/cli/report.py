"""`robopolicy report`: write one self-contained page about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robopolicy.config.instantiate import build
from robopolicy.config.schema import Count, Node, Positive
from robopolicy.core.errors import ConfigError, RobopolicyError
from robopolicy.reporting.html_report import write_report
from robopolicy.utils.threads import set_threads


def report(
    *,
    run_dir: Path | tuple[Path, ...],
    out: Path | None = None,
    title: str = "",
    max_video_mib: Positive = 16.0,
    world_model_report: Node | None = None,
    threads: Count | None = None,
) -> Path:
    """Write a self-contained page about one run or several.

    Args:
        world_model_report: node of the report on runs of a world model or in imagination; None: without it.
        run_dir: run directory, or several.
        out: file of the page; None: report.html in the first run directory.
        title: of the page.
        max_video_mib: bound of all films in the page, MiB.
        threads: of torch; None: torch's choice.
    """
    set_threads(threads)
    runs = [run_dir] if isinstance(run_dir, Path) else list(run_dir)
    if not runs:
        raise ConfigError("run_dir: expected at least one run directory, found []")
    if recordings := [run for run in runs if run.is_dir() and any(run.glob("*.mcap"))]:
        raise ConfigError(
            f"run_dir={recordings[0]}: expected the folder of a training run, found recordings of a deployment. "
            f"`robopolicy replay recording={recordings[0]}` reports on them"
        )
    if world_model_report is not None:
        _write_world_model_reports(world_model_report, runs)
    path = write_report(runs, out or runs[0] / "report.html", title=title, max_video_mib=max_video_mib)
    print(f"report: {path}")
    return path


def _write_world_model_reports(node: dict[str, Any], runs: list[Path]) -> None:
    for run in runs:
        try:
            build(node, "world_model_report", run_dir=run)
        except RobopolicyError as error:  # A report is most useful after a failure.
            print(f"{run}: without a world model report: {error}")

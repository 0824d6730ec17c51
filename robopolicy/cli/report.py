"""`robopolicy report`: one self-contained page about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robopolicy.config.instantiate import build
from robopolicy.config.schema import Node, Positive
from robopolicy.core.errors import ConfigError, RobopolicyError
from robopolicy.reporting.html_report import write_report


def report(
    *,
    run_dir: Path | tuple[Path, ...],
    out: Path | None = None,
    title: str = "",
    max_video_mib: Positive = 16.0,
    world_model_report: Node | None = None,
) -> Path:
    """Write a self-contained page about one run or several.

    Args:
        world_model_report: node of the report on runs of a world model or in imagination; None: without it.
    """
    runs = [run_dir] if isinstance(run_dir, Path) else list(run_dir)
    if not runs:
        raise ConfigError("run_dir: expected at least one run directory, found []")
    if world_model_report is not None:
        _write_world_model_reports(world_model_report, runs)
    path = write_report(runs, out or runs[0] / "report.html", title=title, max_video_mib=max_video_mib)
    print(f"report: {path}")
    return path


def _write_world_model_reports(node: dict[str, Any], runs: list[Path]) -> None:
    for run in runs:
        try:
            build(node, "world_model_report", run_dir=run)
        except RobopolicyError as error:  # a report is wanted most when something went wrong
            print(f"{run}: without a world model report: {error}")

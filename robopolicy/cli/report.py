"""`robopolicy report`: write one self-contained page about runs."""

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
    look: Node | None = None,
) -> Path:
    """Write a self-contained page about one run or several.

    look: node of what looks at runs of a world model or in imagination, before the page is written; None: nobody.
    """
    runs = [run_dir] if isinstance(run_dir, Path) else list(run_dir)
    if not runs:
        raise ConfigError("run_dir: expected at least one run directory, found []")
    if look is not None:
        _look(look, runs)
    path = write_report(runs, out or runs[0] / "report.html", title=title, max_video_mib=max_video_mib)
    print(f"report: {path}")
    return path


def _look(node: dict[str, Any], runs: list[Path]) -> None:
    for run in runs:
        try:
            build(node, "look", run_dir=run)
        except RobopolicyError as error:  # A report is most useful after a failure.
            print(f"{run}: nothing of its world is shown: {error}")

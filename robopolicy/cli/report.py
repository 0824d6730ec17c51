"""`robopolicy report`: write one self-contained page about a run, several, or a sweep."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from robopolicy.config.instantiate import build
from robopolicy.config.schema import Count, Node, Positive
from robopolicy.core.command_line import argument
from robopolicy.core.errors import ConfigError, DataError, RobopolicyError
from robopolicy.core.untrusted import read_json
from robopolicy.reporting.html_report import write_report
from robopolicy.reporting.run_reader import PIECES
from robopolicy.reporting.settings import grouped, read_members, runs_below
from robopolicy.reporting.sweep_page import write_sweep_report
from robopolicy.runs.stages import FILE as STAGES
from robopolicy.utils.provenance import PROVENANCE
from robopolicy.utils.threads import set_threads

_OF_A_RUN = (*PIECES, "checkpoints", "episodes*", "*/job.json", "*/config.yaml")  # or of a folder of runs


def report(
    *,
    run_dir: Path | tuple[Path, ...],
    out: Path | None = None,
    title: str = "",
    max_video_mib: Positive = 16.0,
    pooled: bool | None = None,
    world_model_report: Node | None = None,
    threads: Count | None = None,
) -> Path:
    """Write a self-contained page about one run or several, or about the settings of a sweep.

    Args:
        world_model_report: node of the report on runs of a world model or in imagination; None: without it.
        run_dir: run directory, or several; the folder of a sweep stands for the runs in it.
        out: file of the page; None: report.html in the first run directory.
        title: of the page.
        max_video_mib: bound of all films in the page, MiB.
        pooled: pool training seeds for each setting; None: for a sweep, and for several runs of which some share a
            setting.
        threads: of torch; None: torch's choice.
    """
    set_threads(threads)
    runs = [run_dir] if isinstance(run_dir, Path) else list(run_dir)
    if not runs:
        raise ConfigError("run_dir: expected at least one run directory, found []")
    if recordings := [run for run in runs if run.is_dir() and any(run.glob("*.mcap"))]:
        raise ConfigError(
            f"run_dir={recordings[0]}: expected the folder of a training run, found recordings of a deployment. "
            f"`robopolicy replay {argument('recording', recordings[0])}` reports on them"
        )
    if strange := [run for run in runs if run.is_dir() and not any(True for name in _OF_A_RUN for _ in run.glob(name))]:
        raise ConfigError(f"run_dir={strange[0]}: is no run directory, which holds {', '.join(PIECES)}. Give one")
    if out is None and (runs[0] / STAGES).is_file():
        raise ConfigError(
            f"run_dir={runs[0]}: is the folder of a pipeline, whose command writes its report.html. Repeat that, "
            "name a stage in it, or give out=<file>"
        )
    below = [path for run in runs for path in runs_below(run) or [run]]
    place = out or runs[0] / "report.html"
    if place.is_dir():
        raise ConfigError(f"out={place}: is a folder; give a file, e.g. {argument('out', place / 'report.html')}")
    if pooled or (pooled is None and (below != runs or _share_settings(runs))):
        return _write_pooled(below, place, title, runs[0] if below != runs else None)
    runs = below
    if world_model_report is not None:
        _write_world_model_reports(world_model_report, runs)
    path = write_report(runs, place, title=title, max_video_mib=max_video_mib)
    print(f"report: {path}")
    return path


def _share_settings(runs: list[Path]) -> bool:
    """Return whether some of more than two runs differ in their training seed alone."""
    return len(runs) > 2 and any(len({m.seed for m in part}) > 1 for part in grouped(read_members(runs)).values())


def _write_pooled(runs: list[Path], out: Path, title: str, sweep: Path | None) -> Path:
    command = ""
    if sweep is not None and not (sweep / PROVENANCE).is_symlink():
        with contextlib.suppress(DataError):  # A page is most useful after a failure.
            command = str(read_json(sweep / PROVENANCE, error=DataError).get("command", ""))
    title = title or (sweep.absolute().name if sweep is not None else "")
    path, figures = write_sweep_report(runs, out, title=title, command=command)
    print(f"{figures.text()}\nreport: {path}")
    return path


def _write_world_model_reports(node: dict[str, Any], runs: list[Path]) -> None:
    for run in runs:
        try:
            build(node, "world_model_report", run_dir=run)
        except RobopolicyError as error:  # A report is most useful after a failure.
            print(f"{run}: without a world model report: {error}")

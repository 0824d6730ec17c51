"""Show what a run learned from: its base's losses, and the dataset."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from robopolicy.core.errors import RobopolicyError
from robopolicy.datasets.files import visible
from robopolicy.datasets.source import DatasetInfo
from robopolicy.reporting.curves import training_charts
from robopolicy.reporting.run_reader import Run, read_run

_MOST_BYTES = 8 * 2**20  # of a film of demonstrations


class Imitation(NamedTuple):
    """One base and the dataset that it or its refinement learned from."""

    name: str
    facts: dict[str, str]
    charts: list[str]  # SVG
    film: str  # base64; "" where the dataset has no film that is small enough
    camera: str


def imitations(runs: Sequence[Run]) -> list[Imitation]:
    """Return the imitation behind each of `runs`, once each; a base that is among `runs` has its charts there.

    So where only the dataset is left to show, it is shown once.
    """
    shown, found = {run.path.resolve() for run in runs}, dict[tuple[Path | None, Path | None], Imitation]()
    for run in runs:
        base, data = run.base, run.demonstrations
        if (base is None and data is None) or (base, data) in found:
            continue
        charts = list[str]()
        if base is not None and base not in shown:
            with contextlib.suppress(RobopolicyError):  # A page is most useful after a failure.
                charts = training_charts([read_run(base)], limit=3)
        facts, film, camera = _demonstrations(data) if data is not None else ({}, "", "")
        repeated = not charts and any(data == other for _, other in found)  # of a base that is among the runs
        if (charts or facts) and not repeated:
            found[base, data] = Imitation(base.name if base is not None else run.name, facts, charts, film, camera)
    return list(found.values())


def _demonstrations(path: Path) -> tuple[dict[str, str], str, str]:
    """Return facts about a dataset, its first small film in base64 and that film's camera; empty for other folders."""
    try:
        source = DatasetInfo.open(path)
    except RobopolicyError:
        return {}, "", ""
    info = source.info
    seconds = info.total_frames / info.fps
    facts = {
        "dataset": path.name,
        "episodes": f"{info.total_episodes}, {seconds:.0f} s in all at {info.fps:g} Hz",
        "an episode": f"{info.total_frames / max(1, info.total_episodes):.0f} frames on average",
    }
    for file in visible(sorted(path.glob("videos/**/*.mp4"))):
        if file.is_file() and not file.is_symlink() and file.stat().st_size <= _MOST_BYTES:
            return facts, base64.b64encode(file.read_bytes()).decode(), file.relative_to(path / "videos").parts[0]
    return facts, "", ""

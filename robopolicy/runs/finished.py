"""Mark a training that has ended: pages of many runs count no half-trained one."""

from __future__ import annotations

import json
from pathlib import Path

from robopolicy.core.errors import RobopolicyError
from robopolicy.core.untrusted import read_json
from robopolicy.utils.atomic import write_atomically
from robopolicy.utils.storage import checkpoints_in

FINISHED = "finished.json"


def write_finished(run_dir: Path) -> None:
    """Write that the training of a run has ended, with its newest checkpoint."""
    if (newest := _newest(run_dir)) is not None:
        write_atomically(run_dir / FINISHED, json.dumps({"checkpoint": newest}) + "\n")


def has_finished(run_dir: Path) -> bool:
    """Return whether the training of a run has ended, and did not go on since; its checkpoints may be gone."""
    try:
        last = str(read_json(run_dir / FINISHED)["checkpoint"])
    except (RobopolicyError, KeyError):
        return False
    step = last.removeprefix("step_").partition("_")[0]
    evaluated = [file.stem for file in (run_dir / "evaluations").glob("*.parquet") if file.stem.isdigit()]
    older = step.isdigit() and all(int(at) <= int(step) for at in evaluated)
    return _newest(run_dir) in (None, last) and older


def went_on(run_dir: Path) -> bool:
    """Return whether a training that had ended went on since; older ones did not write that they ended."""
    return (run_dir / FINISHED).exists() and not has_finished(run_dir)


def _newest(run_dir: Path) -> str | None:
    return max((path.name for path in checkpoints_in(run_dir / "checkpoints")), default=None)

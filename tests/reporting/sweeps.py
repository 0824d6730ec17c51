"""Folders of runs as a sweep leaves them, without a training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from robopolicy.runs.finished import write_finished
from robopolicy.runs.run_dir import CONFIG, dump
from robopolicy.runs.sweep_job import JobState
from tests.evaluation.points import make_rows


def write_run(
    run_dir: Path, config: Mapping[str, Any], *, rate: float = 0.5, steps: tuple[int, ...] = (0, 100, 200),
    test: float | None = None, episodes: int = 50, finished: bool = True,
) -> Path:  # fmt: skip
    """Write a run whose success rises to `rate`; `test`: success on test episodes, where it was evaluated on them."""
    run_dir.mkdir(parents=True)
    (run_dir / CONFIG).write_text(dump({**config, "run_dir": str(run_dir)}))
    (run_dir / "evaluations").mkdir()
    for i, step in enumerate(steps):
        reached = round(episodes * rate * i / max(1, len(steps) - 1))
        rows = make_rows([e < reached for e in range(episodes)], split=1)
        rows.save(run_dir / "evaluations" / f"{step:09d}.parquet")
        with (run_dir / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "wall_s": step / 10, "eval/success_rate": reached / episodes}) + "\n")
    if finished:
        (run_dir / "checkpoints" / f"step_{steps[-1]:010d}").mkdir(parents=True)
        write_finished(run_dir)
    if test is not None:
        make_rows([e < round(episodes * test) for e in range(episodes)]).save(run_dir / "episodes.csv")
    return run_dir


def write_job(folder: Path, values: Mapping[str, str], config: Mapping[str, Any], **run: Any) -> Path:
    """Write a finished run of a sweep, named after its values."""
    run_dir = write_run(folder / "-".join(f"{k}_{v}" for k, v in values.items()), config, **run)
    JobState(values=dict(values), state="finished").save(run_dir)
    return run_dir

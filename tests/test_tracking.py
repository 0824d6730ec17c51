"""tracking.py: nothing logged twice, nothing torn, and wandb cannot end a run."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from robopolicy import tracking
from robopolicy.tracking import Tracker


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def test_every_line_has_step_time_and_finite_numbers(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path, wandb="disabled")
    tracker.log({"loss": 0.5, "bad": math.nan, "worse": math.inf}, 10)
    assert [{k: v for k, v in row.items() if k != "wall_s"} for row in rows(tmp_path)] == [
        {"step": 10, "loss": 0.5, "bad": None, "worse": None}
    ]
    assert rows(tmp_path)[0]["wall_s"] >= 0


def test_resume_drops_what_will_be_logged_again_and_time_goes_on(tmp_path: Path) -> None:
    first = Tracker(tmp_path, wandb="disabled")
    first._began -= 100.0  # it has run for 100 s
    for step in (10, 20, 30):
        first.log({"loss": step}, step)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 40, "lo')  # killed amid a line
    second = Tracker(tmp_path, wandb="disabled")
    second.rewind(20)
    second.log({"loss": 31.0}, 30)
    assert [(r["step"], r["loss"]) for r in rows(tmp_path)] == [(10, 10), (20, 20), (30, 31.0)]
    assert rows(tmp_path)[-1]["wall_s"] >= 100.0
    second.rewind(None)  # no checkpoint: everything is logged again
    assert rows(tmp_path) == []


def test_wandb_offline_run_lies_in_the_run_directory_and_keeps_its_id(tmp_path: Path) -> None:
    code = (
        "import sys; from robopolicy.tracking import Tracker\n"
        "t = Tracker(sys.argv[1], wandb='offline'); t.log({'loss': 1.0}, 1); t.close()\n"
    )
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, text=True,
            env={**os.environ, "WANDB_MODE": "offline"},
        )  # fmt: skip
        assert "wandb failed" not in done.stderr
    runs = list((tmp_path / "wandb").glob("offline-run-*"))
    ident = (tmp_path / "wandb_id").read_text().strip()
    assert runs
    assert all(run.name.endswith(ident) for run in runs)
    assert len(rows(tmp_path)) == 2


def test_wandb_failure_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Any:
        raise RuntimeError("no network")

    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(tracking, "_wandb", broken)
    tracker = Tracker(tmp_path, wandb="online")
    tracker.log({"loss": 1.0}, 1)
    tracker.close()
    assert "no network" in caplog.text
    assert len(rows(tmp_path)) == 1


def test_plain_lines_are_few_and_show_rate_eta_and_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(float(t) for t in range(1000))
    monkeypatch.setattr(tracking.time, "monotonic", lambda: next(clock))
    out = io.StringIO()
    tracker = Tracker(console=Console(file=out, force_terminal=False))
    with tracker.progress(100, "BC") as bar:
        for step in range(11):
            bar.update(step, loss=0.25)
    lines = out.getvalue().splitlines()
    assert len(lines) == 3  # two in 11 s, and the end
    assert lines[0].startswith("BC: 4/100, 1/s, 5 s, 120 s left")
    assert all("loss 0.25" in line for line in lines)


def test_bar_in_a_terminal_counts_its_rate_from_where_the_run_resumed() -> None:
    out = io.StringIO()
    tracker = Tracker(console=Console(file=out, force_terminal=True, width=160))
    with tracker.progress(100, "BC") as bar:
        bar.update(90)
        bar.update(95, loss=0.25)
    text = out.getvalue()
    assert "95/100" in text
    assert "loss 0.25" in text


def test_full_disk_loses_a_line_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tracker = Tracker(tmp_path, wandb="disabled")
    tracker.path = Path("/dev/full")
    tracker.log({"loss": 1.0}, 1)
    assert "a line was lost" in caplog.text

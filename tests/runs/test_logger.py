"""metrics.jsonl: nothing logged twice, nothing torn; warnings become notes."""

from __future__ import annotations

import io
import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from robopolicy.runs import logger
from robopolicy.runs.logger import Tracker


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


def test_plain_lines_are_few_and_show_rate_eta_and_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(float(t) for t in range(1000))
    monkeypatch.setattr(logger.time, "monotonic", lambda: next(clock))
    out = io.StringIO()
    tracker = Tracker(console=Console(file=out, force_terminal=False))
    with tracker.progress(100, "BC") as bar:
        for step in range(11):
            bar.update(step, loss=0.25)
    lines = out.getvalue().splitlines()
    assert len(lines) == 3  # two in 11 s, and the end
    assert lines[0].startswith("BC: 4/100, 0.8/s, 5 s, 120 s left")
    assert all("loss 0.25" in line for line in lines)


def test_slow_rates_are_not_shown_as_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(logger.time, "monotonic", lambda: float(next(clock)))
    out = io.StringIO()
    with Tracker(console=Console(file=out, force_terminal=False)).progress(5_000, "BC") as bar:
        for step in (0, 4, 5_000):
            bar.update(step)
    assert [line.split(", ")[1] for line in out.getvalue().splitlines()] == ["–/s", "0.2/s", "167/s"]


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


class Kept:
    """A sink that keeps what it is given, and fails where it is told to."""

    name = "kept"

    def __init__(self, *, fails: str = "") -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.fails = fails

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kw: Any) -> None:
            if name == self.fails:
                raise RuntimeError("gone")
            self.calls.append((name, *args))

        return call


def test_a_sink_that_fails_is_left_and_named_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker, good, bad = Tracker(tmp_path, wandb="disabled", quiet=True), Kept(), Kept(fails="video")
    tracker.sinks = [bad, good]
    tracker.video("films/0", "x.mp4", 1)
    tracker.log({"loss": 1.0}, 2)
    tracker.close()
    assert [call[0] for call in good.calls] == ["video", "log", "close"] and bad.calls == []
    assert caplog.text.count("RuntimeError: gone") == 2 and len(rows(tmp_path)) == 1


def test_notes_are_bounded_and_end_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept()
    monkeypatch.setattr(logger, "TensorBoardRun", lambda *args, **kw: kept)
    tracker = Tracker(tmp_path, wandb="disabled", tensorboard=True, quiet=True)
    for _ in range(150):
        logging.getLogger("robopolicy.real").warning("x" * 5_000)
    logging.getLogger("elsewhere").warning("not ours")
    notes = [call for call in kept.calls if call[0] == "note"]
    assert len(notes) == 100 and all(len(text) == 1_000 for _, text, _ in notes)
    tracker.close()
    kept.calls.clear()
    logging.getLogger("robopolicy.real").warning("after the run")
    assert kept.calls == []


def test_a_group_is_that_of_the_node_or_else_of_the_command() -> None:
    assert logger.grouped({"_target_": "tracker"}, "all", "one") == {
        "_target_": "tracker",
        "group": "all",
        "name": "one",
    }
    assert logger.grouped({"_target_": "tracker", "group": "mine"}, "all")["group"] == "mine"
    assert logger.grouped({"_target_": "my_tracker"}, "all") == {"_target_": "my_tracker"}


def test_no_environment_switches_wandb_on_for_another_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(logger, "WandbRun", lambda folder, mode, **_: started.append(mode))
    monkeypatch.setattr(Tracker, "_start", lambda self, name, make: make())
    monkeypatch.setenv("WANDB_MODE", "offline")
    Tracker(tmp_path, wandb="disabled").close()
    assert started == []
    Tracker(tmp_path, wandb="online").close()
    assert started == ["offline"]

"""tracking.py: nothing logged twice, nothing torn, and wandb cannot end a run."""

from __future__ import annotations

import io
import json
import math
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from robopolicy.runs import logger
from robopolicy.runs.logger import Tracker, TrackerError, auto_mode
from robopolicy.world_models.evaluation.world_model_report import write_world_model_report


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


def machine(tmp_path: Path, **env: str) -> dict[str, str]:
    """The environment of a fresh install: no wandb setting, no login, no network."""
    (tmp_path / "home").mkdir(exist_ok=True)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_") and k != "NETRC"}
    return {**kept, "HOME": str(tmp_path / "home"), "WANDB_BASE_URL": "http://127.0.0.1:9", **env}


def python(code: str, *arguments: str | Path, env: dict[str, str], cwd: Path) -> str:
    """Run `code` there; what it says on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], check=False, capture_output=True, text=True, env=env,
        cwd=cwd, stdin=subprocess.DEVNULL, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr


def logged(run_dir: Path) -> list[dict[str, Any]]:
    """Every row of the offline runs in a run directory, read by wandb's own reader."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    history = []
    for path in sorted(run_dir.glob("wandb/offline-run-*/run-*.wandb")):
        store = DataStore()
        store.open_for_scan(str(path))
        while (data := store.scan_data()) is not None:
            record = wandb_internal_pb2.Record.FromString(data)
            if record.WhichOneof("record_type") == "history":
                history.append({i.key or i.nested_key[0]: json.loads(i.value_json) for i in record.history.item})
    return history


def same_numbers(run_dir: Path) -> bool:
    """wandb holds what metrics.jsonl holds."""
    seen = [{k: v for k, v in row.items() if k == "wall_s" or not k.startswith("_")} for row in logged(run_dir)]
    return bool(seen) and seen == [{k: v for k, v in row.items() if k != "step"} for row in rows(run_dir)]


TRAIN = """
import sys
from robopolicy.cli.main import main
assert main(["demos", "task=reach", "episodes=2", "num_envs=2", "out=data"]) == 0
sys.exit(main(["train", "policy=gaussian", "dataset=data", "run_dir=run", "loop.steps=4", "loop.batch_size=4",
               "+loop.log_every=2", "validation_episodes=0"]))
"""
LOG = """
import sys
from robopolicy.runs.logger import Tracker
for mode in sys.argv[2:]:
    t = Tracker(sys.argv[1], wandb=mode)
    t.log({'loss': 1.0}, 1)
    t.close()
"""


@pytest.mark.xdist_group("lerobot")
def test_a_training_on_a_fresh_install_is_logged_to_wandb_offline(tmp_path: Path) -> None:
    python(TRAIN, env=machine(tmp_path), cwd=tmp_path)
    assert [row["step"] for row in rows(tmp_path / "run")] == [2, 4]
    assert same_numbers(tmp_path / "run")
    assert any(key.startswith("train/") for key in logged(tmp_path / "run")[0])
    assert any(path.is_symlink() for path in (tmp_path / "run" / "wandb").rglob("*")), "wandb's own, into its cache"
    assert write_world_model_report(run_dir=tmp_path / "run") is None, "it is read all the same; no world model in it"


def test_offline_runs_keep_their_id_and_online_without_a_login_is_refused_not_asked_for(tmp_path: Path) -> None:
    said = python(LOG, tmp_path, "offline", "offline", "online", env=machine(tmp_path), cwd=tmp_path)
    assert "TrackerError: wandb=online" in said
    runs = list((tmp_path / "wandb").glob("offline-run-*"))
    ident = (tmp_path / "wandb_id").read_text().strip()
    assert runs
    assert all(ident in run.name for run in runs)  # two in one second get a number of their own
    assert len(rows(tmp_path)) == 3


@pytest.fixture
def refusing_server() -> Iterator[str]:
    """The address of a server that knows no key."""

    class Refuse(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.end_headers()

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refuse) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(("there", "error"), [(False, "TrackerError: wandb=online"), (True, "CommError")])
def test_a_run_that_cannot_be_online_is_logged_offline(
    tmp_path: Path, refusing_server: str, there: bool, error: str
) -> None:
    server = {"WANDB_BASE_URL": refusing_server} if there else {}
    env = machine(tmp_path, WANDB_API_KEY="a" * 40, **server)
    assert error in python(LOG, tmp_path / "run", "auto", env=env, cwd=tmp_path)
    assert same_numbers(tmp_path / "run")


@pytest.mark.parametrize(
    ("setting", "logged_in", "mode"),
    [("online", False, "offline"), ("online", True, "online"), ("offline", True, "offline"),
     ("disabled", True, "disabled")],
)  # fmt: skip
def test_auto_follows_wandbs_own_settings_then_the_login(setting: str, logged_in: bool, mode: str) -> None:
    wandb = SimpleNamespace(
        setup=lambda: SimpleNamespace(settings=SimpleNamespace(mode=setting)),
        api=SimpleNamespace(is_authenticated=logged_in),
    )
    assert auto_mode(wandb) == mode


def test_online_needs_a_login_whose_server_answers(refusing_server: str) -> None:
    """An answer of any kind will do; without a login wandb would ask in the terminal."""
    settings = SimpleNamespace(settings=SimpleNamespace(base_url=refusing_server))
    wandb = SimpleNamespace(api=SimpleNamespace(is_authenticated=True), setup=lambda: settings)
    logger._check_online(wandb)
    wandb.api.is_authenticated = False
    with pytest.raises(TrackerError, match="wandb=online"):
        logger._check_online(wandb)


@pytest.mark.parametrize("kept", ["../../../elsewhere", "", "a" * 65, "abc123"])
def test_the_id_of_a_run_that_came_along_is_used_only_where_it_is_a_name(
    kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It becomes part of a path."""
    (tmp_path / "wandb_id").write_text(kept + "\n")
    ids: list[str] = []
    wandb = SimpleNamespace(Settings=lambda **_: None, init=lambda id, **_: ids.append(id))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(logger, "_wandb", lambda: wandb)
    Tracker(tmp_path, wandb="offline", quiet=True).close()
    assert len(ids) == 1 and re.fullmatch(r"[A-Za-z0-9]{1,64}", ids[0])
    assert (ids[0] == kept) == (kept == "abc123")


@pytest.mark.parametrize("by_settings", [False, True])  # as `wandb disabled` writes them
def test_disabled_wandb_is_not_started(by_settings: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    settings = SimpleNamespace(settings=SimpleNamespace(mode="disabled"))
    wandb = SimpleNamespace(Settings=dict, init=lambda **how: started.append(how), setup=lambda: settings)
    monkeypatch.setenv("WANDB_MODE", "" if by_settings else "disabled")
    monkeypatch.setattr(logger, "_wandb", lambda: wandb)
    tracker = Tracker(tmp_path)
    tracker.close()
    assert started == [] and tracker.failure == ""


def test_wandb_failure_is_a_warning_at_once_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Any:
        raise RuntimeError("no network")

    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(logger, "_wandb", broken)
    tracker = Tracker(tmp_path)
    assert caplog.text.count("RuntimeError: no network") == 1
    tracker.log({"loss": 1.0}, 1)
    tracker.close()
    assert caplog.text.count("RuntimeError: no network") == 2
    assert len(rows(tmp_path)) == 1


def test_runs_go_on_where_wandb_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    tracker = Tracker(tmp_path, quiet=True)
    tracker.log({"loss": 1.0}, 1)
    tracker.close()
    assert "tracker=local" in caplog.text and (tmp_path / "metrics.jsonl").is_file()


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

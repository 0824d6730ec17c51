"""wandb: offline runs on disk hold what metrics.jsonl holds, and wandb cannot end a run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from robopolicy.core.errors import TrackerError
from robopolicy.runs import wandb_run
from robopolicy.runs.logger import Tracker
from robopolicy.runs.wandb_run import auto_mode
from robopolicy.world_models.evaluation.world_model_report import write_world_model_report
from scripts.wandb_read_back import history, offline_files, records


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def machine(tmp_path: Path, **env: str) -> dict[str, str]:
    """The environment of a fresh install: no wandb setting, no login, no network."""
    (tmp_path / "home").mkdir(exist_ok=True)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_") and k != "NETRC"}
    return {**kept, "HOME": str(tmp_path / "home"), "WANDB_BASE_URL": "http://127.0.0.1:9", **env}


@pytest.fixture
def python(warm_python: list[str], tmp_path: Path) -> Callable[..., str]:
    """Run code as a program of its own; what it says on stderr."""

    def run(code: str, *arguments: str | Path, env: dict[str, str], cwd: Path) -> str:
        (program := tmp_path / "program.py").write_text(code)
        done = subprocess.run(
            [*warm_python, program, *map(str, arguments)], check=False, capture_output=True, text=True, env=env,
            cwd=cwd, stdin=subprocess.DEVNULL, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stderr

    return run


def logged(run_dir: Path) -> list[dict[str, Any]]:
    return history(offline_files(run_dir))


def same_numbers(run_dir: Path, axis: str = "step") -> bool:
    """wandb holds what metrics.jsonl holds."""
    seen = [{k: v for k, v in row.items() if k == "wall_s" or not k.startswith("_")} for row in logged(run_dir)]
    return bool(seen) and seen == [{axis if k == "step" else k: v for k, v in row.items()} for row in rows(run_dir)]


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


def test_a_training_on_a_fresh_install_is_logged_to_wandb_offline(python: Callable[..., str], tmp_path: Path) -> None:
    python(TRAIN, env=machine(tmp_path), cwd=tmp_path)
    assert [row["step"] for row in rows(tmp_path / "run")] == [2, 4]
    assert same_numbers(tmp_path / "run", axis="updates")
    assert any(key.startswith("train/") for key in logged(tmp_path / "run")[0])
    assert any(path.is_symlink() for path in (tmp_path / "run" / "wandb").rglob("*")), "wandb's own, into its cache"
    assert write_world_model_report(run_dir=tmp_path / "run") is None, "it is read all the same; no world model in it"


def test_offline_runs_keep_their_id_and_online_without_a_login_is_refused_not_asked_for(
    python: Callable[..., str], tmp_path: Path
) -> None:
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
    python: Callable[..., str], tmp_path: Path, refusing_server: str, there: bool, error: str
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
    wandb_run._check_online(wandb)
    wandb.api.is_authenticated = False
    with pytest.raises(TrackerError, match="wandb=online"):
        wandb_run._check_online(wandb)


def test_a_proxy_that_swallows_what_is_posted_is_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pages load, but wandb would wait for its answer without end."""

    class Swallow(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def do_POST(self) -> None:
            ended.wait(30)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    ended = threading.Event()
    monkeypatch.setattr(wandb_run, "_ANSWER_S", 0.2)
    with ThreadingHTTPServer(("127.0.0.1", 0), Swallow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        settings = SimpleNamespace(settings=SimpleNamespace(base_url=f"http://127.0.0.1:{server.server_port}"))
        wandb = SimpleNamespace(api=SimpleNamespace(is_authenticated=True), setup=lambda: settings)
        with pytest.raises(TrackerError, match=r"wandb=online: no answer from .*graphql"):
            wandb_run._check_online(wandb)
        ended.set()
        server.shutdown()


@pytest.mark.parametrize("kept", ["../../../elsewhere", "", "a" * 65, "abc123"])
def test_the_id_of_a_run_that_came_along_is_used_only_where_it_is_a_name(
    kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It becomes part of a path."""
    (tmp_path / "wandb_id").write_text(kept + "\n")
    ids: list[str] = []
    wandb = SimpleNamespace(Settings=lambda **_: None, init=lambda id, **_: ids.append(id))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(wandb_run, "import_wandb", lambda: wandb)
    Tracker(tmp_path, wandb="offline", quiet=True).close()
    assert len(ids) == 1 and re.fullmatch(r"[A-Za-z0-9]{1,64}", ids[0])
    assert (ids[0] == kept) == (kept == "abc123")


@pytest.mark.parametrize("by_settings", [False, True])  # as `wandb disabled` writes them
def test_disabled_wandb_is_not_started(by_settings: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    settings = SimpleNamespace(settings=SimpleNamespace(mode="disabled"))
    wandb = SimpleNamespace(Settings=dict, init=lambda **how: started.append(how), setup=lambda: settings)
    monkeypatch.setenv("WANDB_MODE", "" if by_settings else "disabled")
    monkeypatch.setattr(wandb_run, "import_wandb", lambda: wandb)
    tracker = Tracker(tmp_path)
    tracker.close()
    assert started == [] and tracker.failure == ""


def test_wandb_failure_is_a_warning_at_once_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Any:
        raise RuntimeError("no network")

    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(wandb_run, "import_wandb", broken)
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


LOOP = """
import sys
import time
from pathlib import Path
import numpy as np
from robopolicy.evaluation.mp4 import Mp4Writer
from robopolicy.runs.logger import Tracker, logging
from robopolicy.runs import wandb_run
wandb_run._STATS_S = 0.2
first, last = int(sys.argv[2]), int(sys.argv[3])
tracker = Tracker(sys.argv[1], wandb="offline", axis="env_steps", group="together", tags=("a",), config={"seed": 3})
tracker.rewind(first or None)
with Mp4Writer("film.mp4", fps=10) as film:
    film.add(np.zeros((48, 64, 3), dtype=np.uint8))
for step in range(first + 1, last + 1):
    tracker.log({"train/loss": 1.0 / step}, step)
    tracker.video("films/0", "film.mp4", step, "a failure")
logging.getLogger("robopolicy.somewhere").warning("the gripper is %s", "stuck")
time.sleep(1)
tracker.close()
"""


def test_films_config_notes_and_system_metrics_are_in_the_file(python: Callable[..., str], tmp_path: Path) -> None:
    python(LOOP, tmp_path / "run", "0", "3", env=machine(tmp_path), cwd=tmp_path)
    films = [row["films/0"] for row in logged(tmp_path / "run")]
    assert [film["_type"] for film in films] == ["video-file"] * 3 and films[0]["caption"] == "a failure"
    assert len(list((tmp_path / "run").glob("wandb/offline-run-*/files/media/videos/films/*.mp4"))) == 3
    files = offline_files(tmp_path / "run")
    run = records(files, "run")
    assert run[0].run_group == "together" and list(run[0].tags) == ["a"]
    assert {u.key: json.loads(u.value_json) for u in run[0].config.update}["seed"] == 3
    assert run[-1].notes == "- step 3: warning: the gripper is stuck"
    axes = {metric.glob_name or metric.name: metric.step_metric for metric in records(files, "metric")}
    assert axes["train/*"] == axes["films/*"] == "env_steps"
    assert records(files, "stats"), "system metrics"


def test_a_resumed_offline_run_is_whole_in_its_newest_file(python: Callable[..., str], tmp_path: Path) -> None:
    """`wandb sync` of a file replaces the curves of the same run on the server."""
    env = machine(tmp_path)
    python(LOOP, tmp_path / "run", "0", "5", env=env, cwd=tmp_path)
    first = logged(tmp_path / "run")
    python(LOOP, tmp_path / "run", "3", "8", env=env, cwd=tmp_path)  # killed after 5, the checkpoint is of 3
    assert len({path.name for path in (tmp_path / "run").glob("wandb/*/run-*.wandb")}) == 1, "one id"
    newest = logged(tmp_path / "run")[len(first) :]
    assert [row["env_steps"] for row in newest] == list(range(1, 9)) == [row["_step"] for row in newest]
    assert [row["train/loss"] for row in newest[:3]] == [row["train/loss"] for row in first[:3]]

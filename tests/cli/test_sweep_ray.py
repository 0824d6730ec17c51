"""A sweep on a Ray of this machine: interrupted, started again; one job's failure is named and loses no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from robopolicy.cli.main import main
from robopolicy.runs.sweep_job import read_job

ROOT = Path(__file__).parents[2]
SWEEP = ["train", "--multirun", "task=reach", "policy=gaussian", "dataset=data", "loop.steps=1500",
         "loop.save_every=100", "loop.batch_size=32", "threads=1", "tracker=local", "n_action_steps=4,99",
         "hydra/launcher=ray", "hydra.launcher.num_cpus=0.5", "run_dir=sweep"]  # fmt: skip


def start(python: list[str], folder: Path, *arguments: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    env.pop("RAY_ADDRESS", None)
    command = [*python, "-m", "robopolicy.cli.main", *arguments]
    return subprocess.Popen(command, cwd=folder, env=env, text=True, start_new_session=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip


def state(run: Path) -> str:
    return "" if (job := read_job(run)) is None else job.state


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sweep_on_ray_is_interrupted_and_goes_on(tmp_path: Path, warm_python: list[str]) -> None:
    pytest.importorskip("ray")
    good, bad = (tmp_path / "sweep" / f"n_action_steps_{n}" for n in (4, 99))
    assert main(["demos", "task=reach", "episodes=2", f"out={tmp_path / 'data'}", "threads=1"]) == 0

    sweep = start([sys.executable], tmp_path, *SWEEP)
    while sweep.poll() is None and not ((good / "checkpoints" / "latest").is_file() and state(bad) == "failed"):
        time.sleep(0.1)
    os.killpg(sweep.pid, signal.SIGINT)  # as a terminal does
    said = sweep.communicate(timeout=200)[0]
    assert sweep.returncode == 130 and "running jobs save first" in said, said
    assert (state(good), state(bad)) == ("interrupted", "failed"), said
    saved = (good / "checkpoints" / "latest").read_text()

    sweep = start(warm_python, tmp_path, *SWEEP)
    said = sweep.communicate(timeout=400)[0]
    assert sweep.returncode == 1 and "1 of 2 runs finished" in said, said
    assert f"finished: {good.name}\n" in said and f"  - {bad.name}: n_action_steps (Ta) must lie" in said
    assert (good / "checkpoints" / "latest").read_text() > saved
    assert "steps 1500" in (good / "output.log").read_text()

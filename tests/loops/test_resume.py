"""SIGKILL a training of the command line, repeat the command: it ends as one that was never touched, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from robopolicy.checkpoint import Checkpointer, load_policy
from robopolicy.cli import main
from robopolicy.storage import read_state

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("lerobot"), pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
COMMON = ("train", "task=reach", "tracker=quiet", "threads=1", "validation_episodes=4")
BC = ("policy=gaussian", "loop.steps=60", "loop.save_every=20", "loop.log_every=10", "loop.evaluate_every=25",
      "loop.batch_size=16")  # fmt: skip
RESIDUAL = ("algo=residual_fast", "num_envs=4", "loop.total_steps=240", "loop.warmup_steps=40", "loop.save_every=80",
            "loop.critic_only_updates=4", "loop.log_every=20", "loop.eval_every=100", "loop.batch_size=16")  # fmt: skip

# `robopolicy …`, held at a given place of the training until it is killed.
HELD = """
import sys, time
from robopolicy import checkpoint, cli, tracking

place, step, *arguments = sys.argv[1:]
log, write_state = tracking.Tracker.log, checkpoint.write_state

def hold():
    print("here", flush=True)
    time.sleep(600)

def logging(self, metrics, at):
    log(self, metrics, at)
    if place == "training" and at >= int(step):
        hold()

def writing(state, folder):
    write_state(state, folder)
    if place == "writing" and state["training"].get("step", state["training"].get("steps")) >= int(step):
        file = folder / "state.safetensors"
        file.write_bytes(file.read_bytes()[:-1000])
        hold()

tracking.Tracker.log, checkpoint.write_state = logging, writing
sys.exit(cli.main(arguments))
"""
VARIES = {"wall_s", "train_s", "train/seconds", "train/steps_per_s"}  # measured times


def killed(place: str, step: int, *arguments: str) -> None:
    """Run a command up to a place in its training, then SIGKILL it."""
    process = subprocess.Popen(
        [sys.executable, "-c", HELD, place, str(step), *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
    finally:
        process.kill()
        process.communicate()
    assert said == "here\n", f"the command never got to {place} {step}"


def outcome(run: Path) -> tuple[Any, dict[str, torch.Tensor], list[dict[str, float]]]:
    """State and weights of the final checkpoint, and the metrics, without measured times."""
    path = Checkpointer(run).latest_path()
    assert path is not None
    state = read_state(path)
    state["training"].pop("train_s", None)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [{k: v for k, v in row.items() if k not in VARIES} for row in rows]
    return state, dict(load_policy(run).state_dict()), rows


def differences(a: Any, b: Any, where: str = "") -> list[str]:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return [] if a.dtype == b.dtype and torch.equal(a, b) else [where]
    if isinstance(a, dict) and isinstance(b, dict) and list(a) == list(b):
        return [d for k in a for d in differences(a[k], b[k], f"{where}.{k}")]
    if isinstance(a, list | tuple) and type(a) is type(b) and len(a) == len(b):
        return [d for i, (x, y) in enumerate(zip(a, b, strict=True)) for d in differences(x, y, f"{where}.{i}")]
    return [] if type(a) is type(b) and a == b else [f"{where}: {a!r} ≠ {b!r}"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Demonstrations, and runs of both loops that nothing disturbs; the second refines what the first has learned."""
    folder = tmp_path_factory.mktemp("resume")
    data, base = f"dataset={folder / 'data'}", f"base={folder / 'bc'}"
    assert main(["demos", "task=reach", f"out={folder / 'data'}", "episodes=3", "num_envs=4"]) == 0
    assert main([*COMMON, *BC, data, f"run_dir={folder / 'bc'}"]) == 0
    assert main([*COMMON, *RESIDUAL, data, base, f"run_dir={folder / 'residual'}"]) == 0
    return folder


@pytest.mark.parametrize(
    ("whole", "options", "places"),
    [("bc", BC, [("training", 30)]), ("residual", RESIDUAL, [("training", 120), ("writing", 160)])],
    ids=["offline", "off_policy"],
)
def test_killed_and_resumed_equals_uninterrupted(
    folder: Path, whole: str, options: tuple[str, ...], places: list[tuple[str, int]]
) -> None:
    run = folder / f"{whole}_killed"
    base = [f"base={folder / 'bc'}"] if whole == "residual" else []
    command = [*COMMON, *options, f"dataset={folder / 'data'}", *base, f"run_dir={run}"]
    for place, step in places:
        killed(place, step, *command)
        found = sorted(p.name for p in (run / "checkpoints").glob("step_*"))
        assert found, "there is a checkpoint to go on from, and progress beyond it to lose"
    assert main(command) == 0
    expected, found_ = outcome(folder / whole), outcome(run)
    assert differences(expected, found_) == []
    assert not list((run / "checkpoints").glob(".*")), "leftovers of the killed write are removed"

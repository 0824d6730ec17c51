"""Whatever ends a training of the command line: repeat the command, and it ends in the same bits as one undisturbed."""

from __future__ import annotations

import itertools
import json
import os
import pkgutil
import re
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from robopolicy.cli.main import main
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.runs.checkpointer import Checkpointer, load_policy
from robopolicy.runs.logger import Tracker
from robopolicy.sim.engine import RolloutPhysics
from robopolicy.utils.storage import read_state

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
COMMON = ("train", "task=reach", "tracker=quiet", "threads=1", "validation_episodes=4")
BC = ("policy=gaussian", "loop.steps=60", "loop.save_every=20", "loop.log_every=10", "loop.eval_every=25",
      "loop.batch_size=16")  # fmt: skip
RESIDUAL = ("algo=residual", "num_envs=4", "loop.total_steps=240", "loop.warmup_steps=40", "loop.save_every=80",
            "loop.critic_only_updates=4", "loop.log_every=20", "loop.eval_every=100", "loop.batch_size=16")  # fmt: skip
DIFFUSION = ("policy=diffusion", "loop.steps=20", "loop.batch_size=16", "loop.save_every=0", "horizon=4",
             "n_action_steps=2")  # fmt: skip
DPPO = ("algo=dppo", "num_envs=4", "loop.total_steps=240", "loop.rollout_steps=10", "loop.save_every=80",
        "loop.eval_every=160", "algo.epochs=2", "algo.minibatch=64", "policy.finetuned_steps=4")  # fmt: skip

# `robopolicy …`, killed at a given place of the training.
KILLED = """
import os, signal, sys
from robopolicy.cli.main import main
from robopolicy.runs import checkpointer, logger

place, step, *arguments = sys.argv[1:]
log, write_state = logger.Tracker.log, checkpointer.write_state

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def logging(self, metrics, at):
    log(self, metrics, at)
    if place == "training" and at >= int(step):
        die()

def writing(state, folder):
    write_state(state, folder)
    if place == "writing" and state["training"].get("step", state["training"].get("steps")) >= int(step):
        file = folder / "state.safetensors"
        file.write_bytes(file.read_bytes()[:-1000])
        die()

logger.Tracker.log, checkpointer.write_state = logging, writing
sys.exit(main(arguments))
"""
VARIES = re.compile(r"(train/)?(steps_per_s|seconds|.*_s)")  # measured times


def killed(python: list[str], program: Path, place: str, step: int, *arguments: str) -> None:
    """Run a command up to a place in its training, where SIGKILL ends it."""
    program.write_text(KILLED)
    done = subprocess.run(
        [*python, str(program), place, str(step), *arguments], cwd=ROOT, check=False, timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 128 + signal.SIGKILL, f"the command never got to {place} {step}"


def outcome(run: Path) -> tuple[Any, dict[str, torch.Tensor], list[dict[str, float]]]:
    """State and weights of the final checkpoint, and the metrics, without measured times."""
    path = Checkpointer(run).latest_path()
    assert path is not None
    state = read_state(path)
    state["training"].pop("train_s", None)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [{k: v for k, v in row.items() if not VARIES.fullmatch(k)} for row in rows]
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
    """Demonstrations, and runs of all loops that nothing disturbs; the later ones refine what the first has learned."""
    folder = tmp_path_factory.mktemp("resume")
    data, base = f"dataset={folder / 'data'}", f"base={folder / 'bc'}"
    assert main(["demos", "task=reach", f"out={folder / 'data'}", "episodes=3", "num_envs=4"]) == 0
    assert main([*COMMON, *BC, data, f"run_dir={folder / 'bc'}"]) == 0
    assert main([*COMMON, *RESIDUAL, data, base, f"run_dir={folder / 'residual'}"]) == 0
    assert main([*COMMON, *DIFFUSION, data, f"run_dir={folder / 'diffusion'}"]) == 0
    assert main([*COMMON, *DPPO, data, f"base={folder / 'diffusion'}", f"run_dir={folder / 'dppo'}"]) == 0
    return folder


def command(folder: Path, whole: str, run: Path) -> list[str]:
    """What trained `whole`, in another run directory."""
    base = {"bc": [], "residual": [f"base={folder / 'bc'}"], "dppo": [f"base={folder / 'diffusion'}"]}[whole]
    options = {"bc": BC, "residual": RESIDUAL, "dppo": DPPO}[whole]
    return [*COMMON, *options, f"dataset={folder / 'data'}", *base, f"run_dir={run}"]


@pytest.mark.parametrize(
    ("whole", "places"),
    [
        ("bc", [("training", 30)]),
        ("residual", [("training", 120), ("writing", 160)]),
        ("dppo", [("training", 120), ("writing", 160)]),
    ],
    ids=["offline", "off_policy", "on_policy"],
)
def test_killed_and_resumed_equals_uninterrupted(
    folder: Path, whole: str, places: list[tuple[str, int]], warm_python: list[str], tmp_path: Path
) -> None:
    run = folder / f"{whole}_killed"
    for place, step in places:
        killed(warm_python, tmp_path / "killed.py", place, step, *command(folder, whole, run))
        assert list((run / "checkpoints").glob("step_*")), "there is a checkpoint to go on from"
    assert main(command(folder, whole, run)) == 0
    assert differences(outcome(folder / whole), outcome(run)) == []
    assert not list((run / "checkpoints").glob(".*")), "leftovers of the killed write are removed"


@pytest.mark.parametrize(
    ("whole", "step"), [("bc", 30), ("residual", 120), ("dppo", 120)], ids=["offline", "off_policy", "on_policy"]
)
def test_ctrl_c_saves_says_how_to_go_on_and_loses_nothing(
    folder: Path, whole: str, step: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, log = folder / f"{whole}_interrupted", Tracker.log

    def interrupt(self: Tracker, metrics: dict[str, float], at: int) -> None:
        log(self, metrics, at)
        if at >= step:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Tracker, "log", interrupt)
        assert main(command(folder, whole, run)) == 130
    assert "the same command goes on from there:\n  robopolicy train task=reach" in capsys.readouterr().err
    assert Checkpointer(run).step == step, "saved at once, off the schedule"
    assert main(command(folder, whole, run)) == 0
    assert differences(outcome(folder / whole), outcome(run)) == []


# A training, what is called in it at the moment of Ctrl-C, at which of its calls, and the step saved thereupon.
MOMENTS = [
    ("bc", "robopolicy.training.offline.Batches", 1, 1),
    ("bc", "robopolicy.algos.bc.BC.update", 5, 5),
    ("bc", "robopolicy.training.validation.evaluate", 1, 25),
    ("bc", "robopolicy.runs.checkpointer.write_state", 1, 20),
    ("residual", "robopolicy.buffers.recorded_rollouts.read_frames", 1, 0),
    ("residual", "robopolicy.training.validation.evaluate", 1, 0),
    ("residual", "robopolicy.training.validation.evaluate", 2, 100),
    ("residual", "robopolicy.algos.residual.ResidualTD3.update", 1, 40),
    ("residual", "robopolicy.runs.checkpointer.write_state", 2, 80),
]


@pytest.mark.parametrize(("whole", "where", "call", "step"), MOMENTS)
def test_ctrl_c_at_any_moment_loses_nothing(
    folder: Path, tmp_path: Path, whole: str, where: str, call: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, calls = pkgutil.resolve_name(where), itertools.count(1)

    def interrupted(*args: Any, **kw: Any) -> Any:
        if next(calls) == call:
            signal.raise_signal(signal.SIGINT)
        return function(*args, **kw)

    with monkeypatch.context() as patch:
        patch.setattr(where, interrupted)
        assert main(command(folder, whole, tmp_path)) == 130
    assert Checkpointer(tmp_path).step == step
    assert main(command(folder, whole, tmp_path)) == 0
    assert differences(outcome(folder / whole), outcome(tmp_path)) == []


@pytest.mark.parametrize(("whole", "step"), [("bc", 10), ("residual", 0)])
def test_ended_before_its_first_checkpoint_it_begins_anew(
    folder: Path, tmp_path: Path, whole: str, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Tracker.log

    def die(self: Tracker, metrics: dict[str, float], at: int) -> None:
        log(self, metrics, at)
        if at >= step:
            raise KeyboardInterrupt  # as a second Ctrl-C, which does not wait

    with monkeypatch.context() as patch:
        patch.setattr(Tracker, "log", die)
        assert main(command(folder, whole, tmp_path)) == 130
    assert Checkpointer(tmp_path).step is None
    assert main(command(folder, whole, tmp_path)) == 0
    assert differences(outcome(folder / whole), outcome(tmp_path)) == []


@pytest.mark.parametrize("whole", ["bc", "residual", "dppo"])
def test_repeating_a_finished_training_changes_nothing(folder: Path, whole: str) -> None:
    def files() -> dict[str, bytes]:
        # wandb keeps a log of its own; provenance.json tells when the command was last given.
        found = [f for f in (folder / whole).rglob("*") if f.is_file() and "wandb" not in f.parts]
        return {str(f): f.read_bytes() for f in found if f.name != "provenance.json"}

    before = files()
    assert main(command(folder, whole, folder / whole)) == 0
    assert files() == before


def test_other_data_than_it_began_with_is_refused_before_weights_load(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def another(*args: Any, **kw: Any) -> Any:
        episodes = load_episodes(*args, **kw)
        action = episodes.action_spec
        return replace(episodes, action_spec=replace(action, high=(1.0, *action.high[1:])), dt=0.5)

    run = folder / "bc"
    before = (run / "spec.json").read_text(), (run / "metrics.jsonl").read_text()
    monkeypatch.setattr("robopolicy.training.builders.load_episodes", another)
    monkeypatch.setattr("robopolicy.training.policy_builders.load_weights", None)
    assert main(command(folder, "bc", run)) == 1
    said = capsys.readouterr().err
    assert "data and env are not those that the run began with:\n  - action.high: 0.02 → 1.0\n  - dt: was 0.05" in said
    assert "or give a new run_dir" in said
    assert ((run / "spec.json").read_text(), (run / "metrics.jsonl").read_text()) == before


def test_other_demonstrations_than_it_began_with_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demos", "task=reach", f"out={tmp_path / 'data'}", "episodes=3", "num_envs=4", "seed=7"]) == 0
    arguments = [a.replace(f"dataset={folder / 'data'}", f"dataset={tmp_path / 'data'}") for a in
                 command(folder, "bc", folder / "bc")]  # fmt: skip
    run = tmp_path / "run"
    shutil.copytree(folder / "bc", run)
    config = (run / "config.yaml").read_text()  # the same path, other episodes
    (run / "config.yaml").write_text(config.replace(str(folder / "data"), str(tmp_path / "data")))
    again = [a.replace(f"run_dir={folder / 'bc'}", f"run_dir={run}") for a in arguments]
    assert main(again) == 1
    assert f"with other contents of\n  - dataset={tmp_path / 'data'}" in capsys.readouterr().err
    (run / "inputs.json").unlink()  # as of a run that does not know its contents
    assert main(again) == 1
    assert re.search(r"differs from the data of the run: normalizer\.\S+ was .* Restore it", capsys.readouterr().err)


def test_a_simulation_that_diverges_costs_its_episodes_and_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, step, calls = folder / "diverging", RolloutPhysics.step, itertools.count()

    def diverge(self: RolloutPhysics, *args: Any) -> Any:
        if next(calls) % 7 == 6:
            self.qvel[0, 0] = float("nan")
        return step(self, *args)

    monkeypatch.setattr(RolloutPhysics, "step", diverge)
    assert main(command(folder, "residual", run)) == 0
    state, weights, rows = outcome(run)
    assert not bool(state["training"]["replay"]["store"]["valid"].all())
    assert all(bool(torch.isfinite(v).all()) for v in (*state["training"]["replay"]["obs"].values(), *weights.values()))
    assert sum(row.get("eval/diverged", 0.0) for row in rows) > 0
    lost = [row["train/diverged"] for row in rows if "train/diverged" in row]
    assert lost == sorted(lost), "counted since the run began"
    assert lost[-1] == int((~state["training"]["replay"]["store"]["valid"]).sum())
    assert f"train_diverged {lost[-1]}," in capsys.readouterr().out
    assert main(["eval", f"checkpoint={run}", "episodes=4", "num_envs=2", "videos=0"]) == 0
    assert "diverged (counted as failures)" in capsys.readouterr().out


def test_a_fine_tuned_policy_is_evaluated_compared_and_refined_like_any_other(folder: Path) -> None:
    finetuned = folder / "dppo"
    assert main(["eval", f"checkpoint={finetuned}", "episodes=4", "num_envs=2", "videos=0"]) == 0
    assert main(["compare", f"a={folder / 'diffusion'}", f"b={finetuned}", "episodes=4", "num_envs=2", "videos=0"]) == 0
    refined = [*COMMON, *RESIDUAL, f"dataset={folder / 'data'}", f"base={finetuned}", "loop.total_steps=60"]
    assert main([*refined, f"run_dir={folder / 'stacked'}"]) == 0
    base = load_policy(folder / "stacked").base
    assert base is not None and base.finetuned_steps == 4
    again = ["algo=dppo", "num_envs=4", "loop.total_steps=160", "loop.rollout_steps=10", "policy.finetuned_steps=4"]
    assert main([*COMMON, *again, f"base={finetuned}", f"run_dir={folder / 'again'}"]) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["policy.finetuned_steps=11"], r"finetuned_steps \(K'\) must lie between 0 and the 10 steps"),
        (["algo.noise.floor=0", "policy.sampling={sampler: ddim}"], "the sampler is deterministic in fine-tuned steps"),
        (["task=drawer"], r"policy and environment do not fit(?s:.*)another task than task=drawer"),
        (["policy.sampling={clip: 2}"], "change more than the sampler"),
    ],
    ids=["steps", "deterministic", "spec", "sampling"],
)
def test_what_cannot_be_fine_tuned_is_said_before_training(
    folder: Path, change: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command(folder, "dppo", tmp_path / "run"), *change]) == 1
    assert re.search(message, capsys.readouterr().err)

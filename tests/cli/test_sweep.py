"""`train --multirun`: jobs are checked first, run below one folder, and go on where they ended; failures are named."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from robopolicy.cli import run_verb, sweep
from robopolicy.cli.main import main
from robopolicy.cli.sweep_job import _Stop
from robopolicy.config.sweep_task import STOP
from robopolicy.config.sweeps import Sweep
from robopolicy.runs.checkpointer import Checkpointer
from robopolicy.runs.run_dir import CONFIG, dump
from robopolicy.runs.sweep_job import JobState, read_job

COMMAND = ["train", "--multirun", "task=reach", "policy=gaussian", "algo.lr=0.1,0.2", "seed=0,1"]


class Trainings:
    """Stands for the trainings: notes each config, and does as it is told."""

    def __init__(self) -> None:
        self.configs: list[dict[str, Any]] = []
        self.commands: list[list[str]] = []
        self.errors: dict[str, BaseException] = {}  # by the run's name

    def __call__(self, verb: Any, config: dict[str, Any]) -> None:
        self.configs.append(config)
        self.commands.append(sys.argv)
        run_dir = Path(config["run_dir"])
        run_dir.mkdir(parents=True, exist_ok=True)
        if error := self.errors.get(run_dir.name):
            raise error
        (run_dir / CONFIG).write_text(dump(config))

    @property
    def runs(self) -> list[str]:
        names = [Path(config["run_dir"]).name for config in self.configs]
        self.configs.clear()
        return names


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Trainings:
    found = Trainings()
    monkeypatch.setattr(run_verb, "call", found)
    monkeypatch.chdir(tmp_path)
    return found


def test_a_damaged_run_fails_alone(trainings: Trainings, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "run_dir=sweep"]) == 0
    Path("sweep", ALL[0], CONFIG).write_text("[")
    shutil.rmtree(Path("sweep", ALL[1]))
    Path("sweep", ALL[1]).touch()
    capsys.readouterr()
    assert main([*COMMAND, "run_dir=sweep"]) == 1
    said = capsys.readouterr()
    assert "2 of 4 runs finished" in said.out and f"failed: {ALL[1]}: " in said.out
    assert f"  - {ALL[0]}: " in said.err and CONFIG in said.err and "ended early" not in said.err


ALL = ["algo.lr_0.1-seed_0", "algo.lr_0.1-seed_1", "algo.lr_0.2-seed_0", "algo.lr_0.2-seed_1"]


def test_each_job_is_a_run_with_a_config_group_and_command_of_its_own(trainings: Trainings) -> None:
    before = sys.argv
    assert main([*COMMAND, "run_dir=sweep"]) == 0
    last = trainings.configs[-1]
    assert (last["algo"]["lr"], last["seed"], last["run_dir"]) == (0.2, 1, f"sweep/{ALL[3]}")
    assert last["tracker"]["group"] == "sweep"
    assert trainings.commands[-1] == ["robopolicy", "train", "task=reach", "policy=gaussian", "algo.lr=0.2", "seed=1",
                                      f"run_dir=sweep/{ALL[3]}"]  # fmt: skip
    assert trainings.runs == ALL and sys.argv is before
    assert main([*COMMAND, 'run_dir="sw (1), x"']) == 0
    assert trainings.commands[-1][-1] == f'run_dir="sw (1), x/{ALL[3]}"'


def test_a_group_of_the_users_own_stays(trainings: Trainings) -> None:
    assert main([*COMMAND, "run_dir=sweep", "tracker.group=mine"]) == 0
    assert {config["tracker"]["group"] for config in trainings.configs} == {"mine"}
    assert main([*COMMAND, "run_dir=other", "tracker=local"]) == 0
    assert "group" not in trainings.configs[-1]["tracker"], "a tracker without groups gets none"


def test_what_is_finished_is_skipped_and_what_failed_runs_again(
    trainings: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    trainings.errors = {ALL[1]: ValueError("no number"), ALL[2]: OSError("disk full")}
    assert main([*COMMAND, "run_dir=sweep"]) == 1
    said = capsys.readouterr()
    assert f"2 failed; the same command runs them again:\n  - {ALL[1]}: ValueError: no number\n" in said.err
    assert f"  - {ALL[2]}: disk full" in said.err and "2 of 4 runs finished in sweep" in said.out
    assert trainings.runs == ALL, "a failure ends no other job"
    trainings.errors = {}
    assert main([*COMMAND, "run_dir=sweep"]) == 0
    assert trainings.runs == ALL[1:3]
    assert main([*COMMAND, "run_dir=sweep", "loop.steps=30_000"]) == 0
    assert trainings.runs == ALL, "with more steps none is finished"


def test_another_setting_is_refused_before_a_job_begins_and_finished_runs_stay_so(
    trainings: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, "run_dir=sweep"]) == 0
    assert trainings.runs == ALL
    for name in ALL[:2]:
        Path("sweep", name, "checkpoints", "step_0000000001").mkdir(parents=True)
    more = [text.replace("seed=0,1", "seed=range(0,3)") for text in COMMAND]
    assert main([*more, "run_dir=sweep", "n_action_steps=3"]) == 1
    said = capsys.readouterr().err
    assert "2 of 6 runs in sweep began with other settings, and nothing was started" in said
    assert f"The first is {ALL[0]}: " in said and "n_action_steps: was " in said
    assert trainings.runs == [] and all(read_job(Path("sweep") / name).state == "finished" for name in ALL)
    new = [text.replace("seed=0,1", "seed=2,3") for text in COMMAND]
    assert main([*new, "run_dir=sweep", "n_action_steps=3"]) == 1
    said = capsys.readouterr().err
    assert f"2 of 8 runs in sweep began with other settings, and nothing was started. The first is {ALL[0]}: " in said
    assert trainings.runs == [], "runs beside others of the same names have their settings"
    assert main([*more, "run_dir=sweep"]) == 0
    assert trainings.runs == ["algo.lr_0.1-seed_2", "algo.lr_0.2-seed_2"]


def test_an_interrupted_sweep_goes_on(trainings: Trainings, capsys: pytest.CaptureFixture[str]) -> None:
    trainings.errors = {ALL[1]: KeyboardInterrupt()}
    assert main([*COMMAND, "run_dir=sweep"]) == 130
    assert "robopolicy train --multirun task=reach" in capsys.readouterr().err
    assert trainings.runs == ALL[:2]
    assert (read_job(Path("sweep") / ALL[1]) or JobState(values={}, state="begun")).state == "interrupted"
    trainings.errors = {}
    assert main([*COMMAND, "run_dir=sweep"]) == 0
    assert trainings.runs == ALL[1:]


@pytest.mark.parametrize(
    ("overrides", "code", "named"),
    [
        (["num_envs=2,many"], 2, "job num_envs=many: num_envs: expected"),
        (["policy.hiden=[8],[16]"], 2, "policy.hiden"),
        (["task=reach,reech"], 2, "task=reech"),
        (["seed=0,1", "algo.lrr=1"], 2, "algo.lrr"),
        (["dataset=gone,missing"], 1, "job dataset=gone: dataset=gone: no dataset here"),
    ],
)
def test_one_bad_job_of_many_is_refused_before_the_first_begins(
    trainings: Trainings, capsys: pytest.CaptureFixture[str], overrides: list[str], code: int, named: str
) -> None:
    assert main(["train", "--multirun", "policy=gaussian", "run_dir=sweep", *overrides]) == code
    assert named in capsys.readouterr().err
    assert not trainings.configs and not Path("sweep").exists()


def test_keys_that_only_one_of_two_policies_has_are_refused(
    trainings: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "-m", "policy=diffusion,gaussian", "seed=0,1", "run_dir=sweep", "policy.denoising_steps=8"]
    assert main(command) == 2
    assert "job policy=gaussian seed=0: policy.denoising_steps: unknown key" in capsys.readouterr().err


def test_the_jobs_are_shown_without_being_run(trainings: Trainings, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "run_dir=sweep", "--cfg"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == (
        "train task=reach policy=gaussian algo.lr=0.1 seed=1 run_dir=sweep"
    )
    assert not trainings.configs and not Path("sweep").exists()


def test_help_is_that_of_the_first_job(trainings: Trainings, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "hydra/launcher=gone", "--help"]) == 0
    assert "algo.lr" in capsys.readouterr().out and not trainings.configs


def test_a_run_is_no_folder_for_a_sweep(trainings: Trainings, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run").mkdir()
    (Path("run") / CONFIG).write_text("seed: 0\n")
    assert main([*COMMAND, "run_dir=run"]) == 1
    assert "run_dir=run: is a run" in capsys.readouterr().err
    assert main([*COMMAND, "run_dir=a,b"]) == 2
    assert "run_dir: is the folder of the whole sweep" in capsys.readouterr().err
    assert main(["eval", "--multirun", "checkpoint=a,b"]) == 2
    assert "Only `train` can be swept" in capsys.readouterr().err
    assert main(["train", "seed=0,1", "run_dir=x"]) == 2
    assert "--multirun trains once for each" in capsys.readouterr().err


def test_the_first_ctrl_c_lets_jobs_save_and_no_other_begins(
    trainings: Trainings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted_in_the_second(found: Sweep, folder: Path, job: Any) -> None:
        first, second, third, _ = found.jobs()
        job(first)
        os.kill(os.getpid(), signal.SIGINT)
        assert job(second) is None and job(third) is None

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    monkeypatch.setattr(sweep, "launch", interrupted_in_the_second)
    monkeypatch.setattr(_Stop, "listen", lambda *_: None)  # this process is no worker
    assert main([*COMMAND, "run_dir=sweep", "hydra/launcher=joblib"]) == 130
    assert "running jobs save first" in capsys.readouterr().err
    assert trainings.runs == ALL[:1] and not (Path("sweep") / STOP).exists()
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


def test_a_worker_stops_its_training_and_begins_no_other() -> None:
    before, stop = signal.getsignal(signal.SIGINT), _Stop()
    try:
        signal.signal(signal.SIGINT, stop._ask)
        with pytest.raises(KeyboardInterrupt), stop.raising():
            os.kill(os.getpid(), signal.SIGINT)
        stop.asked = False
        os.kill(os.getpid(), signal.SIGINT)  # between two jobs: nothing is raised
        assert stop.asked
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_job_of_slurm_saves_before_its_time_is_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    numbers = (signal.SIGINT, signal.SIGUSR2)
    before, stop = [signal.getsignal(number) for number in numbers], _Stop()
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    monkeypatch.setattr(os, "setpgid", lambda *_: None)
    try:
        stop.listen(0)
        training = Checkpointer(tmp_path)
        with stop.raising(), training.interruptible():
            os.kill(os.getpid(), signal.SIGUSR2)
            os.kill(os.getpid(), signal.SIGUSR2)  # a second one does not keep it from saving
            assert training.requested and stop.asked
        stop.asked = False
        with pytest.raises(KeyboardInterrupt), stop.raising():  # before the training takes signals
            os.kill(os.getpid(), signal.SIGUSR2)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_a_worker_stops_as_at_ctrl_c_after_its_parent(tmp_path: Path) -> None:
    """A killed sweep leaves its workers behind."""
    code = """if True:
        import os, sys, time
        from robopolicy.cli.sweep_job import _Stop
        if os.fork():
            time.sleep(0.5)  # killed in the middle of a job
            os._exit(0)
        stop = _Stop()
        stop.listen(os.getppid())
        try:
            with stop.raising():
                time.sleep(30)
        except KeyboardInterrupt:
            open(sys.argv[1], "w").write(str(stop.asked))
        """
    subprocess.run([sys.executable, "-c", code, tmp_path / "said"], check=True)
    end = time.monotonic() + 20
    while not (tmp_path / "said").is_file() or not (tmp_path / "said").read_text():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert (tmp_path / "said").read_text() == "True"


def test_torchrun_starts_no_sweep(
    trainings: Trainings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for key, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(key, value)
    assert main([*COMMAND, "run_dir=sweep"]) == 2
    assert "--multirun: torchrun starts several processes for one training, here 2" in capsys.readouterr().err
    assert not trainings.runs and not Path("sweep").exists()


def test_a_launcher_that_breaks_is_named(
    trainings: Trainings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(found: Sweep, folder: Path, job: Any) -> None:
        raise RuntimeError("a worker died")

    monkeypatch.setattr(sweep, "launch", breaks)
    assert main([*COMMAND, "run_dir=sweep"]) == 1
    assert "the sweep ended early: RuntimeError: a worker died. The same command goes on" in capsys.readouterr().err


def test_a_job_whose_process_died_is_named(
    trainings: Trainings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def loses_one(found: Sweep, folder: Path, job: Any) -> None:
        for values in found.jobs()[1:]:
            job(values)
        JobState(values=found.jobs()[0], state="begun").save(folder / ALL[0])
        raise RuntimeError("a worker died\nits logs")

    monkeypatch.setattr(sweep, "launch", loses_one)
    assert main([*COMMAND, "run_dir=sweep"]) == 1
    said = capsys.readouterr()
    assert "3 of 4 runs finished" in said.out
    assert f"  - {ALL[0]}: its process died" in said.err and said.err.endswith("  RuntimeError: a worker died\n")


def test_an_optimiser_needs_evaluations(trainings: Trainings, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    assert main([*COMMAND, "run_dir=sweep", "hydra/sweeper=optuna"]) == 2
    assert "Add task=… and loop.eval_every=" in capsys.readouterr().err

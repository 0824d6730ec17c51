"""Ctrl-C amid a recording: nobody goes on as if it were whole, and what the command line says of it is true."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from robopolicy.cli import quickstart
from robopolicy.cli.main import invoke, main
from robopolicy.cli.verbs import VERBS
from robopolicy.datasets.lerobot_writer import DatasetWriter
from robopolicy.datasets.metadata import num_episodes, recorded
from robopolicy.runs import wandb_run

DEMOS = ["demos", "task=reach", "episodes=3", "num_envs=4"]
TRAIN = ["train", "task=reach", "policy=gaussian", "loop.steps=2", "loop.batch_size=4", "tracker=quiet",
         "validation_episodes=0"]  # fmt: skip


@pytest.fixture
def ctrl_c(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call it to have the next recording interrupted when one episode is written."""
    add = DatasetWriter.add_episode

    def interrupt() -> None:
        def once(self: DatasetWriter, **episode: Any) -> None:
            if self.num_episodes:
                monkeypatch.setattr(DatasetWriter, "add_episode", add)
                raise KeyboardInterrupt
            add(self, **episode)

        monkeypatch.setattr(DatasetWriter, "add_episode", once)

    return interrupt


def test_training_refuses_a_part_unless_told_that_it_will_do(
    tmp_path: Path, ctrl_c: Any, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    demos, train = [*DEMOS, f"out={tmp_path / 'd'}"], [*TRAIN, f"dataset={tmp_path / 'd'}"]
    ctrl_c()
    assert main(demos) == 130
    assert "the same command records them again and replaces it:\n  robopolicy demos" in capsys.readouterr().err
    assert main([*train, f"run_dir={tmp_path / 'r'}"]) == 1
    said = capsys.readouterr().err
    assert "d: holds 1 episodes of the 3 asked for: its recording ended early. Repeat the command" in said
    assert main([*train, f"run_dir={tmp_path / 'part'}", "incomplete=true"]) == 0
    assert "holds 1 episodes of the 3 asked for" in caplog.text
    assert main(demos) == 0
    assert main([*train, f"run_dir={tmp_path / 'r'}"]) == 0


def test_the_quickstart_records_again_what_was_interrupted(
    tmp_path: Path, ctrl_c: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []

    def until_training(name: str, *overrides: str, **settings: Any) -> Any:
        calls.append(name)
        return invoke(name, *overrides, **settings) if name == "demos" else exit()

    monkeypatch.setattr(quickstart, "invoke", until_training)
    command = ["quickstart", "task=reach", f"out={tmp_path}", "demos=3", "expert_noise=0"]
    ctrl_c()
    assert main([*command, "bc_steps=5"]) == 130
    assert recorded(tmp_path / "data") == "part"
    for expected in (["demos", "demos", "train"], ["demos", "demos", "train", "train"]):
        with pytest.raises(SystemExit):
            main(command)
        assert calls == expected
        assert (recorded(tmp_path / "data"), num_episodes(tmp_path / "data")) == ("whole", 3)
    capsys.readouterr()
    assert main([*command, "bc_steps=5"]) == 1, "from its first stage on it keeps its config"
    assert "bc_steps: was 3000, now 5" in capsys.readouterr().err


def test_the_quickstart_says_that_wandb_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Any:
        raise RuntimeError("another interface")

    def until_refinement(name: str, *overrides: str, **settings: Any) -> Any:
        return exit() if settings.get("base") else invoke(name, *overrides, **settings)

    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(wandb_run, "import_wandb", broken)
    monkeypatch.setattr(quickstart, "invoke", until_refinement)
    with pytest.raises(SystemExit):
        main(["quickstart", "task=reach", f"out={tmp_path}", "demos=2", "expert_noise=0", "bc_steps=1"])
    assert "RuntimeError: another interface" in caplog.text
    assert recorded(tmp_path / "data") == "whole"
    assert list((tmp_path / "bc" / "checkpoints").glob("step_*")), "the training goes on"


def test_experiments_record_again_what_was_interrupted(
    tmp_path: Path, ctrl_c: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("experiments", Path(__file__).parents[2] / "scripts/experiments.py")
    assert spec is not None and spec.loader is not None
    experiments = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "experiments", experiments)  # dataclasses look it up there
    spec.loader.exec_module(experiments)
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(experiments, "robopolicy", lambda *arguments, **options: calls.append(arguments))
    monkeypatch.setattr(experiments, "evaluate", lambda *arguments: exit())
    base = experiments.Base("reach", 3, 0.0)
    data = tmp_path / "bases" / f"{base.name}-0" / "data"
    ctrl_c()
    assert main([*DEMOS, f"out={data}"]) == 130
    for found, expected in (("part", ["demos", "train"]), ("whole", ["train"])):
        assert recorded(data) == found
        calls.clear()
        with pytest.raises(SystemExit):
            experiments.train_base(tmp_path, base, 0, 1)
        assert [name for name, *_ in calls] == expected
        assert main([*DEMOS, f"out={data}", "overwrite=true"]) == 0


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_says_what_repeating_it_does(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, arguments: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("robopolicy.cli.main._run", run)
    assert main([*verb.split(), "a=b c"]) == 130
    said = capsys.readouterr().err
    assert ("goes on from there" in said) == (verb in ("train", "quickstart", "refine", "pipeline")), (
        "the only ones that resume"
    )
    assert said.startswith("Interrupted. ") and said.endswith(f":\n  robopolicy {verb} 'a=b c'\n")


def test_a_program_that_is_not_on_the_path_is_named_by_its_own(monkeypatch, tmp_path):
    from robopolicy.cli.main import _program

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(tmp_path / ".venv/bin/robopolicy"), "train"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _program() == ".venv/bin/robopolicy"
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/robopolicy"])
    assert _program() == "/somewhere/bin/robopolicy"
    monkeypatch.setattr("sys.argv", ["pytest"])
    assert _program() == "robopolicy"


def test_a_reader_that_has_seen_enough_is_no_error():
    quiet = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    command = ["bash", "-o", "pipefail", "-c", f"{sys.executable} -m robopolicy --help | true"]
    for environment in (quiet, {**quiet, "PYTHONUNBUFFERED": "1"}):
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.stderr == "" and done.returncode in (0, 141), done

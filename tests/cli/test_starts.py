"""Starts that fail: paths that do not exist are named at once, and nothing that is new is left behind."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from robopolicy.cli.main import main
from robopolicy.cli.refine import refine
from robopolicy.cli.verbs import VERBS
from robopolicy.config import described
from robopolicy.config.compose import check_paths
from robopolicy.core.errors import CheckpointError, ConfigError, DataError
from robopolicy.runs.folder_lock import BusyError
from robopolicy.runs.run_dir import open_run, removed_if_nothing_came


@pytest.mark.parametrize(
    ("config", "error", "key"),
    [
        ({"dataset": "no/data"}, DataError, "dataset"),
        ({"memory": "no/data"}, DataError, "memory"),
        ({"recording": "no/data"}, DataError, "recording"),
        ({"checkpoint": "no/run"}, CheckpointError, "checkpoint"),
        ({"a": "no/run", "b": "no/run"}, CheckpointError, "a"),
        ({"a": [".", "no/run"], "b": [".", "."]}, CheckpointError, "a"),
        ({"base": "no/run"}, CheckpointError, "base"),
        ({"world": {"model": "no/run"}}, CheckpointError, "world.model"),
        ({"loop": {"rollouts": {"base": "no/data"}}}, DataError, "loop.rollouts.base"),
        ({"loop": {"data": {"more": "no/data"}}}, DataError, "loop.data.more"),
        ({"rollouts": {"b": "no/data"}}, DataError, "rollouts.b"),
    ],
)
def test_a_path_that_does_not_exist_is_named(config: dict[str, object], error: type[Exception], key: str) -> None:
    with pytest.raises(error, match=f"^{key}=no/"):
        check_paths(config)


def test_names_that_are_no_paths_are_not_looked_for(tmp_path: Path) -> None:
    check_paths({"base": "zero_action", "memory": "none", "checkpoint": "hub:lerobot/act", "dataset": str(tmp_path)})
    check_paths({"checkpoint": "runs/@", "suite": {"name": "metaworld_mt10"}})
    check_paths({"rename": {"a": "observation.state"}, "policy": {"entities": {"base": ["x", "y"]}}, "rollouts": 300})
    (tmp_path / "checkpoints").mkdir()
    check_paths({"run_dir": str(tmp_path), "base": "gone"})  # its copy lies in the checkpoint


def test_a_killed_recording_is_left_to_the_reader_which_names_it(tmp_path: Path) -> None:
    (tmp_path / ".data.recording-1").mkdir()
    check_paths({"dataset": str(tmp_path / "data")})


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "algo=bc", "dataset=gone", "run_dir=new/run"],
        ["train", "algo=bc", "dataset=empty", "run_dir=new/run"],
        ["train", "algo=residual", "base=empty", "task=reach", "run_dir=new/run"],
        ["demos", "task=gymnasium", "out=new/data"],
        ["quickstart", "task=gymnasium", "out=new"],
        ["eval", "checkpoint=empty", "out=new/rows"],
        ["compare", "a=empty", "b=empty", "out=new/rows"],
        ["robustness", "checkpoint=empty", "out=new/rows"],
        ["report", "run_dir=[]", "out=new/report.html"],
        ["convert", "recording=empty", "out=new/data"],
        ["export", "checkpoint=empty", "out=new/policy"],
        ["deploy", "checkpoint=empty", "record=new/recordings"],
        ["teleop", "task=reach", "out=new/data"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_a_failed_start_leaves_no_new_folder(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert main(arguments) in (1, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_no_report_is_written_into_a_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "episode_000000.mcap").touch()
    assert main(["report", f"run_dir={tmp_path}"]) == 1
    assert f"robopolicy replay recording={tmp_path}" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["episode_000000.mcap"]


def test_who_comes_second_leaves_the_folder_to_who_is_at_work(tmp_path: Path) -> None:
    run, config = tmp_path / "run", {"seed": 0}

    def second(first: contextlib.ExitStack) -> None:
        with removed_if_nothing_came(run):  # both found no folder
            first.enter_context(open_run(run, config))
            first.enter_context(open_run(run, config))

    with contextlib.ExitStack() as first, pytest.raises(BusyError, match="another process is at work"):
        second(first)
    assert (run / "config.yaml").is_file()


def test_no_training_goes_into_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "info.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"run_dir=.*: is a dataset. Give another folder"), open_run(tmp_path, {}):
        pass
    with pytest.raises(ConfigError, match=r"out=.*: is a dataset. Give another folder"):
        refine(base=Path("bc"), out=tmp_path, tracker={})
    assert [path.name for path in tmp_path.iterdir()] == ["meta"]


def test_results_and_folders_of_before_stay(tmp_path: Path) -> None:
    def fail(path: Path, file: str) -> None:
        with removed_if_nothing_came(path):
            path.mkdir(parents=True, exist_ok=True)
            (path / file).touch()
            raise ValueError("it failed")

    (tmp_path / "old").mkdir()
    for path, file in ((tmp_path / "old", "config.yaml"), (tmp_path / "a" / "run", "metrics.jsonl")):
        with pytest.raises(ValueError, match="it failed"):
            fail(path, file)
        assert [p.name for p in path.iterdir()] == [file]


def test_every_verb_that_computes_takes_threads() -> None:
    still = ("arm new", "arm check", "arm camera", "data import", "data view", "push")  # these run no network
    verbs = [verb for verb in VERBS.values() if verb.config and verb.name not in still]
    assert [v.name for v in verbs if "threads" not in described.entries()[v.target]["keys"]] == []

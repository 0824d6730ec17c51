"""The command line: one clear sentence for every mistake, the right exit code, never a traceback."""

from __future__ import annotations

import errno
import io
import os
import pickle
from pathlib import Path

import pytest

from robopolicy.cli import main as cli
from robopolicy.cli.main import main
from robopolicy.core.errors import ConfigError
from robopolicy.datasets.lerobot_writer import DatasetWriter
from robopolicy.runs.run_dir import open_run
from tests.datasets.conftest import ACTION, OBSERVATION, episode


def test_mistakes_of_a_command_line_are_listed_together(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["train", "run_dir=x", "loop.stepss=3", "loop.batch_size=0", "algo.lr=abc", "seed=abc"])
    said = capsys.readouterr().err
    assert code == 2
    assert said.startswith("error: 4 problems in the configuration:\n")
    for sentence in (
        "loop.stepss: unknown key; robopolicy.training.offline.offline does not take it. Did you mean 'steps'",
        "loop.batch_size: expected int ≥ 1 | null, found 0 (int)",
        "algo.lr: expected float > 0, found 'abc' (str)",
        "seed: expected int of 64 bits, found 'abc' (str)",
    ):
        assert sentence in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "unknown verb 'trian'. Did you mean 'train' or 'refine'?"),
        (
            ["train", "task=pik", "run_dir=x"],
            "task=pik: no such option of the group 'task'. Did you mean 'pick'? "
            "Options of your own come with --config-dir <folder that holds task/pik.yaml>; in Python with config_dir=.",
        ),
        (["train", "polcy=flow", "run_dir=x"], "polcy: unknown key; `train` does not take it. Did you mean 'policy'?"),
        (["doctor", "jsn=true"], "doctor: unknown override 'jsn=true'. Did you mean 'json=true'?"),
    ],
)
def test_typos_are_answered_with_the_closest_name(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--config-dir"], "--config-dir: expected one argument"),
        (["train", "--cfg=1"], "--cfg: ignored explicit argument '1'"),
        (["doctor", "--cfg"], "--cfg: `doctor` has no configuration"),
        (["doctor", "--config-dir", "x"], "--config-dir: `doctor` has no configuration"),
    ],
)
def test_options_that_cannot_be_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_a_verb_s_own_keys_are_no_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "_target_=x", "_partial_=true", "checkpoint=x"]) == 2
    said = capsys.readouterr().err
    assert all(f"{key}: unknown key; `eval` does not take it." in said for key in ("_target_", "_partial_"))


def test_a_page_is_not_written_over_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").touch()
    assert main(["report", f"run_dir={tmp_path}", f"out={tmp_path}"]) == 1
    assert capsys.readouterr().err.startswith(f"error: out={tmp_path}: is a folder; give a file")


def test_a_failed_start_does_not_stand_in_the_way_of_the_corrected_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("typo", "corrected"):
        assert main(["train", "algo=bc", f"dataset={tmp_path / name}", f"run_dir={tmp_path / 'r'}"]) == 1
        assert f"{name}: no dataset here" in capsys.readouterr().err


def test_an_empty_folder_s_name_is_refused_and_the_current_folder_is_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "algo=bc", "dataset=d", "run_dir="]) == 2
    assert "run_dir: is empty. Give a folder" in capsys.readouterr().err
    with DatasetWriter("d", observation=OBSERVATION, action=ACTION, dt=0.1, tasks=("pick", "push")) as writer:
        writer.add_episode(**episode(0, 5))
    train = ["train", "algo=bc", "policy=gaussian", "dataset=d", "loop.steps=2", "tracker=quiet", "threads=1"]
    assert main([*train, "run_dir=."]) == 0
    assert {"config.yaml", "provenance.json", "checkpoints"} <= {p.name for p in tmp_path.iterdir()}
    assert main([*train, "run_dir=.", "seed=7"]) == 1
    assert "was begun with another config" in capsys.readouterr().err
    (tmp_path / "sweep" / "seed_0").mkdir(parents=True)
    (tmp_path / "sweep" / "seed_0" / "job.json").write_text("{}")
    assert main([*train, "run_dir=sweep"]) == 1
    assert "run_dir=sweep: is the folder of a sweep" in capsys.readouterr().err


def test_evaluations_of_weights_that_are_gone_keep_another_run_from_their_folder(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    for name in ("provenance.json", "episodes.csv"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "provenance.json").rename(tmp_path / "kept")
    with pytest.raises(ConfigError, match=r"config\.yaml that no run of robopolicy wrote"):
        open_run(tmp_path, {"seed": 1}).__enter__()
    (tmp_path / "kept").rename(tmp_path / "provenance.json")
    with pytest.raises(ConfigError, match=r"no checkpoint any more, and episodes\.csv is of weights that are gone"):
        open_run(tmp_path, {"seed": 1}).__enter__()


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def run(name: str, arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "_run", run)


def test_a_full_disk_is_told_from_other_trouble(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/a/config.yaml"))
    assert main(["train"]) == 1
    said = capsys.readouterr().err
    assert "No space left on device: 'runs/a/config.yaml'. Free some space, then repeat the command" in said
    failing(monkeypatch, PermissionError(errno.EACCES, os.strerror(errno.EACCES), "runs"))
    assert main(["train"]) == 1
    assert capsys.readouterr().err == "error: [Errno 13] Permission denied: 'runs'.\n"


def test_letters_that_the_terminal_lacks_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="latin-1", errors="strict")
    monkeypatch.setattr("sys.stdout", out)
    assert main(["train", "--cfg", "run_dir=5–6"]) == 0
    assert out.buffer.getvalue().startswith(b"run_dir: 5\\u20136\n")


def test_a_command_without_output_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    assert main(["--version"]) == 0


def test_paths_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    assert main(["train", f"dataset={tmp_path}", f"run_dir={file / 'run'}"]) == 1
    assert capsys.readouterr().err == f"error: run_dir={file / 'run'}: is a file, or lies below one. Give a folder, " \
        "new or of a run.\n"  # fmt: skip
    (tmp_path / "weights.pt").write_bytes(pickle.dumps({}))
    assert main(["eval", f"checkpoint={tmp_path / 'weights.pt'}", f"out={tmp_path}"]) == 1
    assert "looks like a pickle" in capsys.readouterr().err
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("{")
    assert main(["train", f"dataset={tmp_path}", f"run_dir={tmp_path / 'run'}"]) == 1
    assert "config.yaml" in capsys.readouterr().err


def test_keys_need_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["teleop", "task=reach", f"out={tmp_path / 'd'}"]) == 1
    assert "standard input is not a terminal" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_wrong_path_is_named_before_code_of_the_users_own_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slow_code.py").write_text("raise AssertionError('imported')\n")
    monkeypatch.chdir(tmp_path)
    assert main(["train", "algo=bc", "dataset=runs/q/demos", "run_dir=r", "--allow", "slow_code"]) == 1
    assert capsys.readouterr().err.startswith("error: dataset=runs/q/demos: no dataset here")

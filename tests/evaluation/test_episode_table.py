from __future__ import annotations

import subprocess

import pytest
import torch

import robopolicy.utils.provenance as provenance_module
from robopolicy.core.errors import DataError
from robopolicy.core.rng import episode_seeds
from robopolicy.evaluation.episode_table import COLUMNS, EpisodeTable
from robopolicy.evaluation.rollout import evaluate
from robopolicy.utils.atomic import write_atomically
from robopolicy.utils.provenance import command, commit, hardware, provenance, version
from tests.evaluation.points import make_rows
from tests.fakes import PointEnv, PointPolicy


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_saved_rows_come_back_exactly(tmp_path, suffix):
    rows = evaluate(PointPolicy(noise=0.075), PointEnv(4), episode_seeds("validation", 0, 20))
    path = rows.save(tmp_path / f"episodes.{suffix}")
    again = EpisodeTable.load(path)
    assert list(again.frame.columns) == list(COLUMNS)
    assert again.frame.equals(rows.frame)
    assert again.split == "validation"
    assert [p.name for p in tmp_path.iterdir()] == [path.name]  # no temporary files


def test_empty_names_stay_empty(tmp_path):
    rows = make_rows([True, False], policy="")
    assert EpisodeTable.load(rows.save(tmp_path / "episodes.csv")).frame["policy"].tolist() == ["", ""]
    none = make_rows([])
    assert len(EpisodeTable.load(none.save(tmp_path / "none.csv"))) == 0


def test_numbers():
    rows = make_rows([True] * 485 + [False] * 15)
    assert rows.success_rate().low == pytest.approx(0.951096, abs=1e-6)
    assert rows.metrics()["success_rate"] == 0.97
    assert rows.metrics()["length"] == pytest.approx((485 * 7 + 15 * 12) / 500)
    assert rows.summary().startswith("success 97.0% (95% CI 95.1–98.2), at end 97.0%, 500 episodes of 7 steps")
    assert rows.split == "test"
    assert EpisodeTable.concat([rows, make_rows([True], start=1000)]).success_rate().value == 486 / 501
    assert EpisodeTable.concat([rows, make_rows([True], split=0)]).split == "mixed"


def test_bad_rows_are_refused(tmp_path):
    rows = make_rows([True, False])
    with pytest.raises(DataError, match=r"columns \['digest'\] are missing"):
        EpisodeTable(rows.frame.drop(columns="digest"))
    with pytest.raises(DataError, match="1 seeds occur twice"):
        EpisodeTable.concat([rows, make_rows([True])])
    with pytest.raises(DataError, match="diverged episode claims success"):
        EpisodeTable(rows.frame.assign(ended_by="diverged"))
    with pytest.raises(DataError, match="ended_by must be one of"):
        EpisodeTable(rows.frame.assign(ended_by="timeout"))
    with pytest.raises(DataError, match="criterion must be one of"):
        rows.successes("success")
    with pytest.raises(DataError, match=r"\.csv or \.parquet"):
        rows.save(tmp_path / "rows.json")
    with pytest.raises(DataError, match="no such file"):
        EpisodeTable.load(tmp_path / "episodes.csv")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"torn\.parquet: not readable"):
        EpisodeTable.load(tmp_path / "torn.parquet")
    whole = rows.save(tmp_path / "cut.csv").read_text()
    (tmp_path / "cut.csv").write_text(whole[: whole.rindex("True") + 2])
    with pytest.raises(DataError, match=r"cut\.csv: .*Is it cut\?"):
        EpisodeTable.load(tmp_path / "cut.csv")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = write_atomically(tmp_path / "a.txt", "old")
    with pytest.raises(TypeError):
        write_atomically(path, 3)  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_provenance_names_no_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = [f"{tmp_path}/bin/robopolicy", "train", f"out={tmp_path}/runs/a", "name=two words"]
    assert command(given) == "robopolicy train out=./runs/a 'name=two words'"
    assert command([f"{tmp_path}/scripts/results.py", "--check"]) == "python scripts/results.py --check"
    found = provenance(given)
    assert str(tmp_path) not in str(found)
    assert set(found) == {"command", "commit", "versions", "hardware", "system", "date"}
    assert "cores" in hardware() and version()
    assert found["versions"]["torch"] == torch.__version__.split("+")[0] or found["versions"]["torch"]


def test_a_shell_reads_back_the_words_of_a_command(tmp_path, monkeypatch):
    home, temporary = tmp_path / "ho me", tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    given = [f"dataset={home}/data/q7", f'base="{home}/it\'s (1), x"', f"run_dir={temporary}/a b", f"[{home},{home}-2]",
             str(home), f"--out={temporary}", "$HOME/x", "~/x", "name=", ""]  # fmt: skip
    said = command(["robopolicy", *given])
    assert str(home) not in said.replace(f"{home}-2", "") and 'dataset="$HOME"/data/q7 ' in said
    read = subprocess.run(["bash", "-c", f"printf '%s\\0' {said}"], check=True, capture_output=True, text=True).stdout
    assert read.split("\0")[:-1] == ["robopolicy", *given]


def test_what_was_recorded_does_not_make_the_code_another(tmp_path, monkeypatch):
    """Results in docs/ do not count as changes; code does."""

    def git(*arguments: str) -> None:
        who = ("-c", "user.name=x", "-c", "user.email=x@y.z")
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True)

    code = tmp_path / "robopolicy" / "utils" / "provenance.py"
    result = tmp_path / "docs" / "result.json"
    for file in (code, result, tmp_path / "pyproject.toml"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("1\n")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    monkeypatch.setattr(provenance_module, "__file__", str(code))
    result.write_text("2\n")
    assert not commit.__wrapped__().endswith("+dirty")
    code.write_text("2\n")
    assert commit.__wrapped__().endswith("+dirty")

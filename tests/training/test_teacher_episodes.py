"""A distillation without a dataset records its teacher once; of a refined one it learns the recorded actions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from robopolicy.cli.main import main
from robopolicy.config.instantiate import build
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.datasets.metadata import num_episodes
from robopolicy.runs.checkpointer import load_policy
from robopolicy.training import teacher_episodes
from robopolicy.training.teacher_episodes import FOLDER

QUIET = ("task=reach", "tracker=quiet", "seed=0", "threads=1", "validation_episodes=0", "loop.batch_size=32")


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bc/ and a residual/ on it."""
    at = tmp_path_factory.mktemp("teachers")
    assert main(["demos", "task=reach", f"out={at / 'data'}", "episodes=10", "expert_noise=0.3", "seed=0"]) == 0
    train = ["train", *QUIET, f"dataset={at / 'data'}"]
    assert main([*train, "algo=bc", f"run_dir={at / 'bc'}", "loop.steps=400"]) == 0
    assert main([*train, "algo=residual", f"base={at / 'bc'}", f"run_dir={at / 'residual'}", "loop.total_steps=100",
                 "loop.warmup_steps=64", "loop.critic_only_updates=20"]) == 0  # fmt: skip
    return at


def distill(teacher: Path, run: Path, *more: str) -> int:
    return main(["train", "algo=distill", *QUIET, f"teacher={teacher}", f"run_dir={run}", "teacher_episodes=6",
                 "loop.steps=20", *more])  # fmt: skip


def test_a_teacher_of_other_chunks_is_not_recorded(
    teachers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert distill(teachers / "bc", tmp_path / "run", "horizon=4") == 1
    assert "horizon: the student has 4, the teacher 8. Say horizon=8" in capsys.readouterr().err
    assert not (tmp_path / "run" / FOLDER).exists()


@pytest.mark.parametrize("kind", ["bc", "residual"])
def test_the_teacher_is_recorded_once(teachers: Path, tmp_path: Path, kind: str) -> None:
    run = tmp_path / "run"
    assert distill(teachers / kind, run) == 0
    data = run / FOLDER
    assert num_episodes(data) == 6
    if kind == "residual":
        assert bool(load_episodes(data).success.any())
    stamp = (data / "meta" / "info.json").stat().st_mtime_ns
    weights = load_policy(run).state_dict()
    (tmp_path / "again").mkdir()
    data.rename(tmp_path / "again" / FOLDER)
    assert distill(teachers / kind, tmp_path / "again") == 0, "its first checkpoint was lost, its episodes were not"
    assert (tmp_path / "again" / FOLDER / "meta" / "info.json").stat().st_mtime_ns == stamp
    again = load_policy(tmp_path / "again").state_dict()
    assert all(torch.equal(value, again[key]) for key, value in weights.items()), "recording draws nothing"


def test_episodes_of_another_teacher_are_recorded_again(teachers: Path, tmp_path: Path) -> None:
    assert distill(teachers / "bc", tmp_path / "a") == 0
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / FOLDER).rename(tmp_path / "b" / FOLDER)
    stamp = (tmp_path / "b" / FOLDER / "meta" / "info.json").stat().st_mtime_ns
    assert distill(teachers / "residual", tmp_path / "b") == 0
    assert (tmp_path / "b" / FOLDER / "meta" / "info.json").stat().st_mtime_ns != stamp


def test_a_teacher_that_succeeds_too_rarely_says_what_can_be_changed(
    teachers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = teacher_episodes.record_demos
    monkeypatch.setattr(teacher_episodes, "record_demos", lambda **given: usual(**given, max_attempts=3))
    assert distill(teachers / "residual", tmp_path / "run") == 1
    error = capsys.readouterr().err
    assert f"teacher={teachers / 'residual'}: succeeded in " in error and "teacher_episodes=<number>" in error
    assert "max_attempts" not in error and "only_success" not in error, "train has no such keys"


def test_a_dataset_of_others_does_not_teach_a_refined_policy(
    teachers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert distill(teachers / "residual", tmp_path / "run", f"dataset={teachers / 'data'}") == 1
    assert "Leave dataset out" in capsys.readouterr().err
    assert distill(teachers / "bc", tmp_path / "run", f"dataset={teachers / 'data'}") == 0
    assert not (tmp_path / "run" / FOLDER).exists()
    words = [f"teacher={teachers / 'bc'}", f"run_dir={tmp_path / 'other'}", *QUIET[1:]]
    assert main(["train", "algo=distill", *words]) == 1
    assert "dataset: is needed by offline. Give dataset=<path>, or task=<name>" in capsys.readouterr().err


def test_the_teacher_plays_by_the_sampler_that_is_asked_for(
    teachers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, run = list[Any](), tmp_path / "run"
    usual = teacher_episodes.PolicyExpert

    def expert(*given: Any, **options: Any) -> Any:
        asked.append(options["sampling"])
        return usual(*given, **options)

    monkeypatch.setattr(teacher_episodes, "PolicyExpert", expert)
    sampling = {"sampler": "ddim", "eta": 0.0}
    assert distill(teachers / "bc", run, "teacher_sampling={sampler: ddim, eta: 0.0}") == 0
    assert asked == [sampling]
    (tmp_path / "other").mkdir()
    (run / FOLDER).rename(tmp_path / "other" / FOLDER)  # as of a run that was stopped before its first checkpoint
    assert distill(teachers / "bc", tmp_path / "other") == 0
    assert asked == [sampling, None], "these episodes are of another sampler"
    env = build({"_target_": "native", "task": "reach"}, "task", num_envs=1, seed=0)
    played = usual(env, teachers / "bc", sampling={"sampler": "ddim", "eta": 0.5})
    assert not torch.equal(played.policy.steps, load_policy(teachers / "bc").steps)

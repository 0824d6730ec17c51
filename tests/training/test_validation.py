"""Validation during training: films of the evaluated episodes, few, failures first, and never a changed training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.evaluation.rollout import evaluate
from robopolicy.training import ranked, validation
from robopolicy.training.train import train
from robopolicy.training.train_config import TrainConfig
from robopolicy.training.validation import Validation
from tests.evaluation.points import FilmedPoint
from tests.fakes import PointEnv, PointPolicy


class Shown:
    """A tracker that keeps films."""

    def __init__(self, films: int = 2) -> None:
        self.films, self.kept = films, list[tuple[str, int, str]]()

    @property
    def shows_films(self) -> bool:
        return self.films > 0

    def video(self, name: str, path: Path, step: int, caption: str) -> None:
        assert path.stat().st_size > 500
        self.kept.append((name, step, caption))


def validating(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, env: Any = FilmedPoint, films: int = 2) -> Validation:
    monkeypatch.setattr(validation, "build", lambda node, slot, num_envs, seed: env(num_envs))
    found = Validation({"_target_": "point"}, episodes=20, run_dir=tmp_path)
    found.tracker = Shown(films)  # type: ignore[assignment]
    return found


def test_films_are_of_evaluated_episodes_failures_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    evaluate = validating(monkeypatch, tmp_path)
    before = torch.get_rng_state()
    metrics = evaluate(PointPolicy(noise=0.075), 7)
    assert torch.equal(torch.get_rng_state(), before)
    assert 0.0 < metrics["success_rate"] < 1.0 and (tmp_path / "evaluations" / "000000007.parquet").is_file()
    kept: Any = evaluate.tracker
    assert [(name, step) for name, step, _ in kept.kept] == [("films/0", 7), ("films/1", 7)]
    assert [caption.rpartition(" ")[2] for *_, caption in kept.kept] == ["failure", "success"]


def test_filming_is_bounded_in_number_and_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    evaluate = validating(monkeypatch, tmp_path, films=3)
    kept: Any = evaluate.tracker
    evaluate(PointPolicy(noise=0.075), 1)
    evaluate._film_s = 1e9
    evaluate(PointPolicy(noise=0.075), 2)
    assert len(kept.kept) == 3, "the second evaluation comes too soon"
    evaluate._film_s, evaluate._films = 0.0, validation._FILMS - 2
    evaluate._began -= 1e9
    evaluate(PointPolicy(noise=0.075), 3)
    evaluate(PointPolicy(noise=0.075), 4)
    assert [step for _, step, _ in kept.kept] == [1] * 3 + [3] * 2


def test_an_env_that_cannot_render_gets_one_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    evaluate = validating(monkeypatch, tmp_path, env=PointEnv)
    for step in (1, 2):
        assert evaluate(PointPolicy(noise=0.075), step)["episodes"] == 20
    assert caplog.text.count(SpecError.__name__) == 1 and "tracker.films=0" in caplog.text


def test_ranks_without_episodes_leave_those_of_the_others_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    env = PointEnv(4)
    own = evaluate(PointPolicy(noise=0.075), env, np.arange(4), policy_id="a")
    none = {name: [] for name in own.frame}
    monkeypatch.setattr(ranked.ranks, "count", lambda: 3)
    monkeypatch.setattr(ranked.ranks, "gather", lambda part: [none, part, none])
    found = ranked.gather_episodes(own)
    pd.testing.assert_frame_equal(found.frame, own.frame)


@pytest.mark.parametrize(
    ("given", "fix"),
    [({}, "Give task=<name>"), ({"task": {"_target_": "reach"}, "validation_episodes": 0}, "Set validation_episodes=")],
)
def test_an_interval_of_evaluations_without_anything_to_evaluate_on_is_refused(
    tmp_path: Path, given: dict[str, Any], fix: str
) -> None:
    loop = {"_target_": "offline", "eval_every": 10}
    with pytest.raises(ConfigError, match=f"^loop.eval_every=10: there is nothing to evaluate on. {fix}"):
        train(run_dir=tmp_path, tracker={}, loop=loop, **given)
    config = TrainConfig(run_dir=tmp_path, tracker={}, loop=loop, world={"_target_": "imagined"})
    config.check_evaluation()  # its gate evaluates

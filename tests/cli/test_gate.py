"""`robopolicy gate`: which episodes it judges on, and what it prints."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from robopolicy.cli import gate as gate_verb
from robopolicy.cli.gate import gate, text, unseen_share
from robopolicy.core.errors import ConfigError
from robopolicy.evaluation.off_policy_evaluation import GateResult
from tests.fakes import PointPolicy


@pytest.fixture
def data(tmp_path: Path) -> tuple[Path, Path]:
    """Paths of rollouts and of demonstrations."""
    for name in ("rollouts", "demos"):
        (tmp_path / name).mkdir()
    return tmp_path / "rollouts", tmp_path / "demos"


def config(rollouts: Path, demos: Path, held_out: float) -> dict[str, Any]:
    loop = {"_target_": "offline_rl", "rollouts": {"base": str(rollouts)}, "held_out": held_out}
    return {"dataset": str(demos), "loop": loop}


def test_it_judges_on_the_episodes_that_the_candidate_left_out(data: tuple[Path, Path], tmp_path: Path) -> None:
    rollouts, demos = data
    learned = config(rollouts, demos, 0.25)
    assert unseen_share(tmp_path, learned, rollouts, None) == 0.25
    assert unseen_share(tmp_path, learned, rollouts, 0.1) == 0.1
    assert unseen_share(tmp_path, learned, tmp_path / "others", None) == 1.0
    assert unseen_share(None, {}, rollouts, 0.4) == 0.4


@pytest.mark.parametrize(("which", "kept", "share"), [(0, 0.25, 0.5), (0, 0.0, None), (1, 0.25, None)])
def test_episodes_that_the_candidate_learned_from_are_refused(
    data: tuple[Path, Path], tmp_path: Path, which: int, kept: float, share: float | None
) -> None:
    learned = config(*data, kept)
    with pytest.raises(ConfigError, match=("loop.rollouts.base", "as dataset")[which].replace(".", r"\.")):
        unseen_share(tmp_path, learned, data[which], share)


def test_a_candidate_without_a_known_base_is_refused(tmp_path: Path) -> None:
    policy = tmp_path / "run" / "policy"
    policy.mkdir(parents=True)
    (policy / "policy.json").write_text("{}")
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump({"base": None}))
    with pytest.raises(ConfigError, match=r"base: .* Give base="):
        gate(candidate=policy, dataset=tmp_path)


def test_episodes_that_the_base_learned_from_are_refused(data: tuple[Path, Path], tmp_path: Path) -> None:
    for name, values in (("candidate", {"dataset": None}), ("base", {"dataset": str(data[1])})):
        policy = tmp_path / name / "policy"
        policy.mkdir(parents=True)
        (policy / "policy.json").write_text("{}")
        (tmp_path / name / "config.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError, match=r"demos: the base learned from it as dataset"):
        gate(candidate=tmp_path / "candidate" / "policy", base=tmp_path / "base" / "policy", dataset=data[1])


def test_it_prints_the_decision_with_both_bounds() -> None:
    said = text(GateResult(True, 0.12, 0.05, 0.19, 0.9, 75))
    assert said.startswith("accepted: the value changes by +0.1200 (+0.0500 to +0.1900 at 90% each)")
    assert text(GateResult(False, 0.0, -0.1, 0.1, 0.9, 75)).startswith("refused")


def test_a_policy_without_a_run_is_said_to_have_learned_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("candidate/policy", "alone"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "policy.json").write_text("{}")
    (tmp_path / "candidate" / "config.yaml").write_text(yaml.safe_dump({"dataset": None}))
    found = GateResult(True, 0.12, 0.05, 0.19, 0.9, 75)
    monkeypatch.setattr(gate_verb, "load_policy", lambda _: PointPolicy())
    monkeypatch.setattr(gate_verb, "load_episodes", lambda *_, **__: None)
    monkeypatch.setattr(gate_verb, "held_out_of", lambda *_: None)
    monkeypatch.setattr(gate_verb, "take", lambda *_: None)
    monkeypatch.setattr(gate_verb, "decide", lambda *_, **__: found)
    result = gate(candidate=tmp_path / "candidate", base=tmp_path / "alone", dataset=tmp_path, out=tmp_path / "out")
    assert result.without_run == ("base",)
    assert "base: no run lies beside this policy, so it counts as having learned from none" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "gate.json").read_text()) == {**asdict(found), "without_run": ["base"]}

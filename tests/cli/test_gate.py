"""`robopolicy gate`: which episodes it judges on, and what it prints."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from robopolicy.cli import gate as gate_verb
from robopolicy.cli import gate_world
from robopolicy.cli.gate import gate, joined, unseen_share
from robopolicy.core.errors import ConfigError, DataError, SpecError
from robopolicy.evaluation.gate_text import text
from robopolicy.evaluation.off_policy_evaluation import GateResult
from robopolicy.runs.checkpointer import Checkpointer
from robopolicy.runs.inputs import write_inputs
from tests.evaluation.test_off_policy_evaluation import one_chunk
from tests.fakes import PointPolicy
from tests.runs.test_checkpointer import gaussian
from tests.world_models.point import at, point_env
from tests.world_models.training.test_gate import STARTS, Walker


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
    with pytest.raises(ConfigError, match=(r"loop\.rollouts\.base", "all of it, as its dataset=")[which]):
        unseen_share(tmp_path, learned, data[which], share)


def test_a_base_that_was_trained_on_since_is_refused(tmp_path: Path) -> None:
    bc, refined = tmp_path / "bc", tmp_path / "refined"
    for run, base in ((bc, "null"), (refined, bc)):
        Checkpointer(run).save(1, policy=gaussian(0), state={})
        (run / "config.yaml").write_text(f"base: {base}\n")
    with pytest.raises(ConfigError, match=r"base: .*bc does not say which policy it refines"):
        gate(candidate=bc, dataset=tmp_path / "rollouts")
    write_inputs(refined, {"base": str(bc)})
    with pytest.raises(DataError, match="rollouts"):
        gate(candidate=refined, dataset=tmp_path / "rollouts")
    Checkpointer(bc).save(2, policy=gaussian(9), state={})
    with pytest.raises(ConfigError, match=r"base: .*refined from .*bc, and another policy lies there now"):
        gate(candidate=refined, dataset=tmp_path / "rollouts")
    shutil.rmtree(bc)
    with pytest.raises(ConfigError, match=r"base: .*refined from .*bc, and nothing lies there now"):
        gate(candidate=refined, dataset=tmp_path / "rollouts")


@pytest.mark.parametrize("key", ["teacher", "base"])
def test_episodes_that_a_teacher_learned_from_are_refused_too(
    data: tuple[Path, Path], tmp_path: Path, key: str
) -> None:
    """And those of the base of a base; a policy that names itself ends the search."""
    runs: dict[str, dict[str, Any]] = {
        "candidate": {key: str(tmp_path / "middle")},
        "middle": {"base": str(tmp_path / "first"), "teacher": str(tmp_path / "candidate")},
        "first": config(*data, 0.25),
    }
    for name, values in runs.items():
        (tmp_path / name / "policy").mkdir(parents=True)
        (tmp_path / name / "policy" / "policy.json").write_text("{}")
        (tmp_path / name / "config.yaml").write_text(yaml.safe_dump(values))
    run, found = gate_verb.run_of(tmp_path / "candidate" / "policy")
    names = [name for name, *_ in gate_verb.lineage("candidate", run, found)]
    assert names == ["candidate", f"candidate's {key}", f"candidate's {key}'s base"]
    other = tmp_path / "other" / "policy"
    other.mkdir(parents=True)
    (other / "policy.json").write_text("{}")
    with pytest.raises(ConfigError, match=f"rollouts: the candidate's {key}'s base learned from it as loop.rollouts"):
        gate(candidate=tmp_path / "candidate" / "policy", base=other, dataset=data[0], held_out=0.5)


MODEL = {"dataset": "demos", "loop": {"_target_": "fit_world_model", "data": {"own": "rollouts"}}}


@pytest.mark.parametrize(
    ("learned", "why"),
    [
        ({"world": {"_target_": "recorded", "dataset": "rollouts"}}, "candidate learned .* as its world.dataset="),
        (
            {"world": {"_target_": "imagined", "model": "model"}},
            "candidate's world.model learned .* its loop.data.own=",
        ),
        (
            {"loop": {"synthetic": {"model": "model/checkpoints/latest"}}},
            "loop.synthetic.model learned .*loop.data.own=",
        ),
        ({"world": {"model": "again"}}, "candidate's world.model's loop.init learned .* its loop.data.own="),
    ],
)
def test_episodes_of_the_world_that_it_learned_in_are_refused(tmp_path, monkeypatch, learned, why):
    monkeypatch.chdir(tmp_path)
    runs = {"candidate": learned, "base": {}, "model": MODEL, "again": {"loop": {"init": "model"}}}
    for name, values in runs.items():
        (tmp_path / name / "policy").mkdir(parents=True)
        (tmp_path / name / "policy" / "policy.json").write_text("{}")
        (tmp_path / name / "config.yaml").write_text(yaml.safe_dump(values))
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "model" / "checkpoints" / "latest").mkdir(parents=True)
    with pytest.raises(ConfigError, match=f"dataset=rollouts: the {why}" if "candidate" in why else why):
        gate(candidate=Path("candidate/policy"), base=Path("base/policy"), dataset=Path("rollouts"))


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
    with pytest.raises(ConfigError, match=r"demos: the base learned from all of it, as its dataset="):
        gate(candidate=tmp_path / "candidate" / "policy", base=tmp_path / "base" / "policy", dataset=data[1])


def test_it_prints_the_decision_with_both_bounds() -> None:
    said = text(GateResult(True, 0.12, 0.05, 0.19, 0.9, 75))
    assert said.startswith("accepted: the value changes by +0.1200 (+0.0500 to +0.1900 at 90% each)")
    assert "times as far" not in said
    assert text(GateResult(False, 0.0, -0.1, 0.1, 0.9, 75)).startswith("refused")
    far = text(GateResult(False, 0.4, 0.2, 0.5, 0.9, 75, distance=2.7))
    assert "Its chunks lie 2.7 times as far from the recorded ones as the base's, expected at most 2" in far


def test_a_policy_without_a_run_is_said_to_have_learned_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("candidate/policy", "alone"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "policy.json").write_text("{}")
    (tmp_path / "candidate" / "config.yaml").write_text(yaml.safe_dump({"dataset": None}))
    found = GateResult(True, 0.12, 0.05, 0.19, 0.9, 75)
    monkeypatch.setattr(gate_verb, "load_policy", lambda _: PointPolicy())
    data, judged = {"a": one_chunk(40), "b": one_chunk(30)}, list[int]()
    monkeypatch.setattr(gate_verb, "load_episodes", lambda path, **_: data[path.name])
    monkeypatch.setattr(gate_verb, "decide", lambda *given, **_: (judged.append(given[2].num_episodes), found)[1])
    given: dict[str, Any] = {
        "base": tmp_path / "alone",
        "dataset": tmp_path / "a",
        "rollouts": {"more": tmp_path / "b"},
    }
    result = gate(candidate=tmp_path / "candidate", out=tmp_path / "out", **given)
    assert judged == [70]
    assert result.without_run == ("base",)
    assert "base: no run lies beside this policy, so it counts as having learned from none" in capsys.readouterr().out
    written = json.loads((tmp_path / "out" / "decision.json").read_text())
    assert written == {**asdict(found), "without_run": ["base"], "faults": []}


def test_rollouts_that_do_not_fit_the_first_are_refused_by_name() -> None:
    parts = {"dataset=a": one_chunk(40), "rollouts.more=b": one_chunk(30)}
    assert joined(parts).num_episodes == 70
    for other, said in (({"tasks": ("another",)}, "tasks"), ({"dt": 0.5}, "dt")):
        with pytest.raises(SpecError, match=rf"^rollouts\.more=b: .*(?s:.)*{said}"):
            joined({**parts, "rollouts.more=b": replace(one_chunk(30), **other)})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, r"^dataset: needs a value.*world=imagined world\.model="),
        ({"world": {"_target_": "imagined"}, "dataset": Path("a"), "rollouts": {"more": Path("b")}, "updates": 7},
         r"^dataset, rollouts\.more, updates: a gate in a world model reads no rollouts"),
        ({"world": {"_target_": "imagined"}, "held_out": 0.5}, r"^held_out: a gate in a world model"),
    ],
)  # fmt: skip
def test_it_judges_on_episodes_or_in_a_world(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        gate(candidate=Path("a"), base=Path("b"), **given)


@pytest.mark.parametrize(("learner", "key"), [("candidate", "world"), ("candidate", "base"), ("base", "world")])
def test_a_world_that_a_policy_learned_in_is_refused(tmp_path: Path, learner: str, key: str) -> None:
    """Its own, and that of the policy that it refines."""
    world = {"_target_": "imagined", "model": str(tmp_path / "model")}
    inside: dict[str, Any] = {"world": world} if key == "world" else {"base": str(tmp_path / "middle")}
    for name in ("candidate", "base", "middle", "model"):
        (tmp_path / name / "policy").mkdir(parents=True)
        (tmp_path / name / "policy" / "policy.json").write_text("{}")
        values = inside if name == learner else {"world": world} if name == "middle" else {}
        (tmp_path / name / "config.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError, match=rf"world\.model=.*: the {learner}.* learned in this world model"):
        gate(candidate=tmp_path / "candidate", base=tmp_path / "base", world=world)


def test_a_decision_in_a_world_is_told_in_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("candidate", "base"):
        (tmp_path / name / "policy").mkdir(parents=True)
        (tmp_path / name / "policy" / "policy.json").write_text("{}")
        (tmp_path / name / "config.yaml").write_text(yaml.safe_dump({"world": None}))
    env = point_env(STARTS, 1)
    env.held_out = lambda: at(STARTS)
    policies = {"candidate": Walker(1.0), "base": Walker(0.0)}
    success = {"precision": 0.5, "wanted": 0.9, "recall": 1.0, "positives": 7}
    env.world.report = {"success": success, "open_loop": {}}
    monkeypatch.setattr(gate_world, "build", lambda *_, **__: env)
    monkeypatch.setattr(gate_world, "load_policy", lambda path, **_: policies[path.name])
    world = {"_target_": "imagined", "model": str(tmp_path / "model")}
    result = gate(candidate=tmp_path / "candidate", base=tmp_path / "base", world=world, out=tmp_path / "out")
    assert result.accepted and result.estimator == "world_model"
    said = capsys.readouterr().out
    assert "accepted: success changes by +100.0 points (+100.0 to +100.0 at 90% each)" in said
    assert "from 20 held-out starts. It is too uncertain of 0% and 0% of the candidate's and the base's" in said
    assert "would not do to learn in: success: precision 0.5" in said
    assert json.loads((tmp_path / "out" / "decision.json").read_text())["estimator"] == "world_model"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"_target_": "recorded"}, r"^world=recorded: actions have no effect in it"),
        ({"branch": 10}, r"^world\.branch=10: has no effect"),
        ({"part": "all", "start_at": "any"}, r"^world\.part=all, world\.start_at=any: has no effect"),
        ({"gate": {"_target_": "gate", "starts": 20, "level": 0.9}}, r"^world\.gate\.level=0\.9: has no effect"),
    ],
)
def test_keys_of_a_world_without_an_effect_are_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        gate_world.in_world(Path("a"), Path("b"), {"_target_": "imagined", "model": "m", **keys}, [], level=0.9, seed=0)


def test_starts_of_a_dataset_and_their_number_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    env = point_env(STARTS, 1)
    env.world.report = {"success": {"precision": 1.0, "wanted": 0.9, "recall": 1.0}, "open_loop": {}}
    monkeypatch.setattr(gate_world, "build", lambda *_, **__: env)
    monkeypatch.setattr(gate_world, "load_policy", lambda path, **_: Walker(float(path.name)))
    world = {"_target_": "imagined", "model": "m", "starts": "data", "gate": {"starts": 12}}
    found = gate_world.in_world(Path("1"), Path("0"), world, [], level=0.9, seed=0)
    assert found.episodes == 12 and found.accepted and found.faults == ()


def test_a_policy_that_does_not_fit_the_world_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: Path, **_: Any) -> Walker:
        if path.name == "b":
            raise SpecError("its state differs")
        return Walker()

    monkeypatch.setattr(gate_world, "build", lambda *_, **__: point_env(STARTS, 1))
    monkeypatch.setattr(gate_world, "load_policy", load)
    with pytest.raises(SpecError, match=r"^base=b: does not fit world\.model=m\..*\nits state differs"):
        gate_world.in_world(Path("a"), Path("b"), {"_target_": "imagined", "model": "m"}, [], level=0.9, seed=0)


def test_a_policy_given_as_the_world_is_named(tmp_path: Path) -> None:
    world = {"_target_": "imagined", "model": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"^world\.model=.*: is the base itself"):
        gate_world.in_world(Path("a"), tmp_path, world, [("base", tmp_path, {})], level=0.9, seed=0)


def test_a_world_of_one_of_the_candidates_rounds_or_made_from_its_own_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    made_from = {"loop": {"init": str(tmp_path / "own")}}
    for path, config in ((run / "round_1" / "model", {}), (tmp_path / "next", made_from), (tmp_path / "own", {})):
        path.mkdir(parents=True)
        (path / "config.yaml").write_text(yaml.safe_dump(config))
    its = {"world": {"model": str(tmp_path / "own")}}
    for model in (run / "round_1" / "model", tmp_path / "own", tmp_path / "next"):
        world = {"_target_": "imagined", "model": str(model)}
        with pytest.raises(ConfigError, match="the candidate learned in this world model, or in one that it was made"):
            gate_world.in_world(run, run, world, [("candidate", run, its)], level=0.9, seed=0)

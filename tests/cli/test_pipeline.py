"""A pipeline runs its stages once, resumes, and refuses a stage whose config or inputs changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from robopolicy.cli import pipeline_gate, pipeline_plan, pipeline_stages
from robopolicy.cli.main import main
from robopolicy.cli.pipeline_gate import PipelineGate
from robopolicy.cli.pipeline_names import split_keys
from robopolicy.cli.run_verb import call
from robopolicy.config import registry
from robopolicy.config.verb import Verb
from robopolicy.core.errors import ConfigError
from robopolicy.core.types import STATE, Feature
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.datasets.metadata import RecordingMeta, env_steps_of
from robopolicy.evaluation.off_policy_evaluation import GateResult
from robopolicy.policies.find import read_spec
from robopolicy.runs.checkpointer import load_policy
from robopolicy.runs.run_dir import read_config
from robopolicy.training import refinement_rules
from robopolicy.training.offline_rl import NoFailures
from robopolicy.training.teacher_episodes import FOLDER
from tests.evaluation.points import make_rows
from tests.evaluation.test_off_policy_evaluation import one_chunk
from tests.fakes import PointEnv

MORE = (
    "tracker=quiet", "seed=0", "threads=1", "rollouts=12", "look_episodes=12", "env_steps=200", "episodes=12",
    "imitate.loop.steps=200", "imitate.validation_episodes=0", "imitate.loop.batch_size=32",
    "stages=[imitate,collect,online,one_step,compare]", "online.loop.warmup_steps=64", "one_step.loop.steps=10",
    "videos=1", "one_step.teacher_episodes=4", "online.loop.critic_only_updates=20",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def a_budget_of_a_test() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refinement_rules, "LEAST", 100)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pipeline") / "data"
    assert main(["demos", "task=reach", f"out={out}", "episodes=10", "expert_noise=0.3", "seed=0"]) == 0
    return out


@pytest.fixture(scope="module")
def finished(data: Path) -> Path:
    out = data.parent / "whole"
    assert pipeline(data, out) == 0
    return out


def pipeline(data: Path, out: Path, *more: str) -> int:
    return main(["pipeline", "task=reach", f"dataset={data}", f"out={out}", *MORE, *more])


def test_every_stage_is_an_ordinary_run_and_the_page_tells_of_all(finished: Path) -> None:
    for stage in ("imitate", "online", "one_step"):
        assert (finished / stage / "checkpoints" / "latest").is_file()
        assert (finished / "compare" / f"episodes-{stage}.csv").is_file()
    records = json.loads((finished / "stages.json").read_text())
    assert all(records[name]["done"] and records[name]["seconds"] > 0 for name in ("imitate", "collect", "online"))
    assert records["collect"]["env_steps"] > 0 and records["online"]["env_steps"] >= 100
    page = (finished / "report.html").read_text()
    counted = [env_steps_of(path) for path in (finished / "collect" / "data", finished / "one_step" / FOLDER)]
    assert min(counted) > 0 and all(f"{steps:,}" in page for steps in counted), "the teacher's episodes too"
    assert page.count("data:video/mp4") == 1 and "imitate | one_step" in page
    assert "of 12 episodes succeeded" in page and "algo=residual loop.total_steps=200" in page


def test_what_is_done_is_not_redone(
    data: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "moved"
    shutil.copytree(finished, out, symlinks=True)
    before = json.loads((out / "stages.json").read_text())
    shutil.rmtree(out / "one_step")
    capsys.readouterr()
    assert pipeline(data, out) == 0
    said = capsys.readouterr().out
    assert said.count("already there") == 3 and said.count("trained: ") == 1 and "moved/one_step (" in said
    after = json.loads((out / "stages.json").read_text())
    assert after["online"]["overrides"] == before["online"]["overrides"]
    assert after["online"]["env_steps"] == before["online"]["env_steps"]


def test_env_steps_of_a_recording_count_where_its_note_was_lost(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    shutil.copytree(finished, out, symlinks=True)
    records = json.loads((out / "stages.json").read_text())
    steps = records.pop("collect")["env_steps"]
    (out / "stages.json").write_text(json.dumps(records))
    words = [f"base={out / 'imitate'}", f"out={out}", "stages=[collect]", *MORE[:4]]
    assert main(["pipeline", "task=reach", *words]) == 0
    assert json.loads((out / "stages.json").read_text())["collect"]["env_steps"] == steps > 0


def test_links_of_wandb_do_not_stop_it_and_others_do(
    data: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "linked"
    shutil.copytree(finished, out, symlinks=True)
    for folder in ("wandb", "elsewhere"):
        link = out / "online" / folder / "debug.log"
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(data / "meta" / "info.json")
        capsys.readouterr()
        assert pipeline(data, out) == (folder == "elsewhere")
    assert "elsewhere/debug.log is a link that leads out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["imitate.loop.batch_size=16"], "stage imitate: "),
        (["rollouts=13"], "episodes: was 12, now 13"),
        (["one_step.policy.sampling_steps=2"], "stage one_step: "),
    ],
)
def test_a_stage_of_another_config_is_refused_by_name(
    data: Path, finished: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pipeline(data, finished, *words) == 1
    said = capsys.readouterr().err
    assert message in said and "to run this stage again" in said


def test_a_stage_whose_input_was_made_again_is_refused(
    data: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished, out, symlinks=True)
    for stage in ("imitate", "collect"):
        shutil.rmtree(out / stage)
    assert pipeline(data, out, "imitate.loop.steps=210") == 1
    said = capsys.readouterr().err
    assert "stage online: " in said and "- base: was" in said


def test_another_budget_than_it_began_with_is_refused(
    data: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pipeline(data, finished, "env_steps=400") == 1
    assert "env_steps=400: `online` began with algo=residual loop.total_steps=200" in capsys.readouterr().err


def test_its_page_is_not_overwritten_and_a_run_is_not_taken_for_its_folder(
    data: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (finished / "report.html").read_text()
    assert main(["report", f"run_dir={finished}"]) == 1
    assert "is the folder of a pipeline" in capsys.readouterr().err and (finished / "report.html").read_text() == page
    for folder in (finished / "imitate", data):
        there = sorted(folder.iterdir())
        assert pipeline(data, folder) == 1
        assert "is a run or a dataset" in capsys.readouterr().err and sorted(folder.iterdir()) == there


def test_a_base_begins_it_and_stages_are_left_out(
    data: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"base={finished / 'imitate'}", f"out={tmp_path / 'out'}", "stages=[collect,compare]", *MORE[:7]]
    assert main(["pipeline", *words]) == 0
    assert sorted(p.name for p in (tmp_path / "out").iterdir() if p.is_dir()) == ["collect", "compare"]
    assert (tmp_path / "out" / "compare" / "episodes-base.csv").is_file()


@pytest.mark.parametrize("accepted", [True, False])
def test_the_gate_decides_what_later_stages_build_on(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accepted: bool
) -> None:
    def gated(verb: Verb, config: dict[str, Any]) -> Any:
        return GateResult(accepted, 0.1, 0.0, 0.2, 0.9, 25) if verb.name == "gate" else call(verb, config)

    monkeypatch.setattr(pipeline_gate, "call", gated)
    monkeypatch.setattr(pipeline_plan, "FEWEST", 1)
    words = [f"base={finished / 'imitate'}", f"out={tmp_path}", "stages=[collect,offline,one_step]", *MORE[:3],
             "rollouts=12", "offline.loop.steps=4", "offline.loop.critic_only_updates=2", "offline.loop.batch_size=8",
             "one_step.loop.steps=2", "one_step.teacher_episodes=2", "gate=fitted_q"]  # fmt: skip
    assert main(["pipeline", *words]) == 0
    kept = tmp_path / "offline" if accepted else finished / "imitate"
    assert (read_config(tmp_path / "one_step") or {})["teacher"] == str(kept)
    page = (tmp_path / "report.html").read_text()
    assert ("the policy before it stays" in page) == (not accepted)


QUICK = ("offline.loop.steps=4", "offline.loop.critic_only_updates=2", "offline.loop.batch_size=8", "gate=fitted_q")


def deciding(monkeypatch: pytest.MonkeyPatch, decisions: list[bool]) -> list[dict[str, Any]]:
    """Let the gate decide so, in order; return the configs that it was called with."""
    asked = list[dict[str, Any]]()

    def gated(verb: Verb, config: dict[str, Any]) -> Any:
        if verb.name != "gate":
            return call(verb, config)
        asked.append(config)
        return GateResult(decisions[len(asked) - 1], 0.1, 0.0, 0.2, config["level"], 25, ("base",))

    monkeypatch.setattr(pipeline_gate, "call", gated)
    monkeypatch.setattr(pipeline_plan, "FEWEST", 1)
    return asked


def test_a_further_round_learns_from_all_episodes_and_builds_on_the_accepted_policy(
    data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished, out, symlinks=True)
    for stage in ("online", "one_step", "compare", "look"):
        shutil.rmtree(out / stage)
    asked = deciding(monkeypatch, [True, False, True])
    monkeypatch.setattr(PipelineGate, "undecidable", lambda self, data: "")
    words = ("rounds=2", "stages=[imitate,collect,offline,compare]", *QUICK)
    assert pipeline(data, out, *words) == 0

    names = ["collect", "compare", "imitate", "offline", *(f"{s}_2" for s in ("collect", "imitate", "offline"))]
    assert sorted(p.name for p in out.iterdir() if p.is_dir()) == sorted(names)
    runs = {name: read_config(out / name) or {} for name in names}
    both = {name: str(out / name / "data") for name in ("collect", "collect_2")}
    assert runs["imitate_2"]["loop"]["rollouts"] == runs["offline_2"]["loop"]["rollouts"] == both
    assert runs["imitate_2"]["loop"]["held_out"] == runs["offline_2"]["loop"]["held_out"] == 0.25
    assert runs["imitate_2"]["dataset"] == str(data) and runs["imitate_2"].get("base") is None
    assert runs["collect_2"]["expert"]["checkpoint"] == str(out / "offline")
    assert runs["collect_2"]["seed"] != runs["collect"]["seed"]
    assert runs["offline_2"]["base"] == str(out / "offline"), "the refused imitation is not built on"
    assert [c["base"] for c in asked] == [str(out / name) for name in ("imitate", "offline", "offline")]
    assert [c["dataset"] for c in asked] == [both["collect"], both["collect_2"], both["collect_2"]]
    assert [c["rollouts"] for c in asked] == [{}, *[{"collect": both["collect"]}] * 2]
    page = (out / "report.html").read_text()
    assert "imitate_2 (not accepted)" in page and "no run lies beside this policy" in page

    shutil.rmtree(out / "offline_2")
    asked = deciding(monkeypatch, [False, True])
    capsys.readouterr()
    assert pipeline(data, out, *words) == 0
    assert capsys.readouterr().out.count("already there") == 5 and len(asked) == 1

    asked = deciding(monkeypatch, [True] * 3)
    assert pipeline(data, out, *words, "level=0.8") == 1  # offline_2 began with another policy
    assert [c["level"] for c in asked] == [0.8, 0.8], "another level decides again"
    assert "stage offline_2: " in capsys.readouterr().err


def test_the_gate_judges_in_a_world_model_of_all_episodes(
    data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round learns one. Another estimator decides again."""
    asked = deciding(monkeypatch, [True, True])
    monkeypatch.setattr(PipelineGate, "undecidable", lambda self, data: "")
    trained = list[dict[str, Any]]()

    def remembered(verb: Verb, config: dict[str, Any]) -> Any:
        if config.get("loop", {}).get("_target_") != "fit_world_model":
            return call(verb, config)
        trained.append(config)
        return {"steps": 1.0}

    monkeypatch.setattr(pipeline_stages, "call", remembered)
    words = [f"base={finished / 'imitate'}", f"dataset={data}", f"out={tmp_path}", "stages=[collect,offline]",
             "rounds=2", "model.loop.steps=7", *MORE[:3], "rollouts=12", *QUICK[:-1]]  # fmt: skip
    monkeypatch.setattr(pipeline_stages, "unusable", lambda model: [])
    monkeypatch.setattr(pipeline_gate, "model_digest", lambda model, which: f"{model.name} at first")
    assert main(["pipeline", *words]) == 0
    collected = [str(tmp_path / name / "data") for name in ("collect", "collect_2")]
    assert [c["dataset"] for c in trained] == collected
    assert [c["loop"]["data"] for c in trained] == [{"demos": str(data)}, {"collect": collected[0], "demos": str(data)}]
    assert all(c["loop"]["steps"] == 7 and c["loop"]["success"]["precision"] == 0.9 for c in trained)
    assert [c["world"]["model"] for c in asked] == [str(tmp_path / name) for name in ("model", "model_2")]
    assert all(c["dataset"] is None and not c["rollouts"] for c in asked)
    assert "recordings and the demonstrations" in (tmp_path / "report.html").read_text()

    asked = deciding(monkeypatch, [True, True])
    without = [word for word in words if not word.startswith("model.")]
    assert main(["pipeline", *without, "gate=fitted_q"]) == 0
    assert [c["dataset"] for c in asked] == collected, "another estimator decides again"

    asked = deciding(monkeypatch, [True, True])
    monkeypatch.setattr(pipeline_stages, "unusable", lambda model: ["5 steps: error 2."] * (model.name == "model"))
    assert main(["pipeline", *words]) == 0
    assert [c["dataset"] for c in asked] == [None], "the first is decided so already, the second in its world again"


def test_a_decision_is_of_the_world_model_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = deciding(monkeypatch, [True, True])
    monkeypatch.setattr(pipeline_gate, "compose", lambda verb, words, settings: {**settings, "words": words})
    flow = pipeline_stages.Flow(tmp_path, {}, None, {}, common={"seed": 0, "threads": 1})
    flow.policies["imitate"], flow.accepted, flow.collected["collect"] = tmp_path, "imitate", tmp_path / "collect/data"
    flow.gate.model = tmp_path / "model"
    for digest, times in (("a", 1), ("a", 1), ("b", 2)):
        monkeypatch.setattr(pipeline_gate, "model_digest", lambda model, which, digest=digest: digest)
        flow._gate("offline", None)
        assert len(asked) == times, digest


def test_where_episodes_do_not_make_a_world_model_the_gate_reads_them(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = deciding(monkeypatch, [True])
    monkeypatch.setattr(PipelineGate, "undecidable", lambda self, data: "")
    words = [f"base={finished / 'imitate'}", f"out={tmp_path}", "stages=[collect,offline]", *MORE[:3], "rollouts=12",
             *QUICK[:-1]]  # fmt: skip
    assert main(["pipeline", *words]) == 0
    assert [c["dataset"] for c in asked] == [str(tmp_path / "collect" / "data")]
    said = capsys.readouterr().out
    assert "No world model: " in said and "So the gate reads the held-out episodes." in said, said
    assert "No world model: " in (tmp_path / "report.html").read_text()


def test_no_world_model_is_learned_for_a_policy_that_reads_what_it_would_not_predict(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = load_policy(finished / "imitate")
    config = {"world_model": {"_target_": "ensemble"}}
    recorded = [finished / "collect" / "data"]
    for reads, found in ((STATE, []), ("observation.goal", ["the policy reads observation.goal, which world_model="
                                                           "ensemble does not predict."])):  # fmt: skip
        spec = replace(policy.spec, observation={reads: Feature((3,), "float32")})
        monkeypatch.setattr(pipeline_gate, "load_policy", lambda path, spec=spec: SimpleNamespace(spec=spec))
        assert pipeline_gate.needless(finished, config, recorded) == found
    monkeypatch.setattr(
        RecordingMeta, "load", lambda path: SimpleNamespace(provenance={"successes": 3, "attempted": 3})
    )
    monkeypatch.setattr(pipeline_gate, "load_policy", lambda path: policy)
    assert pipeline_gate.needless(finished, config, recorded) == ["no recorded episode failed."]


def test_a_base_that_offline_cannot_fine_tune_is_refused_before_any_stage(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"base={finished / 'online'}", f"out={tmp_path}", "stages=[collect,offline]", "rollouts=300", *MORE[:3]]
    assert main(["pipeline", *words]) == 1
    assert "stage offline: base: a diffusion or flow policy has a chain to fine-tune" in capsys.readouterr().err
    assert not (tmp_path / "collect").exists()


def test_no_further_round_is_made_where_no_gate_can_decide(
    data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deciding(monkeypatch, [True])
    monkeypatch.setattr(pipeline_gate, "load_episodes", lambda path, needed: load_episodes(data, needed=needed))
    words = [f"base={finished / 'imitate'}", f"out={tmp_path}", "stages=[collect,offline]", "rounds=3", *MORE[:3],
             "rollouts=12", *QUICK]  # fmt: skip
    assert main(["pipeline", *words]) == 0
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["collect", "collect_2", "offline"]
    assert "held-out episodes succeeded, so no gate can tell" in capsys.readouterr().out


@pytest.mark.parametrize("won", [True, False])
def test_where_no_gate_can_decide_about_the_first_round_the_policy_before_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, won: bool
) -> None:
    asked, recorded = deciding(monkeypatch, []), one_chunk(40)
    recorded = replace(recorded, success=torch.full_like(recorded.success, won))
    monkeypatch.setattr(pipeline_gate, "load_episodes", lambda path, needed: recorded)
    flow = pipeline_stages.Flow(tmp_path, {}, None, {}, common={"seed": 0, "threads": 1})
    flow.policies["imitate"], flow.accepted, flow.collected["collect"] = tmp_path, "imitate", tmp_path / "collect/data"
    flow._gate("offline", {"steps": 1.0})
    record = flow.records["offline"]
    assert not asked and not record.accepted
    assert f"held-out episodes {'succeeded' if won else 'failed'}, so no gate can tell a better policy" in record.note


def test_where_no_episode_failed_the_policy_before_it_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_failed(*_: Any, **__: Any) -> None:
        raise NoFailures("none of 40 episodes failed.")

    monkeypatch.setattr(pipeline_stages.Flow, "_train", none_failed)
    flow = pipeline_stages.Flow(tmp_path, {}, None, {})
    flow.policies["imitate"], flow.accepted = tmp_path, "imitate"
    assert flow.offline() is True, "it was not there already"
    assert flow.accepted == "imitate" and "offline" not in flow.policies
    assert flow.results["offline"].note == "none of 40 episodes failed. So the policy before it stays."
    assert not flow.results["offline"].accepted


def test_a_student_of_a_policy_that_follows_noise_has_its_horizons(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = dict[str, Any]()
    monkeypatch.setattr(pipeline_stages.Flow, "_train", lambda self, *_, **inputs: asked.update(inputs))
    spec = replace(read_spec(finished / "imitate"), n_obs_steps=2, horizon=16, n_action_steps=6)
    monkeypatch.setattr(pipeline_stages, "read_spec", lambda path: spec)
    flow = pipeline_stages.Flow(tmp_path, {}, None, {})
    flow.policies["imitate"], flow.accepted = finished / "imitate", "imitate"
    flow.one_step()
    assert [asked[key] for key in ("n_obs_steps", "horizon", "n_action_steps")] == [2, 16, 6]


def test_a_task_whose_starts_are_all_its_test_is_refused(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    env = PointEnv(1)
    env.fixed_starts = 50  # type: ignore[attr-defined]
    monkeypatch.setattr(pipeline_plan, "build", lambda *_, **__: env)
    assert (
        main(["pipeline", "task=reach", f"dataset={data}", f"out={tmp_path / 'out'}", "stages=[imitate,one_step]"]) == 1
    )
    assert "the 50 starts of point are all its test, and demos, collect, online and one_step" in capsys.readouterr().err


def test_the_expert_of_the_task_demonstrates_where_nothing_is_given(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["task=reach", f"out={out}", "demos=6", "expert_noise=0.3", "num_envs=6", *MORE, "stages=[imitate]"]
    assert main(["pipeline", *words, "imitate.loop.steps=4"]) == 0
    recorded = read_config(out / "demos") or {}
    assert (recorded["episodes"], recorded["expert_noise"], recorded["num_envs"]) == (6, 0.3, 6)
    assert (read_config(out / "imitate") or {})["dataset"] == str(out / "demos" / "data")
    assert "6 of " in (out / "report.html").read_text()


def test_a_task_of_a_suite_takes_the_same_path(tmp_path: Path) -> None:
    pytest.importorskip("metaworld")
    out = tmp_path / "out"
    words = ["task=metaworld", "task.name=reach-v3", "task.horizon=100", f"out={out}", "demos=2", "num_envs=3",
             *MORE[:3],
             "rollouts=3", "episodes=3", "imitate.loop.steps=4", "imitate.validation_episodes=0",
             "stages=[imitate,collect,compare]"]  # fmt: skip
    assert main(["pipeline", *words]) == 0
    task = {"_target_": "metaworld", "name": "reach-v3", "horizon": 100}
    assert [(read_config(out / name) or {})["task"] for name in ("demos", "imitate", "collect")] == [task] * 3
    assert (out / "compare" / "episodes-imitate.csv").is_file()


@pytest.mark.parametrize(
    ("after", "worse"), [([True] * 10, False), ([True] * 5 + [False] * 5, False), ([False] * 10, True)]
)
def test_a_refined_policy_that_is_shown_to_be_worse_is_not_built_on(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: list[bool], worse: bool
) -> None:
    rows = {"sampled-10": make_rows([True] * 10), "online": make_rows(after)}
    monkeypatch.setattr(pipeline_stages, "evaluated_rows", lambda policy, env, ref, called, *_, **__: rows[called])
    task = (read_config(finished / "imitate") or {})["task"]
    flow = pipeline_stages.Flow(tmp_path, task, None, {}, common={"device": "cpu"})
    flow.policies["base"], flow.accepted = finished / "imitate", "base"
    assert flow._is_worse(finished / "online", 10) == worse


def test_keys_of_a_stage_know_the_groups_inside_others() -> None:
    keys = {"network": {"width": 64}, "policy": "flow", "loop": {"steps": 3}}
    assert split_keys(keys) == (["policy=flow"], {"policy.network.width": 64, "loop.steps": 3})
    assert split_keys({"network": "unet1d"}) == (["network=unet1d"], {})


def test_offline_needs_episodes(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "task=reach", f"dataset={data}", f"out={tmp_path / 'o'}", "stages=[imitate,offline]"]) == 1
    assert "Add collect, or remove offline" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there is no policy to begin with"),
        (["stages=[collect]"], "there is no policy to begin with"),
        (["task=null"], "task"),
        (["imitate.loop.stepz=3"], "stepz"),
        (["stages=[collec]"], "stages"),
        (["stages=[imitate,collect,offline]"], "about 3 of these episodes are held out"),
        (["stages=[imitate,collect]", "rounds=2"], "about 3 of these episodes are held out"),
        (["stages=[imitate,compare]", "rounds=2"], "rounds=2: a further round records episodes"),
        (["stages=[imitate,colect]"], "Did you mean 'collect'"),
        (["dataset=nowhere", "online.loop.totl_steps=3"], "stage online: loop.totl_steps: unknown key"),
        (["dataset=nowhere", "online.loop.totl_steps=3", "--allow", "tests.fakes"], "stage online: loop.totl_steps"),
        (["stages=[imitate,collect,offline]", "rollouts=300", "offline.loop.held_out=0"], "about 0 of these episodes"),
        (["level=0.3"], "level=0.3: expected a confidence from 0.5"),
        (["gate=fitted_q", "model.loop.steps=9"], "model: ['loop'] have no effect with gate=fitted_q"),
        (["dataset=nowhere"], "dataset=nowhere: no dataset here"),
        (
            ["stages=[imitate,collect,offline]", "rollouts=300", "offline.loop.steps=9"],
            "stage offline: loop.critic_only_up",
        ),
        (["demos=5"], "demos=5: demonstrations are recorded only where nothing else is given"),
    ],
)
def test_nonsense_is_refused_before_any_stage(
    data: Path, tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(registry, "_admitted", [])  # what --allow admits here stays here
    given = ["task=reach", f"dataset={data}"] if words else ["task=reach"]
    if words == ["task=null"]:
        given, words = [f"dataset={data}"], []
    assert main(["pipeline", *given, f"out={tmp_path / 'out'}", *MORE, *words]) in (1, 2)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "imitate").exists()


def test_a_file_as_its_folder_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "out"):
        assert main(["pipeline", "task=reach", "demos=4", f"out={out}", *MORE]) == 1
        assert f"out={out}: is a file, or lies below one. Give a folder." in capsys.readouterr().err


def test_an_edited_record_sets_no_other_key(tmp_path: Path) -> None:
    flow = pipeline_stages.Flow(tmp_path, {}, None, {})
    flow.records["online"].overrides = ("algo=residual", "run_dir=elsewhere")
    with pytest.raises(ConfigError, match=r"stages\.json: online: overrides: .*'run_dir=elsewhere'"):
        flow.online(100, None)

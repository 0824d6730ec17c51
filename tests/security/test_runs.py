"""A stranger's folder: what commands write in it goes nowhere else, and what its config says is bounded."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from robopolicy import sim
from robopolicy.cli import compare
from robopolicy.cli.robustness import robustness
from robopolicy.config.instantiate import build
from robopolicy.core.errors import CheckpointError, ConfigError, RobopolicyError, SpecError
from robopolicy.core.specs import check_fits
from robopolicy.evaluation import policy_ref
from robopolicy.evaluation.mp4 import Mp4Writer
from robopolicy.evaluation.policy_ref import PolicyRef, env_of
from robopolicy.policies.lerobot.metadata import annotate_policy
from robopolicy.reporting.run_reader import read_run
from robopolicy.runs.checkpointer import save_policy
from robopolicy.runs.inputs import same_input, there
from robopolicy.runs.run_dir import open_run, own_task, read_config
from robopolicy.sim.suites import gymnasium
from robopolicy.utils import atomic, storage
from robopolicy.utils.atomic import remove_leftovers, write_atomically
from robopolicy.world_models.envs.starts import made_from
from robopolicy.world_models.evaluation.world_model_report import write_world_model_report
from robopolicy.world_models.training.round_runner import RoundRunner
from scripts import hostile_inputs


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file that nothing may change."""
    file = tmp_path / "outside" / "kept"
    file.parent.mkdir()
    file.write_text("kept")
    return file


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    save_policy(hostile_inputs.policy("gaussian"), folder / "saved")
    return folder


def says(run: Path, text: str) -> PolicyRef:
    """The place of a policy whose run's config is `text`."""
    (run / "config.yaml").write_text(text)
    return PolicyRef.of(run / "saved", "latest", None)


# --- writing --------------------------------------------------------------------------------------------------------


def test_a_link_that_waits_at_a_name_is_not_written_through(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    names = [atomic.hidden(place / "x", "tmp") for _ in range(100)]
    assert len({*names}) == 100 and all(str(os.getpid()) != n.name.split(".")[2] for n in names)
    monkeypatch.setattr(atomic.secrets, "token_hex", lambda _: "guessed")
    (place / ".x.guessed.tmp").symlink_to(outside)
    (place / ".y.guessed.tmp").symlink_to(outside.parent / "new")
    (place / ".z.guessed.tmp").symlink_to(outside.parent)
    for name in "xy":
        with pytest.raises(FileExistsError):
            write_atomically(place / name, "theirs")
    with pytest.raises(CheckpointError, match="z"), storage.new_directory(place / "z") as folder:
        (folder / "kept").write_text("theirs")
    assert [p.name for p in outside.parent.iterdir()] == ["kept"] and outside.read_text() == "kept"


def test_a_link_in_place_of_a_file_is_replaced(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "x").symlink_to(outside)
    assert write_atomically(tmp_path / "x", "ours").read_text() == "ours"
    assert outside.read_text() == "kept" and not (tmp_path / "x").is_symlink()


def test_leftovers_go_and_what_links_lead_to_stays(tmp_path: Path, outside: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    atomic.hidden(place / "a", "tmp").write_text("half")
    atomic.hidden(place / "b", "old").mkdir()
    atomic.hidden(place / "c", "tmp").symlink_to(outside.parent)
    (place / "d").touch()
    remove_leftovers(place)
    assert [p.name for p in place.iterdir()] == ["d"] and outside.read_text() == "kept"


def test_a_policy_with_a_link_out_is_not_annotated(tmp_path: Path, outside: Path) -> None:
    folder = tmp_path / "policy"
    folder.mkdir()
    (folder / "config.json").write_text('{"type": "act", "input_features": {}}')
    annotate_policy(folder, action=hostile_inputs.SPEC.action, dt=0.1)
    (folder / "more").symlink_to(outside)
    with pytest.raises(CheckpointError, match="more"):
        annotate_policy(folder, action=hostile_inputs.SPEC.action, dt=0.1)


def test_a_film_is_not_written_through_a_link(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "a.mp4").symlink_to(outside)
    with Mp4Writer(tmp_path / "a.mp4", fps=10) as film:
        film.add(np.zeros((32, 32, 3), np.uint8))
    assert outside.read_text() == "kept" and (tmp_path / "a.mp4").stat().st_size > 100


def test_deep_links_of_runs_are_found(tmp_path: Path, run: Path, outside: Path) -> None:
    says(run, "seed: 1\n")
    (run / "videos" / "test" / "more").mkdir(parents=True)
    (run / "videos" / "test" / "more" / ".a.mp4.part").symlink_to(outside)
    with pytest.raises(CheckpointError, match="part"):
        says(run, "seed: 1\n")
    theirs = tmp_path / "theirs"
    policy = theirs / "checkpoints" / "000100" / "pretrained_model"
    policy.mkdir(parents=True)
    (policy / "config.json").write_text('{"type": "act"}')
    assert PolicyRef.of(policy, "latest", None).out == theirs / "robopolicy"
    (theirs / "robopolicy").mkdir()
    (theirs / "robopolicy" / "videos").symlink_to(outside.parent)
    with pytest.raises(CheckpointError, match="videos"):
        PolicyRef.of(policy, "latest", None)


# --- world model report ----------------------------------------------------------------------------------------------


def test_no_world_model_report_of_a_run_with_links(run: Path, outside: Path) -> None:
    says(run, "seed: 1\n")
    (run / "world_model_report.json").symlink_to(outside)
    with pytest.raises(ConfigError, match=r"world_model_report\.json"):
        write_world_model_report(run_dir=run)


@pytest.mark.parametrize(
    "world", ["_target_: imagined", "model: null, a: 1", "model: [1]", "model: {a: 1}", 'model: "a\\0b"', "model: 3"]
)
def test_a_world_names_its_model(run: Path, world: str) -> None:
    (run / "config.yaml").write_text(f"world: {{{world}}}\n")
    with pytest.raises(ConfigError, match=r"world\.model"):
        write_world_model_report(run_dir=run)


def test_a_failing_world_model_report_is_a_config_error(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "config.yaml").write_text("world: {model: x}\n")
    monkeypatch.setattr(
        "robopolicy.world_models.evaluation.world_model_report.load_world", lambda _: SimpleNamespace(report={})
    )
    monkeypatch.setattr("robopolicy.world_models.evaluation.world_model_report.find_world", lambda _: run / "missing")
    with pytest.raises(ConfigError, match="world"):
        write_world_model_report(run_dir=run)


# --- configs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("loop: {data: [1]}", r"loop\.data"), ("loop: {data: x}", r"loop\.data"),
        ("loop: {data: {a: 3}}", r"loop\.data\.a"), ('loop: {data: {a: "x\\0"}}', r"loop\.data\.a"),
        ("loop: {holdout: x}", r"loop\.holdout"), ("loop: {holdout: 7}", r"loop\.holdout"),
        ("loop: {holdout: .nan}", r"loop\.holdout"), ("loop: {mix_weights: {a: x}}", r"loop\.mix_weights\.a"),
        ("world: {trust: x}", r"world\.trust"), ("world: {trust: .nan}", r"world\.trust"),
        ("world: {sampled: 3}", r"world\.sampled"), ("seed: x", "seed"), ("policy: 3", "policy"),
        ('base: "a\\0b"', "base"), ('dataset: "a\\0b"', "dataset"),
    ],
)  # fmt: skip
def test_keys_that_others_read_are_typed(tmp_path: Path, text: str, key: str) -> None:
    (tmp_path / "config.yaml").write_text(text + "\n")
    with pytest.raises(ConfigError, match=key):
        made_from(tmp_path)


def test_a_null_is_as_good_as_absent(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("dataset: a\nloop: {data: null, holdout: null, mix_weights: null}\n")
    assert made_from(tmp_path) == ([Path("a")], 0.15)


@pytest.mark.parametrize("text", ["~nosuchuser/x", "a\0b", "x" * 5000, "x/" * 3000])
def test_a_text_that_is_no_path_names_nothing(tmp_path: Path, text: str) -> None:
    assert there(text) is None and there(str(tmp_path)) == tmp_path.resolve()
    assert not same_input(tmp_path, "base", text, str(tmp_path))
    assert not same_input(tmp_path, "base", str(tmp_path), text)


@pytest.mark.parametrize("base", ["~nosuchuser/x", "''"])
def test_a_base_that_is_no_path_is_another_run(run: Path, base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = compare._base(says(run, f"base: {base}\n"))
    monkeypatch.chdir(run)  # where "" leads
    assert found.path is None and not found.is_at(Path(), PolicyRef(run, None, run, "a"))


# --- tasks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [
        ("Pendulum-v1", {"render_mode": "human"}, "render_mode"), ("Pendulum-v1", {"render_mode": 3}, "render_mode"),
        ("Ant-v5", {"xml_file": "x.xml"}, "xml_file"), ("Ant-v5", {"model_path": "x.xml"}, "model_path"),
        ("Ant-v5", {"other": "/etc/passwd"}, "other"), ("Ant-v5", {"other": ["a\\b"]}, "other"),
        ("Ant-v5", {"other": {"inner": "~x"}}, "inner"),
        ("Pendulum-v1", {"observation_width": 10**7}, "observation_width"),
        ("Pendulum-v1", {"image_size": [64, 10**5]}, "image_size"), ("Pendulum-v1", {"height": float("nan")}, "height"),
        ("FrozenLake-v1", {"map_name": "zz"}, r"task\.options"),
    ],
)  # fmt: skip
def test_options_open_no_window_and_no_file(name: str, options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        gymnasium.make(name, 1, options=options, horizon=3, success="terminated")


@pytest.mark.parametrize("raised", [ZeroDivisionError, ImportError, KeyError, MemoryError, ValueError])
def test_whatever_an_env_raises_names_its_options(monkeypatch: pytest.MonkeyPatch, raised: type[Exception]) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise raised("x")

    monkeypatch.setattr("gymnasium.make", fail)
    with pytest.raises(ConfigError, match=r"task\.options"):
        gymnasium.make_one("", "Pendulum-v1", {})


@pytest.mark.parametrize(
    ("node", "key"),
    [
        ({"image_size": [100_000, 100_000]}, "image_size"), ({"image_size": [0, 8]}, "image_size"),
        ({"randomization": {"latency": [0, 10**9]}}, "latency"),
    ],
)  # fmt: skip
def test_native_tasks_have_their_bounds(node: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        build({"_target_": "native", "task": "reach", "cameras": ["front"], **node}, "task", num_envs=1, seed=0)


def test_a_runs_task_that_cannot_be_built_is_a_config_error(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, given = says(run, "task: {_target_: native, task: reach}\n"), {"_target_": "native", "task": "reach"}
    assert env_of(None, place, 2).num_envs == 2 == env_of(given, place, 2).num_envs

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(sim, "SimEnv", fail)
    monkeypatch.setattr(policy_ref, "build", fail)
    with pytest.raises(ConfigError, match="task"):
        env_of(None, place, 2)
    with pytest.raises(MemoryError):  # a user's own task: the traceback helps
        env_of(given, place, 2)


def test_what_deploys_a_run_refuses_its_damaged_task(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, and in the policy node."""
    from robopolicy.real.deploy.deploy_config import DeployConfig
    from robopolicy.real.deploy.deployment import prepare
    from robopolicy.real.ros2.observation import one_env

    says(run, "task: {_target_: native, task: reach}\n")

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("robopolicy.real.deploy.deployment.build", fail)
    monkeypatch.setattr("robopolicy.real.ros2.observation.build", fail)
    with pytest.raises(ConfigError, match="task"):
        prepare(DeployConfig(checkpoint=run / "saved"))
    with pytest.raises(ConfigError, match="task"):
        one_env({"_target_": "native", "task": "reach"})
    with pytest.raises(MemoryError):  # a user's own task: the traceback helps
        prepare(DeployConfig(checkpoint=run / "saved", task={"_target_": "native", "task": "reach"}))


def test_a_runs_task_starts_no_more_processes_than_there_are_cores(run: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    place = says(run, "task: {_target_: metaworld, processes: 1000000}\n")
    assert policy_ref.task_of(None, place)["processes"] == cores
    assert policy_ref.task_of({"processes": 99}, place) == {"processes": 99}
    for few in (0, 1, -1):
        assert own_task({"task": {"processes": few}}) == {"processes": few}
    assert own_task(read_config(run) or {}) == {"_target_": "metaworld", "processes": cores}


def test_a_runs_task_starts_no_cluster(run: Path) -> None:
    place = says(run, "task: {_target_: metaworld, processes: 1, farm: ray, worker_timeout: 1e9}\n")
    assert policy_ref.task_of(None, place) == {"_target_": "metaworld", "processes": 1}
    assert policy_ref.task_of({"farm": "ray"}, place) == {"farm": "ray"}


def test_a_step_that_is_no_number_fits_nothing() -> None:
    env = sim.make("reach", 1).spec
    spec = hostile_inputs.run_spec()
    check_fits(spec, env)
    with pytest.raises(SpecError, match="dt"):
        check_fits(replace(spec, dt=float("nan")), env)


def test_robustness_refuses_a_runs_damaged_task(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says(run, "task: {_target_: native, task: reach}\n")

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("robopolicy.cli.robustness.build", fail)
    with pytest.raises(ConfigError, match="task"):
        robustness(checkpoint=run / "saved", episodes=1)
    with pytest.raises(MemoryError):  # a user's own task: the traceback helps
        robustness(checkpoint=run / "saved", episodes=1, task={"_target_": "native", "task": "reach"})


@pytest.mark.parametrize("text", ["loop: {steps: 9}\n", "seed: 7\n", "{}\n"])
def test_rounds_refit_no_model_that_does_not_say_how_it_was_trained(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    rounds = SimpleNamespace(config={"world": {"model": str(tmp_path)}}, _rollouts=lambda _: {"a": "b"}, share=0.25)
    with pytest.raises(ConfigError, match=r"world\.model"):
        RoundRunner._refitting(rounds, {}, tmp_path / "model", 1)  # type: ignore[arg-type]


def test_wandb_links_its_logs_to_the_users_cache(run: Path, outside: Path) -> None:
    """Such a run can be evaluated, reported on and resumed; a `wandb` that is itself a link cannot."""
    logs = run / "wandb" / "offline-run-1" / "logs"
    logs.mkdir(parents=True)
    (logs / "debug-core.log").symlink_to(outside)
    says(run, "task: {_target_: native, task: reach}\n")
    read_run(run)
    with open_run(run, read_config(run) or {}, begun=lambda _: True):
        pass
    (run / "wandb").rename(run / "kept")
    with pytest.raises(CheckpointError, match="kept"):
        PolicyRef.of(run / "saved", "latest", None)
    (run / "kept").rename(outside.parent / "elsewhere")
    (run / "wandb").symlink_to(outside.parent / "elsewhere")
    for refused in (lambda: PolicyRef.of(run / "saved", "latest", None), lambda: read_run(run)):
        with pytest.raises(RobopolicyError, match="wandb"):
            refused()

"""runs/sweep_job.py: names of a sweep's runs, and the state of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from robopolicy.core.errors import ConfigError
from robopolicy.runs.finished import write_finished
from robopolicy.runs.inputs import write_inputs
from robopolicy.runs.run_dir import CONFIG, dump
from robopolicy.runs.sweep_job import JOB, JobState, is_finished, last_success, read_job, run_names


def test_names_of_runs_need_no_quotes_on_the_command_line() -> None:
    jobs: list[dict[str, str]] = [{"algo.tau": "0.005", "seed": "0"}, {"base": "'runs/a b'", "policy.hidden": "[8,16]"}]
    names = run_names(jobs)
    assert names[0] == "algo.tau_0.005-seed_0"
    for name in names:
        assert OverridesParser.create().parse_override(f"checkpoint=runs/{name}").value() == f"runs/{name}"
        assert Path(name).name == name


def test_names_that_would_be_alike_differ_by_a_digest() -> None:
    names = run_names([{"base": "a/b"}, {"base": "a.b"}, {"base": "c"}])
    assert len(set(names)) == 3 and names[2] == "base_c"
    assert names == run_names([{"base": "a/b"}, {"base": "a.b"}, {"base": "c"}])
    assert len(run_names([{"base": "x" * 500}])[0]) < 128


@pytest.mark.parametrize(
    ("change", "finished"),
    [({}, True), ({"loop": {"steps": 20}}, False), ({"run_dir": "elsewhere", "tracker": {"wandb": "online"}}, True)],
)
def test_a_run_is_finished_with_its_own_config_alone(tmp_path: Path, change: dict[str, Any], finished: bool) -> None:
    config = {"run_dir": str(tmp_path), "loop": {"steps": 10}, "algo": {"lr": 1e-5}, "tracker": None}
    (tmp_path / CONFIG).write_text(dump(config))
    assert not is_finished(tmp_path, config)
    JobState(values={"seed": "0"}, state="begun").save(tmp_path)
    assert not is_finished(tmp_path, config)
    JobState(values={"seed": "0"}, state="finished").save(tmp_path)
    assert is_finished(tmp_path, {**config, **change}) is finished


def test_a_run_that_went_on_alone_is_not_finished_until_it_ends(tmp_path: Path) -> None:
    config = {"run_dir": str(tmp_path), "loop": {"steps": 20}, "tracker": None}  # since the sweep had 10
    (tmp_path / CONFIG).write_text(dump(config))
    JobState(values={"seed": "0"}, state="finished").save(tmp_path)
    (tmp_path / "checkpoints" / "step_0000000010").mkdir(parents=True)
    assert is_finished(tmp_path, config), "one of before finished.json"
    write_finished(tmp_path)
    (tmp_path / "checkpoints" / "step_0000000015").mkdir()
    assert not is_finished(tmp_path, config)
    write_finished(tmp_path)
    assert is_finished(tmp_path, config)


def test_a_run_of_other_data_is_not_finished(tmp_path: Path) -> None:
    (tmp_path / "data" / "meta").mkdir(parents=True)
    (tmp_path / "data" / "meta" / "info.json").write_text("{}")
    table = tmp_path / "data" / "data" / "chunk-000" / "file-000.parquet"
    table.parent.mkdir(parents=True)
    table.write_bytes(b"one")
    config = {"run_dir": str(tmp_path / "run"), "dataset": str(tmp_path / "data"), "tracker": None}
    JobState(values={"seed": "0"}, state="finished").save(tmp_path / "run")
    (tmp_path / "run" / CONFIG).write_text(dump(config))
    write_inputs(tmp_path / "run", config)
    assert is_finished(tmp_path / "run", config)
    table.write_bytes(b"two")
    assert not is_finished(tmp_path / "run", config)


@pytest.mark.parametrize(("asked", "finished"), [(None, True), (64, True), (32, False)])
def test_a_number_that_the_training_chose_leaves_a_run_finished(
    tmp_path: Path, asked: int | None, finished: bool
) -> None:
    (tmp_path / CONFIG).write_text(dump({"run_dir": str(tmp_path), "loop": {"batch_size": 64}, "tracker": None}))
    JobState(values={"seed": "0"}, state="finished").save(tmp_path)
    config: dict[str, Any] = {"run_dir": str(tmp_path), "loop": {"batch_size": asked}, "tracker": None}
    assert is_finished(tmp_path, config) is finished


@pytest.mark.parametrize("data", ["[]", '{"state": "finished"}', '{"values": {"a": 1}, "state": "finished"}', "{"])
def test_a_damaged_state_is_named(tmp_path: Path, data: str) -> None:
    (tmp_path / JOB).write_text(data)
    with pytest.raises(ConfigError, match=JOB):
        read_job(tmp_path)


def test_the_last_evaluation_counts(tmp_path: Path) -> None:
    assert last_success(tmp_path) is None
    rows = [{"step": 1, "eval/success_rate": 0.25}, {"step": 2, "eval/success_rate": 0.5}, {"step": 2, "train/loss": 1}]
    torn = '{"step": 3, "eval/success_rate"'
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + torn)
    assert last_success(tmp_path) == 0.5

"""runs/inputs.py: a run notices that a world model that it began with has other weights now."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from robopolicy.core.errors import ConfigError
from robopolicy.datasets.metadata import RecordingMeta
from robopolicy.runs.inputs import changed_inputs, same_input, write_inputs
from robopolicy.runs.run_dir import CONFIG, check_same, dump, open_run
from robopolicy.utils.storage import write_manifest
from tests.fakes import POINT_ACTION


def save(run: Path, step: int, weights: str, *, folder: str = "model", marks: tuple[str, ...] = ("latest",)) -> None:
    """Write a checkpoint of a model as a training does."""
    model = run / "checkpoints" / f"step_{step:010d}" / folder
    model.mkdir(parents=True)
    (model / "model.safetensors").write_text(weights)
    write_manifest(model)
    for mark in marks:
        (run / "checkpoints" / mark).write_text(model.parent.name)


@pytest.mark.parametrize(("node", "folder"), [("world", "model"), ("synthetic", "trajectories")])
def test_a_world_model_that_was_trained_on_is_another_input(tmp_path: Path, node: str, folder: str) -> None:
    run, model = tmp_path / "run", tmp_path / "model"
    save(model, 1, "a", folder=folder)
    config = {"run_dir": str(run), node: {"model": str(model)}}
    run.mkdir()
    (run / CONFIG).write_text(dump(config))
    write_inputs(run, config)
    check_same(run, config)
    shutil.copytree(model, tmp_path / "copy")
    assert same_input(run, f"{node}.model", str(model), str(tmp_path / "copy"))
    save(model, 2, "b", folder=folder)
    with pytest.raises(ConfigError, match=rf"other contents of\n  - {node}.model="):
        check_same(run, config)
    assert not same_input(run, f"{node}.model", str(tmp_path / "copy"), str(model))


def test_the_best_checkpoint_of_a_world_model_may_stay_while_it_is_trained_on(tmp_path: Path) -> None:
    run, model = tmp_path / "run", tmp_path / "model"
    save(model, 1, "a", marks=("latest", "best"))
    config = {"world": {"model": str(model), "which": "best"}}
    run.mkdir()
    write_inputs(run, config)
    save(model, 2, "b")
    assert changed_inputs(run, config) == []
    save(model, 3, "c", marks=("latest", "best"))
    assert changed_inputs(run, config) == ["world.model"]


def test_a_start_that_was_killed_leaves_no_contents_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, model = tmp_path / "run", tmp_path / "model"
    save(model, 1, "a")
    config = {"run_dir": str(run), "world": {"model": str(model)}}

    def killed(folder: Path) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr("robopolicy.runs.run_dir.write_provenance", killed)
        with pytest.raises(SystemExit):
            open_run(run, config).__enter__()
    save(model, 2, "b")
    with open_run(run, config):
        assert changed_inputs(run, config) == [], "it begins with the contents of now"


def test_a_dataset_that_is_read_otherwise_has_other_contents(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "meta").mkdir(parents=True)
    (data / "meta" / "info.json").write_text("{}")
    meta, config = RecordingMeta(POINT_ACTION, 0.1, ("go",), ()), {"dataset": str(data)}
    meta.save(data)
    write_inputs(tmp_path, config)
    meta.complete = True
    meta.save(data)
    assert changed_inputs(tmp_path, config) == []
    meta.outcomes = "success"
    meta.save(data)
    assert changed_inputs(tmp_path, config) == ["dataset"]


def test_a_teacher_named_by_its_pointer_is_an_input(tmp_path: Path) -> None:
    for step, folder in enumerate(("first", "second")):
        save(tmp_path, step, folder, folder="policy")
        (tmp_path / "checkpoints" / f"step_{step:010d}" / "policy" / "policy.json").write_text("{}")
    config = {"teacher": str(tmp_path / "checkpoints" / "latest")}
    (tmp_path / "checkpoints" / "latest").write_text("step_0000000000")
    write_inputs(tmp_path, config)
    assert changed_inputs(tmp_path, config) == []
    (tmp_path / "checkpoints" / "latest").write_text("step_0000000001")
    assert changed_inputs(tmp_path, config) == ["teacher"], "before its episodes are recorded again"


def test_a_folder_called_like_a_task_is_no_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reach" / "meta").mkdir(parents=True)
    (tmp_path / "reach" / "meta" / "info.json").write_text("{}")
    write_inputs(tmp_path, {"task": {"name": "reach"}, "dataset": "reach", "loop": {"data": {"own": "reach"}}})
    assert json.loads((tmp_path / "inputs.json").read_text()).keys() == {"dataset", "loop.data.own"}

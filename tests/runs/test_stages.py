"""Stages are run once, and refused where their inputs changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from robopolicy.core.errors import ConfigError
from robopolicy.runs.run_dir import open_run
from robopolicy.runs.stages import StageRecords


def dataset(at: Path, content: bytes) -> Path:
    """Files that a dataset's digest is of."""
    for name in ("meta/info.json", "data/chunk-000/file-000.parquet"):
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_bytes(content)
    return at


def run(folder: Path, config: dict[str, object]) -> bool:
    """Run the stage `a`; return whether it was to do."""
    with StageRecords(folder).running("a", config) as todo:
        if todo:
            with open_run(folder / "a", config, begun=lambda _: True):
                pass
    return todo


def test_a_stage_is_done_once_and_again_where_its_run_is_gone(tmp_path: Path) -> None:
    config = {"lr": 1, "loop": {"steps": 3}}
    assert run(tmp_path, config) and not run(tmp_path, config)
    assert run(tmp_path, {"lr": 1, "loop": {"steps": 4}}), "a longer training goes on"
    (tmp_path / "a").rename(tmp_path / "b")
    assert run(tmp_path, {"lr": 2, "loop": {"steps": 3}})


def test_a_number_that_the_training_chose_leaves_its_stage_done(tmp_path: Path) -> None:
    open_one: dict[str, object] = {"loop": {"steps": 3, "batch_size": None}}
    assert run(tmp_path, open_one)
    (tmp_path / "a" / "config.yaml").write_text("loop: {steps: 3, batch_size: 64}\n")
    assert not run(tmp_path, open_one)
    assert run(tmp_path, {"loop": {"steps": 4, "batch_size": None}})
    with pytest.raises(ConfigError, match=r"loop\.batch_size: was 64, now 32"):
        run(tmp_path, {"loop": {"steps": 4, "batch_size": 32}})


def test_a_stage_that_failed_is_to_do_and_keeps_its_time(tmp_path: Path) -> None:
    records = StageRecords(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(RuntimeError), records.running("a", {}):
        raise RuntimeError
    again = StageRecords(tmp_path)
    assert not again["a"].done and again["a"].seconds == records["a"].seconds > 0


def test_a_longer_training_that_was_interrupted_is_to_do(tmp_path: Path) -> None:
    longer = {"lr": 1, "loop": {"steps": 4}}
    run(tmp_path, {"lr": 1, "loop": {"steps": 3}})
    (first := StageRecords(tmp_path))["a"].note = "accepted"
    first.save()
    stage, training = (
        StageRecords(tmp_path).running("a", longer),
        open_run(tmp_path / "a", longer, begun=lambda _: True),
    )
    with pytest.raises(KeyboardInterrupt), stage, training:
        raise KeyboardInterrupt
    assert not StageRecords(tmp_path)["a"].note, "the outcome was that of the shorter training"
    assert run(tmp_path, longer) and not run(tmp_path, longer)


def test_other_contents_at_the_same_path_are_refused(tmp_path: Path) -> None:
    config = {"dataset": str(dataset(tmp_path / "data", b"{}"))}
    run(tmp_path, config)
    dataset(tmp_path / "data", b"{ }")
    with pytest.raises(ConfigError, match=r"stage a: (?s:.*)with other contents of(?s:.*)- dataset=(?s:.*)remove"):
        run(tmp_path, config)


def test_another_config_is_refused_by_the_name_of_the_stage(tmp_path: Path) -> None:
    run(tmp_path, {"lr": 1})
    with pytest.raises(ConfigError, match=r"stage a: (?s:.*)lr: was 1, now 2(?s:.*)remove"):
        run(tmp_path, {"lr": 2})


@pytest.mark.parametrize("text", ["[]", '{"a": {"done": 1}}', '{"a": {"more": true}}', '{"a": {"seconds": "x"}}', "{"])
def test_damaged_records_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "stages.json").write_text(text)
    with pytest.raises(ConfigError, match=r"stages\.json"):
        StageRecords(tmp_path)

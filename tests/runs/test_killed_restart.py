"""A start that is killed while it replaces one without results does not block the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from robopolicy.core.errors import ConfigError
from robopolicy.runs import run_dir as module
from robopolicy.runs.finished import has_finished, write_finished
from robopolicy.runs.run_dir import open_run


def test_a_restart_may_be_killed_at_its_provenance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, config = tmp_path / "run", {"seed": 0}
    with open_run(run, config, begun=lambda _: False):
        pass

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_provenance", killed)
        with pytest.raises(KeyboardInterrupt), open_run(run, config, begun=lambda _: False):
            pass
    with open_run(run, config, begun=lambda _: False):
        assert (run / "config.yaml").is_file() and (run / "provenance.json").is_file()


def test_a_continued_run_keeps_each_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for steps in (10, 20):
        monkeypatch.setattr("sys.argv", ["robopolicy", "train", f"loop.steps={steps}"])
        with open_run(tmp_path, {"loop": {"steps": steps}}, begun=lambda _: True):
            pass
    found = json.loads((tmp_path / "provenance.json").read_text())
    assert found["command"] == "robopolicy train loop.steps=20"
    assert [start["command"] for start in found["earlier"]] == ["robopolicy train loop.steps=10"]
    with open_run(tmp_path, {"seed": 1}, begun=lambda _: False):
        assert "earlier" not in json.loads((tmp_path / "provenance.json").read_text()), "another run takes its place"


def test_a_run_killed_in_its_first_round_keeps_its_config(tmp_path: Path) -> None:
    run, config, other = tmp_path / "run", {"rounds": 2, "base": "a"}, {"rounds": 2, "base": "b"}
    for chosen in (config, other):  # nothing of the round can be resumed yet
        with open_run(run, chosen):
            (run / "round_1" / "imagined").mkdir(parents=True, exist_ok=True)
    (run / "round_1" / "imagined" / "checkpoints" / "step_0000000001").mkdir(parents=True)
    with pytest.raises(ConfigError, match="base: was 'b', now 'a'"), open_run(run, config):
        pass
    with open_run(run, other):
        pass


def test_a_run_that_begins_again_has_not_finished(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoints" / "step_0000000001"
    with open_run(tmp_path, {"seed": 0}):
        checkpoint.mkdir(parents=True)
        write_finished(tmp_path)
    checkpoint.rmdir()
    assert has_finished(tmp_path), "the checkpoints of a run that has ended may be removed"
    with open_run(tmp_path, {"seed": 0}):
        assert not has_finished(tmp_path)

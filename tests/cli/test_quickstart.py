from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from robopolicy.cli import quickstart
from robopolicy.cli.main import main
from robopolicy.cli.quickstart import Stages, _summary
from robopolicy.evaluation.compare import compare
from tests.evaluation.points import make_rows


def test_the_end_names_report_data_and_policies() -> None:
    console = Console(file=io.StringIO(), width=40)
    result = compare(make_rows([False, True]), make_rows([True, True]), names=("bc", "residual"))
    _summary(console, Stages(console, total=5), result, Path("runs/q/residual/report.html"), Path("runs/q"))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert lines[-2:] == ["open runs/q/residual/report.html in a browser",
                          "demonstrations, base and refined policy: runs/q/{data,bc,residual}"]  # fmt: skip


def test_a_refinement_that_would_not_learn_is_refused_before_the_first_stage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["quickstart", "task=reach", f"out={tmp_path / 'q'}", "tracker=quiet", "demos=2", "expert_noise=0"]
    assert main([*command, "bc_steps=1", "rl_steps=6000"]) == 1
    assert "rl_steps=6000: expected more than 6000, in which the base acts alone" in capsys.readouterr().err
    assert not (tmp_path / "q").exists()


def test_what_is_refused_is_named_by_the_keys_of_the_verb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command, out = ["quickstart", "task=reach", "tracker=quiet"], tmp_path / "q"

    def stopped(*_: Any, **__: Any) -> None:
        (step := out / "bc" / "checkpoints" / "step_0000000001").mkdir(parents=True)
        (step / "state.json").touch()
        raise SystemExit

    monkeypatch.setattr(quickstart, "invoke", stopped)
    (tmp_path / "file").touch()
    assert main([*command, f"out={tmp_path / 'file'}"]) == 1
    assert f"out={tmp_path / 'file'}: is a file" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*command, f"out={out}"])
    assert main([*command, f"out={out}", "bc_steps=4000"]) == 1
    said = capsys.readouterr().err
    assert f"out={out} was begun with another config:\n  - bc_steps: was 3000, now 4000" in said
    assert "give a new out." in said and "run_dir" not in said and "more steps" not in said

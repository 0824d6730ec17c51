from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

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

"""scripts/cli_latency.py: every mistake that it measures is answered with the name of its cause."""

from __future__ import annotations

import pytest

from robopolicy.cli.main import main
from scripts.cli_latency import COMMANDS


@pytest.mark.parametrize("setting", COMMANDS)
def test_the_answer_names_its_cause(
    setting: str, capsys: pytest.CaptureFixture[str], tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    command, code, named = COMMANDS[setting]
    assert main(command.split()) == code
    assert named in "".join(capsys.readouterr())

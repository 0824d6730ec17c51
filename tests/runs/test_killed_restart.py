"""A start that is killed while it replaces one without results does not block the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from robopolicy.runs import run_dir as module
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

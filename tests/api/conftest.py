"""A folder with demonstrations, a policy and an evaluation, which the examples of the docstrings name."""

from __future__ import annotations

from pathlib import Path

import pytest

import robopolicy as rp


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("api")
    rp.demos(folder / "data" / "reach", task="reach", episodes=8)
    how = {"task": "reach", "dataset": folder / "data" / "reach", "tracker": "quiet", "threads": 1}
    rp.train(folder / "runs" / "base", policy="gaussian", loop={"steps": 60, "batch_size": 32, "log_every": 20}, **how)
    return folder


@pytest.fixture
def folder(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    monkeypatch.chdir(made)
    return made

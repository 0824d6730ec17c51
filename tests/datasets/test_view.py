"""`robopolicy data view`: the install command at once, and LeRobot's viewer on the episode that was asked for."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from lerobot.scripts import lerobot_dataset_viz

from robopolicy.core.errors import ConfigError, DataError
from robopolicy.datasets.view import data_view
from tests.datasets.test_importing import LENGTHS, recorded


def test_without_rerun_it_names_the_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install .*'lerobot\[viz\]'"):
        data_view(dataset=tmp_path)


def test_the_viewer_gets_the_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(lerobot_dataset_viz, "visualize_dataset", lambda *args, **kw: shown.append((args, kw)))
    path = recorded(tmp_path / "arm")
    data_view(dataset=path, episode=1, save=tmp_path / "views")
    (opened, episode), options = shown[0]
    assert (len(opened), episode) == (LENGTHS[1], 1) and options["output_dir"] == tmp_path / "views"
    with pytest.raises(DataError, match="episodes 0 to 1"):
        data_view(dataset=path, episode=2)

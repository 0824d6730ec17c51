"""Commands that install packages: they work in an environment with pip, and in one that uv made."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from robopolicy.utils import install_commands
from robopolicy.utils.install_commands import pip_install, setup_or_pip


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment without pip and uv, of a checkout without uv."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(install_commands, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    monkeypatch.setattr(sys, "executable", "/my env/bin/python")
    return tmp_path


def uv_in(folder: Path) -> str:
    folder.mkdir(parents=True)
    (folder / "uv").touch(mode=0o755)
    return str(folder / "uv")


def test_an_environment_with_pip_uses_it(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name == "pip" else None)
    uv_in(checkout / ".tools" / "bin")
    command = shlex.split(pip_install("robopolicy[ray]", "mujoco-warp>=3.9,<4"))
    assert command == ["/my env/bin/python", "-m", "pip", "install", "robopolicy[ray]", "mujoco-warp>=3.9,<4"]


def test_an_environment_without_pip_uses_the_uv_of_the_checkout(checkout: Path) -> None:
    install = ["pip", "install", "--python", "/my env/bin/python", "robopolicy[ray]"]
    assert shlex.split(pip_install("robopolicy[ray]")) == ["uv", *install]
    inside = uv_in(checkout / ".tools" / "bin")
    assert shlex.split(pip_install("robopolicy[ray]")) == [inside, *install]
    nearer = uv_in(checkout / "environment" / "bin")
    assert shlex.split(pip_install("robopolicy[ray]")) == [nearer, *install]


def test_a_uv_on_the_path_goes_by_its_name(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = uv_in(checkout / ".tools" / "bin")
    monkeypatch.setattr(shutil, "which", lambda name: inside)
    assert pip_install("wandb").startswith("uv pip install ")


def test_only_a_checkout_has_a_set_up(checkout: Path) -> None:
    assert setup_or_pip("suites", "robopolicy[hdf5]") == pip_install("robopolicy[hdf5]")
    (checkout / "scripts").mkdir()
    (checkout / "scripts" / "setup.sh").touch()
    assert setup_or_pip("suites", "robopolicy[hdf5]").startswith("./scripts/setup.sh suites, or: ")


def test_the_command_runs_in_this_environment() -> None:
    command: list[Any] = shlex.split(pip_install("--dry-run", "numpy"))
    if shutil.which(command[0]) is None:
        pytest.skip("neither pip nor uv is here")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr

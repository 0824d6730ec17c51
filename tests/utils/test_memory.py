from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from robopolicy.utils import memory


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with 1000 free bytes, whose groups of processes are files below `tmp_path`."""
    monkeypatch.setattr(memory, "_ROOT", tmp_path)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))


def test_without_a_container_the_machine_counts(tmp_path: Path) -> None:
    assert memory.free_memory() == 1000
    assert memory.container_limit() == float("inf")
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("900\n")
    assert memory.free_memory() == 1000
    assert memory.container_limit() == float("inf")


@pytest.mark.parametrize(
    ("limit", "used", "stat"),
    [("memory.max", "memory.current", "memory.stat"),
     ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat")],
)  # fmt: skip
def test_a_container_has_its_limit_less_its_use_without_cached_files(
    tmp_path: Path, limit: str, used: str, stat: str
) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / limit).write_text("500\n")
    (tmp_path / used).write_text("300\n")
    assert memory.container_limit() == 500
    assert memory.free_memory() == 200
    (tmp_path / stat).write_text("anon 200\ninactive_file 100\n")
    assert memory.free_memory() == 300
    (tmp_path / limit).write_text("5000\n")
    assert memory.free_memory() == 1000, "the machine has no more"

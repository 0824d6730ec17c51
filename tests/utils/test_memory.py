from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from robopolicy.utils import cgroups, memory


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with 1000 free bytes, whose groups of processes are files below `tmp_path`."""
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    monkeypatch.setattr(cgroups, "OWN", tmp_path / "own")
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


@pytest.mark.parametrize(
    ("own", "root", "limit", "used"),
    [("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n", "", "memory.max", "memory.current"),
     ("5:cpu,cpuacct:/\n4:memory:/system.slice/slurmstepd.scope/job_7/step_0\n", "memory", "memory.limit_in_bytes",
      "memory.usage_in_bytes")],
)  # fmt: skip
def test_the_smallest_limit_of_a_job_and_the_groups_above_it_counts(
    tmp_path: Path, own: str, root: str, limit: str, used: str
) -> None:
    (tmp_path / "own").write_text(own)
    scope = tmp_path / root / "system.slice" / "slurmstepd.scope"
    for group, most in ((scope / "job_7" / "step_0", "800"), (scope / "job_7", "500"), (scope, "max")):
        group.mkdir(parents=True, exist_ok=True)
        (group / limit).write_text(f"{most}\n")
        (group / used).write_text("300\n")
    assert memory.container_limit() == 500
    assert memory.free_memory() == 200


def test_a_group_that_the_container_does_not_show_is_its_root(tmp_path: Path) -> None:
    for own in ("0::/docker/0123abc\n", "0::/../../elsewhere\n"):
        (tmp_path / "own").write_text(own)
        (tmp_path / "memory.max").write_text("500\n")
        assert memory.container_limit() == 500


@pytest.mark.parametrize(
    ("files", "cores"),
    [({}, float("inf")), ({"cpu.max": "max 100000"}, float("inf")), ({"cpu.max": "150000 100000"}, 1.5),
     ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, float("inf")),
     ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2.0)],
)  # fmt: skip
def test_a_container_has_its_share_of_the_cores(tmp_path: Path, files: dict[str, str], cores: float) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    assert cgroups.cpu_quota() == cores

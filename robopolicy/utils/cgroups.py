"""Find the limits that a container or a job of a cluster sets to this process (Linux control groups, v2 and v1)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def group_files(controller: str, v2: tuple[str, ...], v1: tuple[str, ...]) -> Iterator[list[str]]:
    """Yield the texts of files in this process's group and in each group above it; empty where one is absent.

    Slurm, for example, limits the group of a job, which is neither the root nor the process's own.

    Args:
        controller: memory or cpu.
        v2, v1: names of the files in either version.
    """
    own = _own_groups()
    places = ((ROOT, own.get("", "/"), v2), (ROOT / controller, own.get(controller, "/"), v1))
    for folder, group, names in places:
        # A container may see its group as the host does, without such a folder: the root is its own then.
        parts = [part for part in group.split("/") if part]
        for depth in range(0 if ".." in parts else len(parts), -1, -1):
            yield [_text(folder.joinpath(*parts[:depth], name)) for name in names]


def cpu_quota() -> float:
    """Return the number of cores whose time this process may use; infinite without a limit."""
    quotas = []
    for texts in group_files("cpu", ("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        numbers = " ".join(texts).split()  # quota and period; max or -1: no limit
        if len(numbers) == 2 and all(number.isdigit() for number in numbers) and int(numbers[1]):
            quotas.append(int(numbers[0]) / int(numbers[1]))
    return min(quotas, default=math.inf)


def _own_groups() -> dict[str, str]:
    """Return {controller: group of this process}; the controller of version 2 is ""."""
    rows = [line.split(":", 2) for line in _text(OWN).splitlines() if line.count(":") >= 2]
    return {name: group for _, names, group in rows for name in names.split(",")}


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""

"""Read how much memory this process may still take: of the machine, or of the container that it runs in."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
# Files of a container's limit, of its use, and of what the use consists of: cgroup version 2, then version 1.
_FILES = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)
_CACHE = ("inactive_file", "total_inactive_file")  # the kernel gives this part of the use back


def container_limit() -> float:
    """Return the bytes that a container may use; infinite without a limit."""
    return min((float(limit) for limit, _, _ in map(_read, _FILES) if limit.isdigit()), default=float("inf"))


def free_memory() -> float:
    """Return the bytes that can be taken without swapping, in a container at most up to its limit."""
    import psutil

    free = float(psutil.virtual_memory().available)
    for limit, used, stat in map(_read, _FILES):
        if limit.isdigit() and used.isdigit():
            parts = dict(line.split(maxsplit=1) for line in stat.splitlines() if " " in line)
            cache = max(int(parts.get(name, 0)) for name in _CACHE)
            free = min(free, float(limit) - (int(used) - cache))
    return max(0.0, free)


def _read(files: tuple[str, ...]) -> list[str]:
    """Return the texts of files; empty where one is absent."""
    texts = []
    for name in files:
        try:
            texts.append((_ROOT / name).read_text().strip())
        except OSError:
            texts.append("")
    return texts

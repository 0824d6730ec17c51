"""Read how much memory this process may still take: of the machine, or of the container or job that it runs in."""

from __future__ import annotations

from collections.abc import Iterator

from robopolicy.utils.cgroups import group_files

# Files of a limit, of its use, and of what the use consists of, by version of control groups.
_V2 = ("memory.max", "memory.current", "memory.stat")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat")
_CACHE = ("inactive_file", "total_inactive_file")  # the kernel gives this part of the use back


def container_limit() -> float:
    """Return the bytes that a container or job may use; infinite without a limit."""
    return min((float(limit) for limit, _, _ in _limits()), default=float("inf"))


def free_memory() -> float:
    """Return the bytes that can be taken without swapping, in a container or job at most up to its limit."""
    import psutil

    free = float(psutil.virtual_memory().available)
    for limit, used, stat in _limits():
        if used.isdigit():
            parts = dict(line.split(maxsplit=1) for line in stat.splitlines() if " " in line)
            cache = max(int(parts.get(name, 0)) for name in _CACHE)
            free = min(free, float(limit) - (int(used) - cache))
    return max(0.0, free)


def _limits() -> Iterator[list[str]]:
    """Yield limit, use and its parts of each group that has a limit."""
    return (texts for texts in group_files("memory", _V2, _V1) if texts[0].isdigit())

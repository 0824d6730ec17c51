"""Record where a number comes from: command, code version, libraries, hardware; no host, user or machine path."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from robopolicy.core.errors import DataError
from robopolicy.core.untrusted import read_json
from robopolicy.utils.atomic import write_atomically
from robopolicy.utils.suite_packages import installed

PROVENANCE = "provenance.json"
_LIBRARIES = ("torch", "mujoco", "numpy", "gymnasium", "lerobot", "diffusers", "hydra-core")


@functools.cache
def commit() -> str:
    """Return the short git commit of this code, "+dirty" where tracked files differ, or "unknown" outside a checkout.

    Files in docs/ do not count: results that were just recorded there change nothing in those that follow.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / "pyproject.toml").exists():  # installed from a wheel, perhaps inside another repository
        return "unknown"
    found = _git(root, "rev-parse", "--short=12", "HEAD")
    if not found:
        return "unknown"
    changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)docs")
    return found + ("+dirty" if changed else "")


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


@functools.cache
def version() -> str:
    """Return package version and commit, as in every episode row: `0.1.0+g1a2b3c4d5e6f`."""
    package = installed("robopolicy") or "0"
    return package if commit() == "unknown" else f"{package}+g{commit().replace('+', '.')}"


@functools.cache
def code_digest() -> str:
    """Return a digest of this package's source, as it was at the first call."""
    root, whole = Path(__file__).resolve().parents[1], hashlib.sha256()
    for file in sorted(p for folder in (root, *sorted(root.iterdir())) for p in _sources(folder, root)):
        whole.update(file.read_bytes())
    return whole.hexdigest()[:16]


def _sources(folder: Path, root: Path) -> list[Path]:
    if folder == root:
        return list(folder.glob("*.py"))
    return list(folder.resolve().rglob("*.py")) if folder.is_dir() and folder.name != "__pycache__" else []


def command(arguments: list[str] | None = None) -> str:
    """Return the command line as a shell takes it again.

    Paths become relative to the working directory, or to `$HOME` or `$TMPDIR`.
    """
    given = list(sys.argv if arguments is None else arguments)
    program = Path(given[0]).name if given else "python"
    if program == "__main__.py":
        program = f"python -m {Path(given[0]).parent.name}"
    elif program.endswith(".py"):
        program = f"python {_quoted(given[0])}"
    return " ".join([program, *map(_quoted, given[1:])])


def _quoted(word: str) -> str:
    """Quote a word for the shell, with the names of the working, home and temporary directory in it.

    A shell expands `$HOME` everywhere, but `~` at the beginning of a word alone.
    """
    if len(here := os.getcwd()) > 1:
        word = re.sub(rf"(?<![\w.-]){re.escape(here)}(?=/|$)", ".", word)
    word = word.removeprefix("./")
    names = {tempfile.gettempdir(): '"${TMPDIR:-/tmp}"', str(Path.home()): '"$HOME"'}
    longest_first = sorted((path for path in names if len(path) > 1), key=len, reverse=True)
    paths = "|".join(map(re.escape, longest_first))
    parts = re.split(rf"(?<![\w.-])({paths})(?![\w.-])", word)
    quoted = (names.get(part) or (part and shlex.quote(part)) for part in parts)
    return "".join(quoted) or shlex.quote(word)


@functools.cache
def hardware() -> str:
    """Return processor, usable cores, memory and GPU, in one line."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = re.findall(r"^model name\s*:\s*(.+)$", info.read_text(), flags=re.MULTILINE)
        name = re.sub(r"\s+", " ", models[0]).strip() if models else name
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = [name, f"{cores} cores"]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        parts.append(f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB")
    import torch

    parts.append(torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU")
    return ", ".join(parts)


def versions() -> dict[str, str]:
    """Return the versions of Python, this package and the libraries that shape results."""
    found = {name: release for name in _LIBRARIES if (release := installed(name)) is not None}
    return {"python": platform.python_version(), "robopolicy": version(), **found}


def provenance(arguments: list[str] | None = None) -> dict[str, Any]:
    """Return the content of `provenance.json`, with the time."""
    return {
        "command": command(arguments),
        "commit": commit(),
        "versions": versions(),
        "hardware": hardware(),
        "system": f"{platform.system()} {platform.machine()}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def write_provenance(run_dir: Path | str, arguments: list[str] | None = None) -> Path:
    """Write `provenance.json` into `run_dir`, in place of one that is there.

    A start before this one that had another command or commit stays in it, in the list `earlier`, oldest first.
    """
    file, now = Path(run_dir) / PROVENANCE, provenance(arguments)
    before = dict[str, Any]()
    with contextlib.suppress(DataError):  # none yet, or damaged
        before = read_json(file, error=DataError)
    earlier = found if isinstance(found := before.pop("earlier", None), list) else []
    if before and any(before.get(key) != now[key] for key in ("command", "commit")):
        earlier = [*earlier, before]
    return write_atomically(file, json.dumps(now | ({"earlier": earlier} if earlier else {}), indent=2) + "\n")

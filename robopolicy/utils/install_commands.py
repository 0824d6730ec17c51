"""Write commands that install packages into this Python environment."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # the checkout, or site-packages


def in_checkout() -> bool:
    return (ROOT / "scripts" / "setup.sh").is_file()


def pip_install(*packages: str) -> str:
    """Return the command that installs packages, given unquoted, into this environment.

    An environment made by uv has no pip, and an activated one then finds the pip of the system. So the command names
    this Python, and uv by its path where it is not on PATH.
    """
    python, words = shlex.quote(sys.executable), shlex.join(packages)
    if importlib.util.find_spec("pip") is not None:
        return f"{python} -m pip install {words}"
    return f"{_uv()} pip install --python {python} {words}"


def setup_or_pip(group: str, *packages: str) -> str:
    """Return what installs packages: in a checkout its set-up with a set of packages, or else `pip_install`."""
    command = pip_install(*packages)
    return f"./scripts/setup.sh {group}, or: {command}" if in_checkout() else command


def _uv() -> str:
    known = [Path(sys.prefix) / "bin" / "uv", ROOT / ".tools" / "bin" / "uv"]
    found = next((path for path in known if path.is_file()), None)
    return "uv" if found is None or shutil.which("uv") == str(found) else shlex.quote(str(found))

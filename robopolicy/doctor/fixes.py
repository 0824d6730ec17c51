"""Write the commands that fix a machine."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # the checkout, or site-packages


def in_checkout() -> bool:
    return (ROOT / "scripts" / "setup.sh").is_file()


def uv() -> str:
    """Return the command of uv."""
    for path in (Path(sys.prefix) / "bin" / "uv", ROOT / ".tools" / "bin" / "uv"):
        if path.is_file():
            return shlex.quote(str(path))
    return "uv"


def pip_install(*packages: str) -> str:
    return f"{uv()} pip install --python {shlex.quote(sys.executable)} {' '.join(packages)}"


def apt_install(packages: str) -> str:
    sudo = "" if os.geteuid() == 0 else "sudo "
    return f"{sudo}apt-get update && {sudo}apt-get install -y {packages}"


def setup_fix() -> str:
    """Return the command that restores the Python environment."""
    if in_checkout():
        return f"{shlex.quote(str(ROOT / 'scripts' / 'setup.sh'))} --force"
    return pip_install("--upgrade", "robopolicy")

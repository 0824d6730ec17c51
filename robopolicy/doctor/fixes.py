"""Write the commands that fix a machine."""

from __future__ import annotations

import os
import shlex

from robopolicy.utils.install_commands import ROOT, in_checkout, pip_install


def apt_install(packages: str) -> str:
    sudo = "" if os.geteuid() == 0 else "sudo "
    return f"{sudo}apt-get update && {sudo}apt-get install -y {packages}"


def setup_fix() -> str:
    """Return the command that restores the Python environment."""
    if in_checkout():
        return f"{shlex.quote(str(ROOT / 'scripts' / 'setup.sh'))} --force"
    return pip_install("--upgrade", "robopolicy")

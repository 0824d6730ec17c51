"""completion.py: the tabulator ends verbs, groups, options and keys."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from robopolicy.cli.completion import SCRIPT, candidates
from robopolicy.cli.verbs import VERBS


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("robopolicy qui", ["quickstart"]),
        ("robopolicy", list(dict.fromkeys(name.split()[0] for name in VERBS))),
        ("", list(dict.fromkeys(name.split()[0] for name in VERBS))),
        ("robopolicy data", ["data"]),
        ("robopolicy data ", ["import", "check", "view"]),
        ("robopolicy train task=pusht", ["pusht", "pusht_gym"]),
        ("robopolicy train algo=residual loop.crit", ["loop.critic_only_updates="]),
        ("robopolicy train algo=bc loop.crit", []),
        ("robopolicy train --co", ["--config-dir"]),
        ("robopolicy data check sat", ["saturated="]),
        ("robopolicy train task=nothing see", []),
    ],
)
def test_words_are_completed(line: str, expected: list[str]) -> None:
    assert candidates(line) == expected


def test_bash_completes(tmp_path: Path) -> None:
    program = tmp_path / "robopolicy"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m robopolicy.cli.main "$@"\n')
    program.chmod(0o755)
    line = "robopolicy train algo=residual_s"
    script = (
        f'eval "$(robopolicy --completion)"; COMP_LINE="{line}"; COMP_POINT={len(line)}; _robopolicy; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["residual_sample_efficient", "residual_scratch", "residual_synthetic"]


@pytest.mark.parametrize("typed", ["{}/robopolicy", "'~/robopolicy'"], ids=["path", "home"])
def test_bash_completes_a_command_by_its_path_and_values_that_are_files(tmp_path: Path, typed: str) -> None:
    program = tmp_path / "robopolicy"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    command = typed.format(tmp_path)
    script = f'{SCRIPT}\nCOMP_LINE="x" COMP_POINT=1; _robopolicy {command}; echo "${{COMPREPLY[@]}}"; complete -p'
    done = subprocess.run(
        ["bash", "-c", script],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    words, rules = done.stdout.splitlines()[:2]
    assert words == "--complete x" and "-o default" in rules

"""The warm process of tests: programs run as by `python`, it ends with its last holder and is started again."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import WARM, WarmProcess

EMPTY = "LIBRARIES = ()"


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WarmProcess:
    """One that imports nothing."""
    text = WARM.read_text()
    begin, end = text.index("LIBRARIES = ("), text.index("\n\n\ndef ask")
    (tmp_path / "warm_process.py").write_text(text[:begin] + EMPTY + text[end:])
    monkeypatch.setattr("tests.conftest.WARM", tmp_path / "warm_process.py")
    return WarmProcess(tmp_path / "warm.socket", tmp_path)


def ask(process: WarmProcess, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", str(WARM), "ask", str(process.door), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def pid_of(process: WarmProcess) -> int:
    """Of the server: the parent's parent of a program."""
    line = socket.socket(socket.AF_UNIX)
    line.connect(str(process.door))
    pid, _, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    line.close()
    return pid


def test_programs_end_as_they_would_by_themselves(process: WarmProcess, tmp_path: Path) -> None:
    process.hold()
    program = tmp_path / "program.py"
    program.write_text("import os, sys\nprint(sys.argv[1:], os.getcwd())\nsys.exit(int(sys.argv[1]))\n")
    done = ask(process, str(program), "3")
    assert done.returncode == 3 and done.stdout == f"['3'] {os.getcwd()}\n", done.stderr
    program.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    assert ask(process, str(program)).returncode == 128 + signal.SIGTERM
    process.close()


def test_it_ends_with_its_last_holder_and_then_starts_again(process: WarmProcess, tmp_path: Path) -> None:
    other = WarmProcess(process.door, tmp_path)
    process.hold()
    other.hold()
    first = pid_of(process)
    process.close()
    assert ask(other, "-m", "this").returncode == 0, "the other holds it"
    other.close()
    os.waitpid(first, 0)
    assert not process.door.exists()
    process.hold()
    assert pid_of(process) != first and ask(process, "-m", "this").returncode == 0
    process.close()


def test_one_that_was_killed_is_started_again_with_a_warning(process: WarmProcess) -> None:
    process.hold()
    first = pid_of(process)
    process.hold()
    assert pid_of(process) == first, "it runs"
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    assert "the warm process has ended" in ask(process, "-m", "this").stderr
    with pytest.warns(UserWarning, match="the warm process has ended"):
        process.hold()
    assert ask(process, "-m", "this").returncode == 0
    process.close()

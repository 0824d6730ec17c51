"""Processes that evaluate a suite end with the command that started them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

PARENT = """
import os, signal, sys
from pathlib import Path
from robopolicy.cli import eval_suite, suite_jobs
from tests.cli.test_eval_suite import endless
signal.signal(signal.SIGINT, signal.default_int_handler)
eval_suite._evaluate = endless
job = suite_jobs.Job("near", {}, Path(), "p", "latest", [0], False, 1, "cpu", 1, Path())
eval_suite._carry_out([job] * 4, 2, lambda piece, error: print("over", error, flush=True))
"""


def endless(job: object) -> None:
    """Evaluate a piece for longer than a test."""
    print(os.getpid(), flush=True)
    time.sleep(600)


@pytest.mark.slow  # two processes import torch
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_the_command_and_begin_no_other_piece(number: signal.Signals) -> None:
    command = [sys.executable, "-c", PARENT]
    parent, workers = subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True), []
    assert parent.stdout is not None
    try:
        for _ in range(2):
            workers.append(psutil.Process(int(parent.stdout.readline())))
        parent.send_signal(number)  # to it alone, as `kill` and the system's killer do
        parent.wait(timeout=120)
        assert not psutil.wait_procs(workers, timeout=60)[1], "the processes are still there"
        assert parent.returncode == -number and not parent.stdout.read()
    finally:
        for process in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        parent.kill()
        parent.wait()
        parent.stdout.close()

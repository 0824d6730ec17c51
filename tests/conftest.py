from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# Small tensors: threads cost more than they bring, and tests may run side by side.
torch.set_num_threads(1)

COMPILES = "test_robots.py::test_an_arm_that_hears_nothing_plays_the_certified_stop"
LONGEST = ("test_docs.py", "test_promises.py", "test_install_size.py", "test_sweep_ray.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a fresh clone numba compiles the limits for 20 s: in one worker first, or every worker would.

    Then the longest tests, so that no worker is left alone with them.
    """
    items.sort(key=lambda item: (not item.nodeid.endswith(COMPILES), item.path.name not in LONGEST))


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The words of a command that stand for `python`, with the large packages imported already (warm_process.py).

    All workers of a run share one such process. It ends with the last of them.
    """
    program = Path(__file__).with_name("warm_process.py")
    folder = tmp_path_factory.getbasetemp()  # of this run, which no other user can enter
    door = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "warm.socket"
    with socket.socket(socket.AF_UNIX) as line, door.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not door.exists():
            environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
            environment["JE_ARROW_MALLOC_CONF"] = "background_thread:false"  # a process with threads should not fork
            environment["HF_LEROBOT_HOME"] = str(tmp_path_factory.mktemp("lerobot"))  # LeRobot reads it when imported
            with door.with_suffix(".log").open("w") as log:
                process = subprocess.Popen([sys.executable, "-P", program, "serve", door], env=environment, cwd="/",
                                           start_new_session=True, stdin=subprocess.DEVNULL, stdout=log,
                                           stderr=log)  # fmt: skip
            while not door.exists():
                assert process.poll() is None, door.with_suffix(".log").read_text()
                time.sleep(0.05)
        fcntl.flock(lock, fcntl.LOCK_UN)
        line.connect(str(door))
        line.sendall(b"h")
        yield [sys.executable, "-I", "-S", str(program), "ask", str(door)]

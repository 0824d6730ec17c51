from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

gc.disable()  # until everything is collected: imports make much that stays, and nothing to throw away

# Small tensors: threads cost more than they bring, and tests may run side by side.
torch.set_num_threads(1)

COMPILES = "test_robots.py"
WARM = Path(__file__).with_name("warm_process.py")
LONGEST = ("test_docs.py", "test_promises.py", "test_install_size.py", "test_sweep_ray.py", "test_pipeline.py",
           "test_ranked.py", "test_graph.py", "test_fit.py", "test_wheel.py", "test_resume.py")  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a fresh clone numba compiles the limits for 20 s: in one worker first, or every worker would.

    Then the longest files, so that no worker is left alone with them.
    """
    items.sort(key=lambda item: (item.path.name != COMPILES, item.path.name not in LONGEST))


def pytest_collection_finish() -> None:
    """Leave out of garbage collection what stays until the end: a look through all of it takes most of a second."""
    gc.freeze()
    gc.enable()


class WarmProcess:
    """A process that has the large packages imported already (warm_process.py), shared by all workers of a run.

    It ends with the last of them.
    """

    def __init__(self, door: Path, lerobot_home: Path) -> None:
        self.door, self._lerobot_home, self._lines = door, lerobot_home, contextlib.ExitStack()
        self._line: socket.socket | None = None

    def close(self) -> None:
        self._lines.close()

    def hold(self) -> None:
        """Connect; start it where it is not, or no longer, there."""
        if self._line is not None and self._runs(self._line):
            return
        with self.door.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            line = self._connect()
            if line is None:
                if self.door.exists():  # it leaves none behind where it ends by itself
                    warnings.warn(f"the warm process has ended: {self._log()}", stacklevel=2)
                self._start()
                line = self._connect()
            assert line is not None, self._log()
            self._line = self._lines.enter_context(line)

    def _connect(self) -> socket.socket | None:
        """Return a line that the process holds on to; None where nothing answers."""
        line = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):
            line.connect(str(self.door))
            line.sendall(b"h")
            if line.recv(1):
                return line
        line.close()
        return None

    def _start(self) -> None:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        environment["JE_ARROW_MALLOC_CONF"] = "background_thread:false"  # a process with threads should not fork
        environment["HF_LEROBOT_HOME"] = str(self._lerobot_home)  # LeRobot reads it when imported
        for left in (self.door, Path(f"{self.door}.new")):
            left.unlink(missing_ok=True)
        with self.door.with_suffix(".log").open("w") as log:
            process = subprocess.Popen([sys.executable, "-P", WARM, "serve", self.door], env=environment, cwd="/",
                                       stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # fmt: skip
        while not self.door.exists():
            assert process.poll() is None, self._log()
            time.sleep(0.05)

    def _log(self) -> str:
        return self.door.with_suffix(".log").read_text()[-2000:]

    @staticmethod
    def _runs(line: socket.socket) -> bool:
        try:
            return bool(line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))  # it says nothing more
        except BlockingIOError:
            return True
        except OSError:
            return False


@pytest.fixture(scope="session")
def warm_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmProcess]:
    folder = tmp_path_factory.getbasetemp()  # of this run, which no other user can enter
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with contextlib.closing(WarmProcess(folder / "warm.socket", tmp_path_factory.mktemp("lerobot"))) as process:
        yield process


@pytest.fixture
def warm_python(warm_process: WarmProcess) -> list[str]:
    """The words of a command that stand for `python`, with the large packages imported already."""
    warm_process.hold()
    return [sys.executable, "-I", "-S", str(WARM), "ask", str(warm_process.door)]

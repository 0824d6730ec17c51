"""Programs that begin with the heavy packages imported: real processes, forked from one that has done nothing else.

Most of a short command's time goes into importing torch, LeRobot and the like. `command` is put before a program's
arguments where `sys.executable` would be; the program has its own arguments, directory, environment, standard streams
and exit code, is no child of the tests, and can be killed. Nothing of this repository is imported beforehand, and each
command is started by a plain Python too somewhere in the tests.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

HEAVY = (  # what short commands spend their time on
    "torch", "mujoco", "hydra", "pydantic", "numba", "scipy.stats", "pandas", "matplotlib.pyplot", "rich.progress",
    "lerobot.datasets.lerobot_dataset", "lerobot.policies.factory", "lerobot.envs.factory", "accelerate",
)  # fmt: skip


def command() -> list[str]:
    """What stands before the arguments of a Python program: `[*command(), "-m", "robopolicy", "train", …]`."""
    return [sys.executable, "-S", "-E", __file__, str(_server())]


@cache
def _server() -> Path:
    """The address of this process's server; it ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    address = folder / "s"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # read as they are imported
    server = subprocess.Popen(
        [sys.executable, "-P", "-W", "ignore:This process:DeprecationWarning", __file__, "serve", str(address)],
        env=environment, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdin is not None and server.stdout is not None
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(server.stdin.close)
    assert server.stdout.readline() == "ready\n", "the server of warm processes did not start"
    return address


def serve(address: str) -> dict[str, Any]:
    """Fork a process for every program asked for, until the standard input ends. Returns in the new processes alone."""
    for name in HEAVY:
        with contextlib.suppress(ImportError):  # whoever needs it will say so
            importlib.import_module(name)
    threads = {(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()}
    own = {Path("/proc/self/comm").read_text().strip(), "jemalloc_bg_thd"}  # which knows how to be forked
    assert threads <= own, f"cannot be forked with {threads - own}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    print("ready", flush=True)
    while True:
        found, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in found:
            sys.exit()
        asked, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return attend(asked)
        asked.close()


def attend(asked: socket.socket) -> dict[str, Any]:
    """Start what one client asks for, tell how it ends, and end it where the client is gone."""
    message, streams = _receive(asked)
    child = os.fork()
    if child == 0:
        asked.close()
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        return message
    for stream in (0, 1, 2, *streams):
        os.close(stream)  # whoever reads them waits for the child alone
    ended = os.pidfd_open(child)
    _tell(asked, child)
    found, _, _ = select.select([ended, asked], [], [])
    if ended not in found:
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if ended in found:
        _tell(asked, os.waitstatus_to_exitcode(status))
    os._exit(0)


def _tell(asked: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # killed meanwhile; the connection's end tells it
        asked.sendall(f"{number}\n".encode())


def _receive(asked: socket.socket) -> tuple[dict[str, Any], list[int]]:
    size = array.array("i").itemsize
    data, extra, _, _ = asked.recvmsg(1 << 16, socket.CMSG_LEN(3 * size))
    streams = array.array("i", extra[0][2]).tolist()
    while not data.endswith(b"\n"):
        data += asked.recv(1 << 16)
    return json.loads(data), streams


def play(message: dict[str, Any]) -> None:
    """Be the program: `python -m MODULE …` or `python FILE …`."""
    os.chdir(message["cwd"])
    os.environ.clear()
    os.environ.update(message["environ"])
    arguments = message["arguments"]
    module = arguments[0] == "-m"
    sys.argv = arguments[1:] if module else arguments
    places = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    sys.path[:] = [os.getcwd() if module else str(Path(arguments[0]).parent.resolve()), *places, *sys.path]
    if module:
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(arguments[0], run_name="__main__")


def ask(address: str, arguments: list[str]) -> int:
    """The client: hands its arguments, directory, environment and streams over, and ends as the program does."""
    server = socket.socket(socket.AF_UNIX)
    server.connect(address)
    message = {"arguments": arguments, "cwd": os.getcwd(), "environ": dict(os.environ)}
    server.sendmsg([b" "], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
    server.sendall(json.dumps(message).encode() + b"\n")
    answer = server.makefile()
    program = int(answer.readline())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(program, number))
    code = int(answer.readline() or 1)
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        play(serve(sys.argv[2]))
    else:
        sys.exit(ask(sys.argv[1], sys.argv[2:]))

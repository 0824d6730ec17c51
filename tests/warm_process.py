"""Run Python programs as forks of one process that has imported the large packages, which takes 15 s of a core.

    python -P tests/warm_process.py serve SOCKET                        # until its last holder has gone
    python tests/warm_process.py ask SOCKET (-m MODULE | FILE) [WORD …]  # as `python` would run it

Nothing of robopolicy is imported before the fork, and no random number drawn: a program finds what it would find in a
process of its own, sooner.
"""

from __future__ import annotations

import os
import socket
import sys

LIBRARIES = ("torch", "torchvision", "mujoco", "hydra", "numba", "lerobot.datasets.lerobot_dataset",
             "lerobot.scripts.lerobot_train", "lerobot.scripts.lerobot_eval")  # fmt: skip


def ask(path: str, words: list[str]) -> int:
    """Let the server run a program with our folder, environment and standard streams; its exit code.

    The file of the environment's WARM_CPU_SECONDS gets its CPU time in s, its children's included.
    """
    import json

    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            with open(path.replace(".socket", ".log")) as log:
                sys.exit(f"the warm process has ended: {log.read()[-2000:]}")
        socket.send_fds(line, [b"r"], [0, 1, 2])
        line.sendall(json.dumps({"words": words, "cwd": os.getcwd(), "env": dict(os.environ)}).encode())
        line.shutdown(socket.SHUT_WR)
        code, used = (line.recv(64).decode() or "70 0").split()
    if file := os.environ.get("WARM_CPU_SECONDS"):
        with open(file, "w") as out:
            out.write(used)
    return int(code)


def serve(path: str) -> int:
    """Answer until all who hold a line have hung up. In the fork: run the program, and return its exit code."""
    import contextlib
    import gc
    import importlib
    import selectors
    import signal

    for name in LIBRARIES:
        with contextlib.suppress(ImportError):  # lerobot-train needs more packages
            importlib.import_module(name)
    gc.freeze()  # a fork that collects garbage would copy every page of the libraries
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a test's Ctrl-C for its process group
    with socket.socket(socket.AF_UNIX) as door, selectors.DefaultSelector() as lines:
        door.bind(f"{path}.new")
        door.listen(64)
        os.rename(f"{path}.new", path)  # it listens before it has its name
        lines.register(door, selectors.EVENT_READ)
        held = 0
        while True:
            for key, _ in lines.select():
                if key.fileobj is door:
                    line, _ = door.accept()
                    kind, streams, _, _ = socket.recv_fds(line, 1, 3)
                    if kind == b"h":
                        line.sendall(b"k")
                        lines.register(line, selectors.EVENT_READ)
                        held += 1
                    elif kind == b"r" and os.fork() == 0:
                        door.close()
                        attend(line, streams)
                    else:
                        line.close()
                    for stream in streams:
                        os.close(stream)
                else:
                    lines.unregister(key.fileobj)
                    held -= 1
                    if not held:
                        os.unlink(path)
                        return 0


def attend(line: socket.socket, streams: list[int]) -> None:
    """Fork the program, wait for it and tell its exit code; in the fork, run it."""
    import json
    import signal

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pieces = []
    while piece := line.recv(65536):
        pieces.append(piece)
    asked = json.loads(b"".join(pieces))
    if child := os.fork():
        _, status, used = os.wait4(child, 0)
        code = os.waitstatus_to_exitcode(status)  # a signal's as a shell tells it
        line.sendall(f"{code if code >= 0 else 128 - code} {used.ru_utime + used.ru_stime:.2f}".encode())
        os._exit(0)
    line.close()
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    try:
        code = run(asked["words"], asked["cwd"], asked["env"])
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        code = end.code or 0
    leave(code)


def leave(code: int) -> None:
    """End the process as Python does, but for the libraries' objects, whose end takes half a second."""
    import atexit
    import threading

    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def run(words: list[str], cwd: str, env: dict[str, str]) -> int:
    """Run `-m MODULE …` or `FILE …` as `python` would; its exit code."""
    import runpy

    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    module = words[0] == "-m"
    sys.argv = words[1:] if module else words
    first = cwd if module else os.path.dirname(os.path.abspath(words[0]))
    sys.path[:0] = [first, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    if module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(serve(sys.argv[2]) if sys.argv[1] == "serve" else ask(sys.argv[2], sys.argv[3:]))

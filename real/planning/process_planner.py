"""A planner in a process of its own: a tick does not wait for the policy's bytecode, nor a plan for the ticks'.

python -m robopolicy.real.planning.process_planner <checkpoint> <options as JSON> <descriptor of a socket>
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from robopolicy.core.types import Obs
from robopolicy.real.control.chunk_buffer import Ahead
from robopolicy.real.planning.planner import Array, PlanningError, Plans
from robopolicy.real.planning.wire import Message, WireError, printable, receive, send

AHEAD, LIMIT = "/ahead", 1 << 28  # name of the actions ahead, which no feature has; bytes of a message
LOADING, PATIENCE = 120.0, 10.0  # s for a policy to be loaded, and for a plan
PR_SET_PDEATHSIG = 1


class ProcessPlanner:
    """A `Plans` (real/planning/planner.py) that runs `options` elsewhere on this machine. Blocks: use it in a thread.

    Raises:
        PlanningError: the policy cannot be loaded there; says why.
    """

    def __init__(self, checkpoint: Path, options: dict[str, Any], *, command: Sequence[str] | None = None) -> None:
        """`options`: arguments of `planner_of` beside the checkpoint. `command`: of the process, for tests."""
        self.line, theirs = socket.socketpair()
        with theirs:
            run = [*(command or (sys.executable, "-m", __name__)), str(checkpoint), json.dumps(options)]
            self.process = subprocess.Popen(  # in its own POSIX session: Ctrl-C is for the node, which ends it
                [*run, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        try:
            hurried = sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_FIFO
            if hurried:  # loading may wait
                os.sched_setscheduler(self.process.pid, os.SCHED_OTHER, os.sched_param(0))
            self.history: int = self._ask(None, "loaded", patience=LOADING).head["history"]
            if hurried:  # ticks come before plans, plans before all else
                mine = os.sched_getparam(0).sched_priority
                os.sched_setscheduler(self.process.pid, os.SCHED_FIFO, os.sched_param(max(1, mine - 10)))
        except BaseException:
            self.close()
            raise

    def reset(self, seed: int) -> None:
        """Begin an episode; its noise is keyed by `seed`."""
        self._ask({"type": "reset", "seed": seed}, "ready")

    def plan(self, obs: Obs, step: int, ahead: Ahead | None = None) -> Array:
        """Return [Ta Da], as `robopolicy.real.planning.planner.Plans.plan`.

        Raises:
            PlanningError: the policy failed, or its process has ended or takes longer than PATIENCE.
        """
        arrays = {k: v.numpy() for k, v in obs.items()} | ({} if ahead is None else {AHEAD: ahead.actions})
        asked = {"type": "plan", "step": step, "delay": None if ahead is None else ahead.delay}
        answer = self._ask(asked, "chunk", arrays)
        if answer.head["step"] != step or "chunk" not in answer.arrays:
            raise self._gone(WireError(f"expected a chunk for step {step}, found one for {answer.head['step']}"))
        return answer.arrays["chunk"]

    def close(self) -> None:
        """End the process."""
        self.line.close()
        self.process.kill()
        self.process.wait()

    def _ask(
        self, head: dict[str, Any] | None, expected: str, arrays: dict[str, Any] | None = None,
        *, patience: float | None = None,
    ) -> Message:  # fmt: skip
        patience = PATIENCE if patience is None else patience
        try:
            if head is not None:
                send(self.line, head, arrays, timeout=patience)
            answer = receive(self.line, limit=LIMIT, timeout=patience)
        except WireError as error:
            raise self._gone(error) from error
        if answer.head["type"] == "failed":
            raise PlanningError(answer.head["reason"])
        if answer.head["type"] != expected:
            raise self._gone(WireError(f"expected {expected!r}, found {answer.head['type']!r}"))
        return answer

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def _gone(self, error: WireError) -> PlanningError:
        """End the process, whose late answer would be taken for the answer to the next request."""
        self.process.kill()
        return PlanningError(f"the planner's process is gone ({error}; status {self.process.wait()})")


def serve(line: socket.socket, planner: Plans) -> None:
    """Plan for the other side of `line` until it hangs up."""
    send(line, {"type": "loaded", "history": planner.history}, timeout=PATIENCE)
    while True:
        select.select([line], [], [])
        try:
            asked = receive(line, limit=LIMIT, timeout=PATIENCE)
        except WireError:
            return
        try:
            head, arrays = _done(planner, asked)
        except Exception as error:  # of the policy: the loop gets it, and holds
            head, arrays = _failed(error), {}
        send(line, head, arrays, timeout=PATIENCE)


def _done(planner: Plans, asked: Message) -> tuple[dict[str, Any], dict[str, Array]]:
    if asked.head["type"] == "reset":
        planner.reset(asked.head["seed"])
        return {"type": "ready"}, {}
    arrays = dict(asked.arrays)
    actions = arrays.pop(AHEAD, None)
    ahead = None if actions is None else Ahead(actions, asked.head["delay"] or 0)
    obs = {k: torch.from_numpy(v) for k, v in arrays.items()}
    step = asked.head["step"]
    return {"type": "chunk", "step": step}, {"chunk": planner.plan(obs, step, ahead)}


def _failed(error: Exception) -> dict[str, str]:
    return {"type": "failed", "reason": printable(f"{type(error).__name__}: {error}")}


def planner_of(checkpoint: Path, *, which: str, chunking: str, latency: float, early: float = 0.0) -> Plans:
    """Return the planner of a checkpoint's policy; see chunking_of."""
    from robopolicy.real.planning.chunking import chunking_of
    from robopolicy.runs.checkpointer import load_policy

    policy = load_policy(checkpoint, which=which)  # type: ignore[arg-type]
    return chunking_of(chunking, policy, latency, early=early).planner  # type: ignore[arg-type]


def main() -> None:
    checkpoint, options, descriptor = sys.argv[1:]
    torch.set_num_threads(1)
    if sys.platform == "linux":  # a policy that hangs would not notice that the node is gone
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with socket.socket(fileno=int(descriptor)) as line:
        try:
            planner = planner_of(Path(checkpoint), **json.loads(options))
        except Exception as error:
            send(line, _failed(error), timeout=PATIENCE)
            return
        serve(line, planner)


if __name__ == "__main__":
    main()

"""`robopolicy deploy robot=mujoco_ros2`: simulated arm and policy node as two processes, an episode at a time."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator

from real.deploy import Deployment, Episode
from real.ros2 import arm, node
from real.ros2.operator import Operator, arm_command, node_command, private_environment, processes
from real.ros2.wiring import load_wiring
from real.safety import SafetyError

LONGEST = 60.0  # s without any progress before an episode is given up


def run_episodes(deployment: Deployment) -> Iterator[Episode]:
    """Episodes over ROS 2, in the order of the deployment's seeds."""
    d = deployment
    options = {
        "task": d.task, "which": d.which, "settings": d.settings, "latency": d.latency, "dry_run": d.dry_run,
        "lockstep": d.lockstep, "chunking": d.chunking, "risk": None if d.risk is None else str(d.risk),
        "record": None if d.record is None else str(d.record), "policy_id": d.policy_id,
    }  # fmt: skip
    wiring = load_wiring(d.wiring)
    os.environ.update({k: v for k, v in private_environment().items() if k.startswith("ROS_")})
    with (
        processes(
            arm_command(d.task, d.wiring, lost=d.lost, lockstep=d.lockstep),
            node_command(d.checkpoint, d.wiring, options), logs=d.logs,
        ) as running,
        Operator(wiring) as operator,
    ):  # fmt: skip
        with alive(running):
            operator.wait(lambda: all(operator.heard.values()), 120.0, "both nodes")
            operator.transition("configure")
        for seed in d.seeds:
            with alive(running):
                yield _episode(operator, seed, d.env.task.horizon)


@contextlib.contextmanager
def alive(running: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Says which process has ended where something failed for that reason."""
    try:
        yield
    except SafetyError as error:
        names = ("the arm", "the policy node")
        ended = [f"{n} ended with {p.returncode}" for n, p in zip(names, running, strict=True) if p.poll() is not None]
        if ended:
            raise SafetyError(f"{error}; {', '.join(ended)}") from error
        raise


def _episode(operator: Operator, seed: int, horizon: int) -> Episode:
    operator.reset_arm(seed)
    activate(operator)
    last, quiet = "", 0
    while True:
        operator.next_report(LONGEST)
        mine, theirs = operator.status[node.NAME], operator.status[arm.NAME]
        success = 0 <= int(theirs["success_step"]) <= horizon
        over = int(mine.get("step", "0")) > horizon and int(theirs["step"]) > horizon
        quiet = quiet + 1 if (now := mine.get("ticks", "") + theirs["step"]) == last else 0
        last = now
        if success or over or theirs["aborted"] or mine.get("mode") == "FAULT" or quiet > 20 * LONGEST:
            break
    operator.set(node.NAME, success=success)
    operator.transition("deactivate")
    mine = operator.status[node.NAME]
    ticks, steps = max(1, int(mine["ticks"])), max(1, int(mine["step"]))
    counts = json.loads(mine["counts"])
    return Episode(
        seed, success, steps, theirs["aborted"], mine["mode"] or last_mode(mine), int(mine["changed"]) / ticks,
        counts.get("loop_paced", 0) / steps, Counter(json.loads(mine["reasons"])),
    )  # fmt: skip


def activate(operator: Operator, *, patience: float = 5.0) -> None:
    """Activate; what has only just begun may need up to `patience` s until all that is needed has come.

    Raises:
        SafetyError: refused to the last; with the node's reason.
    """
    until = time.monotonic() + patience
    while True:
        try:
            return operator.transition("activate")
        except SafetyError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def last_mode(status: dict[str, str]) -> str:
    """The mode before deactivation, by the reasons that were given last."""
    return "FAULT" if "fault:" in status["reasons_now"] else "RUN"

"""`robopolicy deploy robot=mujoco_ros2`: simulated arm and policy node as two processes, an episode at a time."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial

from robopolicy.real.deploy.deployment import Deployment
from robopolicy.real.deploy.simulated_arm import Episode
from robopolicy.real.ros2 import policy_node, sim_arm_node
from robopolicy.real.ros2.episode_client import EpisodeClient
from robopolicy.real.ros2.processes import Process, arm_command, node_command, private_environment, processes
from robopolicy.real.ros2.simulated_wiring import simulated_problems
from robopolicy.real.ros2.wiring import WiringError, load_wiring
from robopolicy.real.safety import SafetyError
from robopolicy.real.teleoperation.devices import map_of, source_of, stick_of
from robopolicy.real.teleoperation.keys import Keys
from robopolicy.real.teleoperation.teleoperated_sim import first_interrupt, status

STANDS = 0.005  # rad/s: no joint is faster
GRAPH = ("ROS_DOMAIN_ID", "ROS_AUTOMATIC_DISCOVERY_RANGE")
LONGEST = 60.0  # s without any progress before an episode is given up


def run_episodes(deployment: Deployment) -> Iterator[Episode]:
    """Episodes over ROS 2, in the order of the deployment's seeds."""
    config = deployment.config
    assert config.task is not None  # prepare() has put it there
    wiring = load_wiring(config.wiring)
    if problems := simulated_problems(wiring, deployment.env.controller.arm.dof):
        raise WiringError(
            f"wiring={config.wiring}: the simulated arm cannot play it:\n  - " + "\n  - ".join(problems) + "\n"
            "Change a copy of it: docs/ros2.md#try-your-wiring-on-the-simulated-arm"
        )
    source: contextlib.AbstractContextManager[Keys | None] = contextlib.nullcontext()
    if config.operator is not None:
        source = source_of(config.operator, config.drive)
    graph = {k: v for k, v in private_environment().items() if k in GRAPH}
    os.environ.update(graph)
    print("starting the arm and the policy node; listen with", *(f"{k}={v}" for k, v in graph.items()), flush=True)
    arm = arm_command(config.task, config.wiring, lost=config.lost, lockstep=config.lockstep)
    with (
        source as keys,
        processes(arm, node_command(config)) as running,
        EpisodeClient(wiring) as operator,
    ):
        operator.watch = partial(check_running, running)
        with alive(running):
            operator.wait(lambda: all(operator.heard.values()), 120.0, "both nodes")
            operator.transition("configure")
        check_limits(operator.status[policy_node.NAME].get("limits", ""), deployment.profile.digest)
        steps = deployment.env.task.horizon
        if keys is not None:  # then the task's horizon does not end an episode
            steps = round(config.drive.episode_s / deployment.env.dt)
            print(map_of(config.operator or "keyboard"))
            operator.listen(keys, stick_of(keys))
        yield from episodes(operator, running, deployment.seeds, steps, dry_run=config.dry_run)


def episodes(
    operator: EpisodeClient, running: list[Process], seeds: Iterable[int], steps: int, *,
    dry_run: bool = False,
) -> Iterator[Episode]:  # fmt: skip
    """Play episodes of up to `steps` control steps, until all are done or a human ends them."""
    human = operator.forwarder
    with first_interrupt(human.quit) if human is not None else contextlib.nullcontext():
        for seed in seeds:
            with alive(running):
                yield _episode(operator, seed, steps, dry_run)
            if human is not None and human.over:
                status("")
                print(human.over)
                return


def check_limits(reported: str, expected: str) -> None:
    """Raise SafetyError where the node has other limits in force than those that were announced."""
    if reported != expected:
        raise SafetyError(
            f"limits: the policy node reports digest {reported!r}, expected {expected!r}, that of the wiring and "
            "`safety`. Were their files changed meanwhile? Start again"
        )


class EndedError(SafetyError):
    """A process of the graph has ended."""


def check_running(running: list[Process]) -> None:
    """Raise EndedError, with the process's last lines, where one of arm and policy node has ended."""
    for name, process in zip(("the arm", "the policy node"), running, strict=True):
        if process.poll() is not None:
            raise EndedError(f"{name} ended with {process.returncode}; its last lines:\n{process.last_lines()}")


@contextlib.contextmanager
def alive(running: list[Process]) -> Iterator[None]:
    """Says which process has ended where something failed for that reason."""
    try:
        yield
    except EndedError:
        raise
    except SafetyError as error:
        try:
            check_running(running)
        except EndedError as ended:
            raise SafetyError(f"{error}; {ended}") from error
        raise


def _episode(operator: EpisodeClient, seed: int, horizon: int, dry_run: bool = False) -> Episode:
    operator.begin_episode(seed)
    activate(operator)
    last, quiet, human = "", 0, operator.forwarder
    while True:
        operator.next_report(LONGEST)
        mine, theirs = operator.status[policy_node.NAME], operator.status[sim_arm_node.NAME]
        success = 0 <= int(theirs["success_step"]) <= horizon
        # In a dry run the arm gets no commands, and counts no steps.
        over = int(mine.get("step", "0")) > horizon and (dry_run or int(theirs["step"]) > horizon)
        quiet = quiet + 1 if (now := mine.get("ticks", "") + theirs["step"]) == last else 0
        last = now
        if human is not None:
            status(f"{mine.get('driver', '')}  control step {mine.get('step', '')}  {mine.get('mode', '')}")
            if human.over and not mine.get("halted"):
                operator.press("x")  # pressed before the episode began, when it had no effect
            over = over or (bool(mine.get("halted")) and float(theirs["speed"]) < STANDS)
        if success or over or theirs["aborted"] or mine.get("mode") == "FAULT" or quiet > 20 * LONGEST:
            break
    operator.set(policy_node.NAME, success=success)
    operator.transition("deactivate")
    mine = operator.status[policy_node.NAME]
    ticks, steps = max(1, int(mine["ticks"])), max(1, int(mine["step"]))
    mode = mine["mode"] or ("FAULT" if "fault:" in mine["reasons_now"] else "RUN")
    counts = json.loads(mine["counts"])
    return Episode(
        seed, success, steps, theirs["aborted"], mode, int(mine["changed"]) / ticks,
        counts.get("loop_paced", 0) / steps, Counter(json.loads(mine["reasons"])),
        (counts.get("loop_human", 0) + counts.get("loop_rewind", 0)) / steps, int(mine["ticks"]),
    )  # fmt: skip


def activate(operator: EpisodeClient, *, patience: float = 5.0) -> None:
    """Activate; a node that has just begun may need up to `patience` s until all inputs have come.

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

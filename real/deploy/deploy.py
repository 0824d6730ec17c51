"""`robopolicy deploy`: run a checkpoint on an arm, behind the safety limits, in this process or over ROS 2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from robopolicy.config.schema import Count, Natural, Node, Positive
from robopolicy.core.errors import ConfigError, closest
from robopolicy.core.rng import episode_seeds
from robopolicy.evaluation.statistics import wilson
from robopolicy.real.control.robots import Trouble
from robopolicy.real.deploy.deployment import Deployment, prepare
from robopolicy.real.deploy.simulated_cell import Episode, SimulatedArm
from robopolicy.real.planning.chunking import Chunking, check_chunking
from robopolicy.real.planning.remote_planner import RemotePlanner
from robopolicy.real.recording.recorder import Recorder
from robopolicy.real.safety import load_profile
from robopolicy.real.safety.tracking import not_claimed
from robopolicy.real.teleoperation.teleoperated_sim import operated
from robopolicy.real.teleoperation.teleoperator import Drive


def in_process(d: Deployment) -> Iterator[Episode]:
    """The simulated arm under the control loop, in this process: on simulated time, or with an operator in
    real time."""
    options: dict[str, Any] = dict(
        settings=d.settings, latency=d.latency, trouble=Trouble(drop=d.lost), shadow=d.dry_run, risk=d.risk,
        chunking=d.chunking, facts={"policy_id": d.policy_id, "chunking": d.chunking},
    )  # fmt: skip
    if d.operator is not None:
        yield from operated(d, options)
        return
    cell = SimulatedArm(d.env, d.policy, recorder=None if d.record is None else Recorder(d.record), **options)
    for seed in d.seeds:
        yield cell.run(seed)


def over_ros2(d: Deployment) -> Iterator[Episode]:
    """The simulated arm and the policy node as two processes that talk over ROS 2."""
    if isinstance(d.policy, RemotePlanner):
        d.policy.close()  # the node has a line of its own
    try:
        from robopolicy.real.ros2.sim_launcher import run_episodes
    except ImportError as error:
        raise ConfigError(
            f"robot=mujoco_ros2 needs ROS 2 ({error}): ./scripts/setup.sh ros, or source a ROS 2 installation"
        ) from error
    yield from run_episodes(d)


ROBOTS: dict[str, Callable[[Deployment], Iterator[Episode]]] = {"mujoco": in_process, "mujoco_ros2": over_ros2}


def deploy(
    *,
    checkpoint: Path,
    robot: str = "mujoco",
    task: Node | None = None,
    which: Literal["latest", "best"] = "latest",
    episodes: Count = 20,
    safety: dict[str, Any] | None = None,
    speed: Positive = 1.0,
    latency_ms: Natural = 0,
    chunking: Chunking = "async",
    lost: float = 0.0,
    dry_run: bool = False,
    risk: Path | None = None,
    record: Path | None = None,
    server: str | None = None,
    server_token: Path | None = None,
    server_ca: Path | None = None,
    wiring: str = "mujoco_panda",
    lockstep: bool = False,
    operator: Literal["keyboard", "gamepad"] | None = None,
    human_first: bool = False,
    drive: Drive | None = None,
) -> list[Episode]:
    """Run a checkpoint on an arm behind the safety limits, and report success, interventions and aborts.

    `safety` holds settings of `real.safety.Settings`; `speed` scales its speeds, 0.1 is where to begin on a real arm.
    `chunking`: how a chunk follows the one before, see robopolicy.real.planning.chunking.chunking_of.
    `dry_run` computes everything and moves nothing. `risk`: a critic of scripts/train_risk.py, which may slow the arm.
    `record`: a new folder for one MCAP file an episode. `server`: host:port of `robopolicy serve`, which plans instead;
    of `checkpoint` only spec and task are read then.
    `operator`: a human at these keys, or this gamepad, may take over, in real time; `human_first`: and begins every
    episode.
    Over ROS 2 `wiring` names topics and joints, and `lockstep` lets the arm wait for every command (simulated time).
    """
    if robot not in ROBOTS:
        raise ConfigError(f"robot={robot!r}: there is no such robot. {closest(robot, ROBOTS)}")
    if not 0.0 <= lost < 1.0:
        raise ConfigError(f"lost: expected a fraction from 0 to below 1, found {lost}")
    d = prepare(
        checkpoint, which=which, task=task, seeds=tuple(int(s) for s in episode_seeds("test", 0, episodes)),
        safety=safety, speed=speed, latency=latency_ms / 1000, chunking=chunking, lost=lost, dry_run=dry_run,
        risk=risk, record=record, server=server, server_token=server_token, server_ca=server_ca, wiring=wiring,
        lockstep=lockstep, operator=operator, human_first=human_first, drive=drive or Drive(),
    )  # fmt: skip
    env = d.env
    top = max(env.controller.spec.high[:3]) / env.dt if not env.spec_is_joint else 0.0
    if top > d.settings["tcp_speed"]:
        print(
            f"the policy's actions go up to {top:.2f} m/s a direction, tcp_speed permits "
            f"{d.settings['tcp_speed']:.2f}: it will be slower than trained, and may run out of its horizon"
        )
    print(check_chunking(d.chunking, d.policy, d.latency))
    profile = load_profile("panda", **d.settings)
    print(f"limits of {profile.data['title']}, {profile.digest}: {d.settings}")
    done = list(ROBOTS[robot](d))
    print(report(done))
    print(*not_claimed(profile), sep="\n")
    return done


def report(done: list[Episode]) -> str:
    """A few lines for people."""
    rate = wilson(sum(e.success for e in done), len(done))
    why: Counter[str] = sum((e.reasons for e in done), Counter())
    aborts = Counter(e.aborted for e in done if e.aborted)
    helped = [e.helped for e in done if e.helped]
    human = f"a human drove in {len(helped)} episodes, {100 * sum(helped) / len(done):.0f}% of the control steps\n"
    return (
        f"success {100 * rate.value:.0f}% ({100 * rate.low:.0f}–{100 * rate.high:.0f}) of {len(done)} episodes, "
        f"aborted by the arm: {dict(aborts) or 'never'}\n"
        f"{human if helped else ''}"
        f"control steps slower than asked for: {100 * float(np.mean([e.paced for e in done])):.1f}%\n"
        f"commands changed in {100 * float(np.mean([e.changed for e in done])):.1f}% of ticks; reasons, in ticks: "
        f"{dict(why.most_common())}"
    )

"""`robopolicy deploy`: run a checkpoint on an arm, behind the safety limits, in this process or over ROS 2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from robopolicy.core.errors import ConfigError, closest
from robopolicy.evaluation.statistics import wilson
from robopolicy.real.control.robots import Trouble
from robopolicy.real.deploy.deploy_config import DeployConfig
from robopolicy.real.deploy.deployment import Deployment, prepare
from robopolicy.real.deploy.simulated_arm import Episode, SimulatedArm
from robopolicy.real.planning.chunking import check_chunking
from robopolicy.real.planning.remote_planner import RemotePlanner
from robopolicy.real.recording.recorder import Recorder
from robopolicy.real.safety import load_profile
from robopolicy.real.safety.tracking import not_claimed
from robopolicy.real.teleoperation.teleoperated_sim import run_with_operator
from robopolicy.utils.threads import set_threads


def in_process(deployment: Deployment) -> Iterator[Episode]:
    """Run the simulated arm under the control loop in this process: on simulated time, or with an operator in real
    time."""
    config = deployment.config
    recorder = None if config.record is None else Recorder(config.record)
    options: dict[str, Any] = dict(
        settings=config.settings(), latency=config.latency, trouble=Trouble(drop=config.lost), shadow=config.dry_run,
        risk=config.risk, chunking=config.chunking, recorder=recorder,
        facts={"policy_id": deployment.policy_id, "chunking": config.chunking},
    )  # fmt: skip
    if config.operator is not None:
        yield from run_with_operator(deployment, options)
        return
    arm = SimulatedArm(deployment.env, deployment.policy, **options)
    for seed in deployment.seeds:
        yield arm.run(seed)


def over_ros2(deployment: Deployment) -> Iterator[Episode]:
    """Run the simulated arm and the policy node as two processes that talk over ROS 2."""
    if isinstance(deployment.policy, RemotePlanner):
        deployment.policy.close()  # the node has a connection of its own
    try:
        from robopolicy.real.ros2.sim_launcher import run_episodes
    except ImportError as error:
        raise ConfigError(
            f"robot=mujoco_ros2 needs ROS 2 ({error}): ./scripts/setup.sh ros, or source a ROS 2 installation"
        ) from error
    yield from run_episodes(deployment)


ROBOTS: dict[str, Callable[[Deployment], Iterator[Episode]]] = {"mujoco": in_process, "mujoco_ros2": over_ros2}


def deploy(**options: Any) -> list[Episode]:
    """Run a checkpoint on an arm behind the safety limits, and report success, interventions and aborts.

    Args:
        options: fields of DeployConfig.

    Raises:
        ConfigError, SpecError, SafetyError: the policy cannot be deployed; says why.
    """
    config = DeployConfig(**options)
    set_threads(config.threads)
    if config.robot not in ROBOTS:
        raise ConfigError(f"robot={config.robot!r}: there is no such robot. {closest(config.robot, ROBOTS)}")
    deployment = prepare(config)
    env, settings = deployment.env, config.settings()
    top = max(env.controller.spec.high[:3]) / env.dt if not env.spec_is_joint else 0.0
    if top > settings["tcp_speed"]:
        print(
            f"the policy's actions go up to {top:.2f} m/s a direction, tcp_speed permits "
            f"{settings['tcp_speed']:.2f}: it will be slower than trained, and may run out of its horizon"
        )
    print(check_chunking(config.chunking, deployment.policy, config.latency))
    profile = load_profile("panda", **settings)
    print(f"limits of {profile.data['title']}, {profile.digest}: {settings}")
    done = list(ROBOTS[config.robot](deployment))
    print(report(done))
    print(*not_claimed(profile), sep="\n")
    return done


deploy.forwards_to = lambda given: (DeployConfig,)  # type: ignore[attr-defined]


def report(done: list[Episode]) -> str:
    """Summarise episodes in a few lines."""
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

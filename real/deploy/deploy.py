"""`robopolicy deploy`: run a checkpoint on an arm, behind the safety limits, in this process or over ROS 2."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from robopolicy.core.errors import ConfigError, closest
from robopolicy.real.control.robots import Trouble
from robopolicy.real.deploy.deploy_config import DeployConfig
from robopolicy.real.deploy.deployment import Deployment, prepare
from robopolicy.real.deploy.simulated_arm import Episode, SimulatedArm
from robopolicy.real.deploy.summary import forecast, limits_in_force, of_episode, report
from robopolicy.real.planning.remote_planner import RemotePlanner
from robopolicy.real.recording.recorder import Recorder
from robopolicy.real.recording.speeds import summary
from robopolicy.real.safety.tracking import not_claimed
from robopolicy.real.teleoperation.teleoperated_sim import run_with_operator
from robopolicy.utils.install_commands import pip_install
from robopolicy.utils.threads import set_threads


def in_process(deployment: Deployment) -> Iterator[Episode]:
    """Run the simulated arm under the control loop in this process: on simulated time, or with an operator in real
    time."""
    config = deployment.config
    recorder = None if config.record is None else Recorder(config.record)
    options: dict[str, Any] = dict(
        settings=config.settings(), latency=config.latency, trouble=Trouble(drop=config.lost), shadow=config.dry_run,
        risk=config.risk, chunking=config.chunking, predict=config.predict, recorder=recorder,
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


def over_mock_bus(deployment: Deployment) -> Iterator[Episode]:
    """Run the simulated arm behind LeRobot's class, on a mock of its servo bus."""
    with feetech():
        from robopolicy.real.lerobot.simulated import run_episodes
    yield from run_episodes(deployment)


@contextmanager
def feetech() -> Iterator[None]:
    """Name the extra that brings the servo bus of LeRobot's arms."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"robot: LeRobot's arms need its servo bus ({error}). Install it: {pip_install('robopolicy[so101]')}"
        ) from error


LIVE = "lerobot"  # a real arm, through LeRobot's class
ROBOTS: dict[str, Callable[[Deployment], Iterator[Episode]]] = {
    "mujoco": in_process, "mujoco_ros2": over_ros2, "mujoco_lerobot": over_mock_bus,
}  # fmt: skip
OPTIONS = {  # that a robot reads; the others ignore them
    "mujoco": (), "mujoco_ros2": ("wiring", "lockstep", "process"), "mujoco_lerobot": ("wiring",),
    LIVE: ("wiring", "process"),
}  # fmt: skip


def check_options(config: DeployConfig) -> None:
    """Raise ConfigError where the robot is unknown, or would ignore an option."""
    if config.robot not in OPTIONS:
        raise ConfigError(f"robot={config.robot!r}: there is no such robot. {closest(config.robot, OPTIONS)}")
    if config.robot == LIVE and (config.lost or config.operator):
        raise ConfigError(
            "robot=lerobot: a real arm loses nothing on purpose, and no operator's keys drive it. Leave "
            "out `lost` and `operator`"
        )
    for name in sorted({name for names in OPTIONS.values() for name in names} - set(OPTIONS[config.robot])):
        if getattr(config, name) != getattr(DeployConfig, name):
            readers = [f"robot={robot}" for robot, names in OPTIONS.items() if name in names]
            raise ConfigError(
                f"{name}={getattr(config, name)}: robot={config.robot} would ignore it. Expected "
                f"{' or '.join(readers)} beside it; or leave it out"
            )


def deploy(**options: Any) -> list[Episode]:
    """Run a checkpoint on an arm behind the safety limits, and report success, interventions and aborts.

    Args:
        options: fields of DeployConfig.

    Raises:
        ConfigError, SpecError, SafetyError: the policy cannot be deployed; says why.
    """
    config = DeployConfig(**options)
    check_options(config)
    set_threads(config.threads)
    if config.robot == LIVE:
        with feetech():
            from robopolicy.real.lerobot.live import run_live
        return run_live(config)
    deployment = prepare(config)
    profile = deployment.profile
    done: list[Episode] = []
    for sentence in forecast(deployment.env, profile):
        print(sentence)
    print(deployment.bridged)
    print(limits_in_force(profile), flush=True)
    for episode in ROBOTS[config.robot](deployment):
        done.append(episode)
        print(of_episode(done, config.episodes, dry_run=config.dry_run), flush=True)
    if config.record is not None:
        print(summary(config.record))
    print(report(done, dry_run=config.dry_run))
    print(*not_claimed(profile), sep="\n")
    return done


deploy.forwards_to = lambda given: (DeployConfig,)  # type: ignore[attr-defined]

"""A deployment, checked before anything moves."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from robopolicy.config.instantiate import build
from robopolicy.core.errors import ConfigError
from robopolicy.core.untrusted import refusing
from robopolicy.evaluation.policy_ref import PolicyRef, task_of
from robopolicy.policies.base import Policy
from robopolicy.real.control.arm_kinematics import check_arm
from robopolicy.real.control.joint_filter import without
from robopolicy.real.deploy.deploy_config import DeployConfig
from robopolicy.real.deploy.simulated_arm import TICK
from robopolicy.real.lerobot.wiring import load_wiring as lerobot_wiring
from robopolicy.real.planning.chunking import check_chunking
from robopolicy.real.planning.remote_planner import RemotePlanner, connect
from robopolicy.real.ros2.wiring import load_wiring
from robopolicy.real.safety import Profile, load_profile
from robopolicy.real.safety.tracking import checked
from robopolicy.runs.checkpointer import load_policy
from robopolicy.runs.run_dir import CONFIG
from robopolicy.sim.env import SimEnv


@dataclass(frozen=True)
class Deployment:
    """A policy, ready to run on a simulated arm.

    Attributes:
        config: with the task that the policy runs on.
        policy_id: name of the policy in recordings.
        seeds: of the episodes.
        profile: limits in force.
        bridged: a sentence about the delays that the policy can bridge.
    """

    config: DeployConfig
    env: SimEnv
    policy: Policy | RemotePlanner
    policy_id: str
    seeds: tuple[int, ...]
    profile: Profile
    bridged: str


def limits_of(config: DeployConfig, arm: str = "panda") -> tuple[Profile, float]:
    """Return the limits in force, and s between commands: those of the profile `arm`, or of a wiring."""
    if config.robot == "mujoco":
        return load_profile(arm, **config.settings()), TICK
    wiring = load_wiring(config.wiring) if config.robot == "mujoco_ros2" else lerobot_wiring(config.wiring).arm
    return wiring.profile(**config.settings(wiring.safety)), wiring.tick_s


def prepare(config: DeployConfig, *, seeds: Sequence[int] | None = None) -> Deployment:
    """Load the policy of a config and its task's env; `seeds`: of the episodes, None: the config's.

    Raises:
        ConfigError, SpecError, SafetyError: the policy cannot be deployed; says why.
    """
    which, given = config.which, config.task
    place = PolicyRef.of(config.checkpoint, which, Path())
    task = without(task_of(given, place))
    config = replace(config, task=task)
    with nullcontext() if given else refusing(f"{place.run}/{CONFIG}: task", ConfigError):
        env = build(task, "task", num_envs=1, seed=0)
    if not isinstance(env, SimEnv):
        raise ConfigError("deploy: the simulated arm needs a task of the native suite")
    profile, tick = limits_of(config, env.task.model.limits)
    check_arm(env.arm, profile)
    policy: Policy | RemotePlanner
    if config.server is None:
        policy, ident = load_policy(config.checkpoint, env=env.spec, which=which), place.ident
    else:
        token, ca = config.server_token, config.server_ca
        policy = connect(config.server, config.checkpoint, env.spec, which=which, token=token, ca=ca)
        ident = policy.ident
    early = load_wiring(config.wiring).plan_ahead_s if config.robot == "mujoco_ros2" else 0.0  # the others ask in time
    bridged = check_chunking(config.chunking, policy, config.latency, early=early)
    if not config.dry_run:
        checked(profile, tick)
    return Deployment(config, env, policy, ident, tuple(config.seeds if seeds is None else seeds), profile, bridged)

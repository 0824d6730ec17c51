"""Everything that one deployment needs, checked before anything moves."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from robopolicy.config.instantiate import build
from robopolicy.core.errors import ConfigError
from robopolicy.core.untrusted import refusing
from robopolicy.evaluation.policy_ref import PolicyRef, task_of
from robopolicy.policies.base import Policy
from robopolicy.real.control.joint_filter import without
from robopolicy.real.deploy.simulated_cell import TICK, Settings
from robopolicy.real.planning.chunking import Chunking, check_chunking
from robopolicy.real.planning.remote_planner import RemotePlanner, connect
from robopolicy.real.safety import load_profile
from robopolicy.real.safety.profile import slowed
from robopolicy.real.safety.tracking import checked, guarded
from robopolicy.real.teleoperation.teleoperator import Drive
from robopolicy.runs.checkpointer import load_policy
from robopolicy.runs.run_dir import CONFIG
from robopolicy.sim.env import SimEnv


@dataclass(frozen=True)
class Deployment:
    """What is to be run on which robot; see `deploy`. `latency`: s; `logs`: folder for what processes print."""

    checkpoint: Path
    which: Literal["latest", "best"]
    task: dict[str, Any]
    env: SimEnv
    policy: Policy | RemotePlanner
    settings: Settings
    seeds: tuple[int, ...]
    latency: float = 0.0
    chunking: Chunking = "async"
    lost: float = 0.0
    dry_run: bool = False
    risk: Path | None = None
    record: Path | None = None
    wiring: str = "mujoco_panda"
    lockstep: bool = False
    logs: Path | None = None
    policy_id: str = ""
    operator: Literal["keyboard", "gamepad"] | None = None
    drive: Drive = field(default_factory=Drive)
    human_first: bool = False
    server: str | None = None
    server_token: Path | None = None
    server_ca: Path | None = None


def prepare(
    checkpoint: Path, *, which: Literal["latest", "best"] = "latest", task: dict[str, Any] | None = None,
    safety: dict[str, Any] | None = None, speed: float = 1.0, server: str | None = None,
    server_token: Path | None = None, server_ca: Path | None = None, **more: Any,
) -> Deployment:  # fmt: skip
    """A checkpoint with its task's env and the limits' settings; `more`: fields of `Deployment`.

    Raises:
        ConfigError, SpecError: it cannot be deployed; says why.
    """
    place = PolicyRef.of(checkpoint, which, Path())
    node = without(task_of(task, place))
    with nullcontext() if task else refusing(f"{place.run}/{CONFIG}: task", ConfigError):
        env = build(node, "task", num_envs=1, seed=0)
    if not isinstance(env, SimEnv):
        raise ConfigError("deploy: the simulated arm needs a task of the native suite")
    policy: Policy | RemotePlanner
    if server is None:
        policy, ident = load_policy(checkpoint, env=env.spec, which=which), place.ident
    else:
        policy = connect(server, checkpoint, env.spec, which=which, token=server_token, ca=server_ca)
        ident = policy.ident
    check_chunking(more.get("chunking", "async"), policy, more.get("latency", 0.0))
    dry_run = bool(more.get("dry_run"))
    settings = guarded(slowed(safety or {}, speed), dry_run=dry_run)
    if not dry_run:
        checked(load_profile("panda", **settings), TICK)
    return Deployment(
        checkpoint, which, node, env, policy, settings, policy_id=ident, server=server, server_token=server_token,
        server_ca=server_ca, **more,
    )  # fmt: skip

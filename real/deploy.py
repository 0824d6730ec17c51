"""`robopolicy deploy`: run a checkpoint on an arm, behind the safety limits, in this process or over ROS 2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from real.hand import Drive
from real.joint_filter import without
from real.joints import ActionDecoder
from real.loop import ControlLoop, Operator
from real.planning import InlineRunner
from real.realtime import Chunking, check_chunking, chunking_of
from real.recording import PolicyJournal, Put, RecordedChain, Recorder, header_of
from real.remote import RemotePlanner, connect
from real.robots import MujocoArm, State, Trouble
from real.safety import Mode, SafetyChain, load_profile
from real.safety.profile import slowed
from real.safety.risk import RiskCritic
from real.safety.tracking import checked, guarded, not_claimed
from robopolicy.build import build
from robopolicy.checkpoint import load_policy
from robopolicy.errors import ConfigError, closest
from robopolicy.evaluate.statistics import wilson
from robopolicy.noise import episode_seeds
from robopolicy.policies.base import Policy
from robopolicy.runs import CONFIG
from robopolicy.schema import Count, Natural, Node, Positive
from robopolicy.types import Obs
from robopolicy.untrusted import refusing
from robopolicy.verbs import Place, task_of
from sim.arm import FINGER_STROKE
from sim.env import SimEnv

Settings = dict[str, float]
TICK = 0.004  # s between commands


class Episode(NamedTuple):
    """What happened in one episode."""

    seed: int
    success: bool
    steps: int  # control steps
    aborted: str  # by the arm; "" where it was not
    mode: str  # at the end
    changed: float  # fraction of ticks in which the command was not the target
    paced: float  # fraction of control steps that were slower than the policy asked for
    reasons: Counter[str]
    helped: float = 0.0  # fraction of control steps in which a human drove, or had the arm go back


class SimulatedCell:
    """A task's simulated arm at 1 kHz under a control loop, on simulated time.

    Args:
        put: takes what a recording would (real.recording.Recorder.put) where there is no `recorder`.
        operator: a human who may drive.
    """

    def __init__(
        self, env: SimEnv, policy: Policy | RemotePlanner, *, settings: Settings, latency: float = 0.0,
        trouble: Trouble | None = None, shadow: bool = False, dt: float = TICK, risk: Path | None = None,
        recorder: Recorder | None = None, facts: dict[str, Any] | None = None, put: Put | None = None,
        operator: Operator | None = None, chunking: Chunking = "async",
    ) -> None:  # fmt: skip
        self.env, self.dt, self.time = env, dt, 0.0
        put = put if recorder is None else recorder.put
        self.recorder, self.facts = recorder, facts or {}
        profile = load_profile("panda", **settings)
        self.arm = MujocoArm(env.task, profile, dt=dt, trouble=trouble)
        critic = None if risk is None else RiskCritic.load(risk, profile, dt)
        self.chain = (
            SafetyChain(profile, dt=dt, risk=critic)
            if put is None
            else RecordedChain(profile, dt=dt, risk=critic, put=put)
        )
        chunks = chunking_of(chunking, policy, latency)
        self.loop = ControlLoop(
            self.arm, self.chain, ActionDecoder(env.controller, stroke=FINGER_STROKE, dt=env.dt),
            InlineRunner(chunks.planner, latency=latency), self._observe, chunks.buffer,
            clock=lambda: self.time, history=chunks.planner.history, lead=chunks.lead, shadow=shadow,
            journal=None if put is None else PolicyJournal(put), operator=operator, delays=chunks.delays,
        )  # fmt: skip
        self.held = 0

    def _observe(self, state: State) -> Obs:
        """What the policy is shown: the task's own features, of this arm's physics."""
        del state  # the task's features need the objects too
        obs, success = self.env.sense(self.arm.data.qpos[None], self.arm.data.qvel[None])
        self.held = self.held + 1 if success[0] else 0
        return obs

    def run(self, seed: int) -> Episode:
        """One episode, to success, to its horizon or to a fault; recorded where there is a recorder."""
        if self.recorder is None:
            return self._run(seed)
        self.recorder.begin(self.header(seed))
        outcome: dict[str, Any] = {"success": None}
        try:
            episode = self._run(seed)
            outcome = {"success": episode.success, "aborted": episode.aborted, "mode": episode.mode}
        finally:
            self.recorder.end(**outcome)
        return episode

    def header(self, seed: int) -> dict[str, Any]:
        """What a recording of the episode `seed` begins with."""
        return header_of(
            self.chain, self.env.spec, self.loop.buffer.spec, seed=seed, shadow=self.loop.shadow, **self.facts
        )

    def goes_on(self) -> bool:
        """Whether the episode needs another tick."""
        most = self.env.task.horizon * self.env.dt  # s; waiting counts
        return self.time - self.loop.origin < most + 0.5 * self.dt and self.held < self.env.task.hold

    def ticked(self) -> None:
        """A tick is over."""

    def begin(self, seed: int) -> None:
        """Put the arm into the scene of `seed`, and start the loop there."""
        self.env.reset(torch.tensor([seed], dtype=torch.int64))
        self.arm.place(self.env.physics.qpos[0], self.env.task_state())
        self.held = 0
        self.loop.counts.clear()
        self.loop.start(seed=seed)

    def _run(self, seed: int) -> Episode:
        env, changed, ticks, reasons = self.env, 0, 0, Counter[str]()
        self.begin(seed)
        while self.goes_on():
            decision = self.loop.tick()
            self.arm.advance()
            self.time += self.dt
            self.ticked()
            ticks, changed = ticks + 1, changed + decision.changed
            reasons.update(decision.reasons)
            if decision.mode is Mode.FAULT or self.arm.aborted:
                break
        return Episode(
            seed, self.held >= env.task.hold, self.loop.step, self.arm.aborted, self.chain.mode.name,
            changed / max(1, ticks), self.loop.counts["paced"] / max(1, self.loop.step), reasons,
            (self.loop.counts["human"] + self.loop.counts["rewind"]) / max(1, self.loop.step),
        )  # fmt: skip


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


def in_process(d: Deployment) -> Iterator[Episode]:
    """The simulated arm under the control loop, in this process: on simulated time, or with an operator in
    real time."""
    options: dict[str, Any] = dict(
        settings=d.settings, latency=d.latency, trouble=Trouble(drop=d.lost), shadow=d.dry_run, risk=d.risk,
        chunking=d.chunking, facts={"policy_id": d.policy_id, "chunking": d.chunking},
    )  # fmt: skip
    if d.operator is not None:
        from real.operated import operated  # which is made of this module's parts

        yield from operated(d, options)
        return
    cell = SimulatedCell(d.env, d.policy, recorder=None if d.record is None else Recorder(d.record), **options)
    for seed in d.seeds:
        yield cell.run(seed)


def over_ros2(d: Deployment) -> Iterator[Episode]:
    """The simulated arm and the policy node as two processes that talk over ROS 2."""
    if isinstance(d.policy, RemotePlanner):
        d.policy.close()  # the node has a line of its own
    try:
        from real.ros2.cell import run_episodes
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

    `safety` holds settings of real.safety.Settings; `speed` scales its speeds, 0.1 is where to begin on a real arm.
    `chunking`: how a chunk follows the one before, see real.realtime.chunking_of.
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


def prepare(
    checkpoint: Path, *, which: Literal["latest", "best"] = "latest", task: dict[str, Any] | None = None,
    safety: dict[str, Any] | None = None, speed: float = 1.0, server: str | None = None,
    server_token: Path | None = None, server_ca: Path | None = None, **more: Any,
) -> Deployment:  # fmt: skip
    """A checkpoint with its task's env and the limits' settings; `more`: fields of `Deployment`.

    Raises:
        ConfigError, SpecError: it cannot be deployed; says why.
    """
    place = Place.of(checkpoint, which, Path())
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

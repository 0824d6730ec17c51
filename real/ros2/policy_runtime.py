"""The policy of a checkpoint, ready for a robot: its task's env, limits, planner and control loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from robopolicy.core.errors import SpecError
from robopolicy.core.specs import PolicySpec, check_fits
from robopolicy.core.types import BASE_ACTION, RENDERED
from robopolicy.policies.base import Policy, with_bases
from robopolicy.policies.find import read_spec
from robopolicy.real.control.arm_kinematics import check_arm
from robopolicy.real.control.chunk_buffer import Ahead
from robopolicy.real.control.control_loop import ControlLoop
from robopolicy.real.control.joint_filter import without
from robopolicy.real.control.joints import ActionDecoder
from robopolicy.real.control.robots import Robot, State
from robopolicy.real.control.state_forecast import StateForecaster
from robopolicy.real.deploy.deploy_config import DeployConfig
from robopolicy.real.planning.chunking import chunking_of
from robopolicy.real.planning.planner import PlanningError, ThreadRunner
from robopolicy.real.planning.process_planner import ProcessPlanner
from robopolicy.real.planning.remote_planner import RemotePlanner
from robopolicy.real.recording.recorder import PolicyJournal, RecordedChain, Recorder
from robopolicy.real.recording.records import header_of
from robopolicy.real.ros2.clock import oldest
from robopolicy.real.ros2.joint_state_adapter import JointStateObserver, NamedJoints, joint_state_spec
from robopolicy.real.ros2.observation import Observer, check_features, check_robot, depth_cameras, one_env
from robopolicy.real.ros2.remote_arm import PLAYED
from robopolicy.real.ros2.teleop_keys import RemoteKeys
from robopolicy.real.ros2.wiring import GRIPPER, Wiring
from robopolicy.real.safety import Profile, SafetyChain, SafetyError
from robopolicy.real.safety.risk import RiskCritic
from robopolicy.real.safety.tracking import checked
from robopolicy.real.teleoperation.teleoperator import Teleoperator
from robopolicy.runs.checkpointer import load_policy
from robopolicy.sim.arm import FINGER_STROKE
from robopolicy.sim.control import Controller


class PolicyRuntime:
    """A policy, ready to drive an arm.

    Raises:
        SpecError: the policy does not fit the task or the robot, or cannot bridge the latency.
        PlanningError: its server, or its process, cannot be reached or refuses.
    """

    names: tuple[str, ...] = ()  # features that must come beside the arm's state

    def __init__(
        self, config: DeployConfig, wiring: Wiring, recorder: Recorder | None = None, policy_id: str = ""
    ) -> None:
        self.config, self.wiring, self.dry_run, self.policy_id = config, wiring, config.dry_run, policy_id
        self.policy, self.recorder = _policy(config), recorder
        try:
            self._set_up()
        except BaseException:  # a server has few lines
            if isinstance(self.policy, RemotePlanner):
                self.policy.close()
            raise

    def _set_up(self) -> None:
        config, wiring = self.config, self.wiring
        levels = _specs(self.policy)
        for spec in levels:
            check_robot(spec, wiring)
        images = {k: f for spec in levels for k, f in spec.observation.items() if k in wiring.cameras}
        self.cameras = {k: f.shape for k, f in images.items()}
        seen = {key for spec in levels for key in spec.observation}
        self.age = oldest(wiring, seen)
        if self.age and config.chunking != "async":
            raise SpecError(
                f"chunking={config.chunking}: goes on from what the arm does now, and pictures that are {self.age} s "
                "old (cameras.latency_s of the wiring) show what it did before. Use chunking=async"
            )
        self.chunks = chunking_of(
            config.chunking, self.policy, config.latency + self.age, predict=config.predict, early=wiring.plan_ahead_s
        )
        self.observer: Observer | JointStateObserver
        if config.task is None:
            self.depths = depth_cameras(levels, wiring, None)
            self.observer = JointStateObserver(levels[-1], wiring, (*images, *self.depths))
            self.controller = cast(Controller, NamedJoints(self.policy.spec.action, wiring, dt=self.policy.spec.dt))
            self.spec = joint_state_spec(levels[-1], wiring)
        else:  # pictures come from the robot's cameras: no renderer is needed here
            env = one_env({**without(config.task), "pictures": False})
            for spec in levels:
                check_fits(spec, env.spec, ignore=(BASE_ACTION,))
            check_arm(env.controller.arm, wiring.profile())
            self.depths = depth_cameras(levels, wiring, env.views.cloud)
            self.observer = Observer(env, (*images, *self.depths))
            self.controller, self.spec = env.controller, env.spec
        self.names, self.take = self.observer.names, self.observer.take
        self.take_image, self.take_cloud = self.observer.take_image, self.observer.take_cloud
        check_features(self.names, wiring)
        self.press: Callable[[str], None] | None = None  # takes a human's keys
        self.teleoperator: Teleoperator | None = None
        if config.operator is not None:
            keys = RemoteKeys()
            self.press = keys.press
            self.teleoperator = Teleoperator(
                keys, self.policy.spec.action, self.policy.spec.dt, config.drive, policy=True,
                first="human" if config.human_first else "policy", stick=keys.stick,
            )  # fmt: skip
        self.planner = self.chunks.planner
        self.process: ProcessPlanner | None = None
        if config.process and not config.lockstep and config.server is None:
            how = {"which": config.which, "chunking": config.chunking, "latency": config.latency}
            self.planner = self.process = ProcessPlanner(config.checkpoint, how | {"early": wiring.plan_ahead_s})
        self.runner = ThreadRunner(self.planner, latency=config.latency, wait=60.0 if config.lockstep else 0.0)

    def chain(self, profile: Profile | None = None) -> SafetyChain:
        """Build the limits of the config, or of a `profile` that is tighter."""
        dt = self.wiring.tick_s
        profile = profile or self.wiring.profile(**self.config.settings(self.wiring.safety))
        if not self.dry_run:
            checked(profile, dt)
        if profile.settings.energy is not None:
            raise SafetyError(
                "energy: the tank needs external torques, and no topic of a wiring brings them (effort of "
                "sensor_msgs/JointState is not external). Expected null"
            )
        risk = None if self.config.risk is None else RiskCritic.load(self.config.risk, profile, dt)
        dogs = self.wiring.watchdogs
        inputs = {"features": dogs["features"]} if self.names else {}
        inputs |= {GRIPPER: dogs[GRIPPER]} if GRIPPER in dogs else {}
        if self.wiring.topics["joint_commands"] is not None:
            inputs[PLAYED] = dogs["state"]  # the same driver sends both
        how: Any = dict(
            dt=dt, state=dogs["state"], enable=dogs.get("enable"), risk=risk,
            inputs={**inputs, **dict.fromkeys((*self.cameras, *self.depths), dogs["images"])},
            clock=None if self.config.lockstep else time.monotonic,  # simulated time has no late ticks
        )  # fmt: skip
        if self.recorder is None:
            return SafetyChain(profile, **how)
        return RecordedChain(profile, put=self.recorder.put, **how)

    def loop(self, robot: Robot, chain: SafetyChain, clock: Callable[[], float]) -> ControlLoop:
        """Build the control loop on a clock [s]."""
        chunks, decoder = self.chunks, ActionDecoder(self.controller, stroke=FINGER_STROKE, dt=self.spec.dt)
        lead = self.wiring.lead_ticks * self.wiring.tick_s  # s by which states are behind
        forecaster = StateForecaster(decoder, chunks.buffer, behind=lead, tick=self.wiring.tick_s)
        return ControlLoop(
            robot, chain, decoder, self.runner, self.observer, chunks.buffer,
            clock=clock, history=self.planner.history, lead=chunks.lead,
            shadow=self.config.dry_run, early=self.wiring.plan_ahead_s, grace=self.wiring.grace_s,
            delays=chunks.delays, operator=self.teleoperator, age=self.age,
            forecaster=forecaster if chunks.predict and not self.dry_run else None,
            journal=None if self.recorder is None else PolicyJournal(self.recorder.put),
        )  # fmt: skip

    def begin(self, chain: SafetyChain, seed: int) -> None:
        """Prepare an episode, and end the recording of the one before."""
        self.end(None)
        for camera in self.depths.values():
            camera.begin(seed)
        if self.process is not None and self.process.ended:
            raise PlanningError("planner: its process has ended. Clean up and configure the node, or restart deploy")
        if self.recorder is not None:
            policy_id = self.policy.ident if isinstance(self.policy, RemotePlanner) else self.policy_id
            self.recorder.begin(header_of(
                chain, self.spec, self.chunks.buffer.spec, seed=seed, shadow=self.dry_run,
                policy_id=policy_id, chunking=self.config.chunking,
            ))  # fmt: skip

    def ended_by_keys(self) -> list[str]:
        """List why the operator's keys let no more episodes begin, one sentence each."""
        keys = self.teleoperator
        why = "" if keys is None or not keys.over else "their source is gone" if keys.lost else "x ended all episodes"
        return [f"keys: {why}. Clean up and configure the node again"] if why else []

    def end(self, success: bool | None, **outcome: object) -> None:
        """End the recording of an episode; `success` None: unknown."""
        if self.recorder is not None:
            self.recorder.end(success=success, **outcome)

    def warm_up(self, state: State) -> None:
        """Plan once, so that the first plan that counts is not slow."""
        if self.names:
            self.observer.take(self.names, [0.0] * len(self.names))
        for key, shape in self.cameras.items():
            self.observer.take_image(key, np.zeros(shape, np.uint8))
        for key, camera in self.depths.items():
            self.observer.take_cloud(key, np.zeros((camera.cloud.count, 3), np.float32))
        frame = self.observer(state)
        self.planner.reset(0)
        obs = {k: v[:, None].expand(-1, self.planner.history, *v.shape[1:]) for k, v in frame.items()}
        chunk = self.planner.plan(obs, 0)
        if self.chunks.delays is not None:
            self.planner.plan(obs, 0, Ahead(chunk[-1:], 0))
        self.observer.forget()

    def close(self) -> None:
        self.end(None)
        self.runner.close()
        for planner in (self.process, self.policy):
            if isinstance(planner, (ProcessPlanner, RemotePlanner)):
                planner.close()


def _policy(config: DeployConfig) -> Policy | RemotePlanner:
    if config.server is None:
        return load_policy(config.checkpoint, which=config.which)
    spec = read_spec(config.checkpoint, which=config.which)
    return RemotePlanner(config.server, spec, token=config.server_token, ca=config.server_ca)


def _specs(policy: Policy | RemotePlanner) -> list[PolicySpec]:
    """Of a policy and of those that it corrects, which see and act too; the undermost comes last."""
    if isinstance(policy, Policy):
        return [level.spec for level in with_bases(policy)]
    if unknown := [k for k in policy.keys if k.startswith(RENDERED) and k not in policy.spec.observation]:
        raise SpecError(f"server: its policy corrects one that sees {unknown}, of which nothing is known here")
    return [policy.spec]


def make_runtimes(config: DeployConfig, wiring: Wiring, policy_id: str = "") -> Callable[[], PolicyRuntime]:
    """Return a function that makes a policy runtime at every call; all of them record into the one folder."""
    recorder: Recorder | None = None

    def make() -> PolicyRuntime:
        nonlocal recorder
        if recorder is None and config.record is not None:
            recorder = Recorder(config.record)
        return PolicyRuntime(config, wiring, recorder, policy_id)

    return make

"""`robopolicy deploy robot=lerobot`: drive a real arm through LeRobot's class, in real time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from robopolicy.core.errors import RobopolicyError
from robopolicy.core.rng import unused_seed
from robopolicy.evaluation.policy_ref import PolicyRef
from robopolicy.real.control.control_loop import ControlLoop
from robopolicy.real.control.depth_cameras import CloudMaker, JointLog
from robopolicy.real.control.pictures import fitted
from robopolicy.real.control.robots import State
from robopolicy.real.deploy.deploy_config import DeployConfig
from robopolicy.real.deploy.simulated_arm import Episode
from robopolicy.real.deploy.summary import limits_in_force, of_episode
from robopolicy.real.lerobot.arm import LeRobotArm
from robopolicy.real.lerobot.bus import ArmBus, wait_until_fresh, wait_until_still
from robopolicy.real.lerobot.connection import connect, make_robot
from robopolicy.real.lerobot.depth import DepthFrames
from robopolicy.real.lerobot.wiring import LeRobotWiring, load_wiring
from robopolicy.real.recording.recorder import Recorder
from robopolicy.real.ros2.clock import oldest_picture
from robopolicy.real.ros2.node_options import policy_id_of
from robopolicy.real.ros2.policy_runtime import PolicyRuntime
from robopolicy.real.safety import Mode, SafetyChain, SafetyError
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.tracking import not_claimed
from robopolicy.real.teleoperation.teleoperated_sim import first_interrupt
from robopolicy.runs.run_dir import own_task, read_config


class Pictures:
    """Hand the pictures and depth in LeRobot's observations to a policy, and tell the watchdogs of those that changed.

    Args:
        runtime, wiring: of the deployment. log: of the arm.
    """

    def __init__(self, runtime: PolicyRuntime, wiring: LeRobotWiring, log: JointLog) -> None:
        self.runtime, self.wiring, self.error = runtime, wiring, ""
        self.newest: dict[str, Array] = {}
        self.came: set[str] = set()  # of this episode: a camera that froze shows the picture of the one before
        self.chain: SafetyChain | None = None
        self.frames: dict[str, DepthFrames] = {}  # once the cameras are connected
        self.clouds = CloudMaker(runtime.depths, log, threaded=True)

    def connected(self, cameras: Mapping[str, Any]) -> None:
        """Take LeRobot's cameras by name; raises WiringError where one gives no depth that can be used."""
        for key in self.runtime.depths:
            topic = self.wiring.arm.depth_cameras[key]
            self.frames[key] = DepthFrames(key, topic, self.wiring.arm.calibration(key), cameras[topic.name])

    def __call__(self, values: dict[str, Any]) -> None:
        for key, shape in self.runtime.cameras.items():
            pixels = np.asarray(values[self.wiring.arm.cameras[key].name])
            if key in self.newest and np.array_equal(self.newest[key], pixels):
                continue  # LeRobot gives the newest picture, though it may be an old one
            try:
                self.runtime.take_image(key, fitted(pixels, shape, key))
            except SafetyError as error:
                self.error = str(error)
                continue
            self.newest[key] = pixels.copy()
            self._came(key, time.monotonic())
        for key, frames in self.frames.items():
            if (picture := frames.read(values[f"{frames.topic.name}_depth"])) is not None:
                self.clouds.put(key, picture)
        for key, came, cloud, problem in self.clouds.finished():
            if cloud is None:
                self.error = str(problem)
                continue
            self.runtime.take_cloud(key, cloud)
            self._came(key, came)

    def _came(self, key: str, at: float) -> None:
        self.came.add(key)
        if self.chain is not None:
            self.chain.feed(key, at)


class Session:
    """A policy on an arm that is connected.

    Args:
        config, runtime, wiring: of the deployment. robot: LeRobot's, not connected yet.
    """

    def __init__(self, config: DeployConfig, runtime: PolicyRuntime, wiring: LeRobotWiring, robot: Any) -> None:
        self.config, self.runtime, self.wiring, self.robot = config, runtime, wiring, robot
        profile = wiring.arm.profile(**config.settings(wiring.arm.safety))
        units, self.profile = connect(robot, wiring, profile)
        log = JointLog(1.0 + oldest_picture(wiring.arm))
        self.pictures = Pictures(runtime, wiring, log)
        self.pictures.connected(getattr(robot, "cameras", {}))
        self.chain = runtime.chain(self.profile)
        self.pictures.chain = self.chain
        self.arm = LeRobotArm(
            robot, units, self.profile, dt=wiring.arm.tick_s, clock=time.monotonic, pictures=self.pictures, log=log
        )
        self.loop: ControlLoop = runtime.loop(self.arm, self.chain, time.monotonic)
        self.stop = ""  # why the operator ends the episode

    def ready(self) -> State:
        """Wait for the first state, and for the pictures that the policy sees; see `wait_until_still`."""
        seen = {*self.runtime.cameras, *self.runtime.depths}
        lacking = lambda: sorted(seen - self.pictures.came)  # noqa: E731
        return wait_until_still(self.arm, lacking, lambda: self.pictures.error)

    def begin(self, seed: int) -> None:
        """Activate the limits where the arm stands, for an episode.

        Raises:
            SafetyError: a state or a picture does not come, the arm moves, or stands where it may not.
            PlanningError: the planner's process has ended.
        """
        self.seed = seed
        self.arm.forget()
        self.pictures.came.clear()
        self.ready()
        wait_until_fresh(self.arm)
        self.runtime.begin(self.chain, seed)
        self.loop.counts.clear()
        for key in (*self.runtime.cameras, *self.runtime.depths):
            self.chain.feed(key, time.monotonic())
        self.loop.start(seed=seed)

    def run(self) -> Episode:
        """Run an episode until the operator stops it, its time is over, or a fault; the arm stands then."""
        loop, changed, ticks, reasons = self.loop, 0, 0, Counter[str]()
        due, end = time.monotonic(), time.monotonic() + self.config.drive.episode_s
        while True:
            if not self.stop and time.monotonic() > end:
                self.stop = "time"
            if self.stop:
                loop.halted = self.stop
            decision = loop.tick()
            ticks, changed = ticks + 1, changed + decision.changed
            reasons.update(decision.reasons)
            if (self.stop or decision.mode is Mode.FAULT) and bool(self.chain.limiter.at_rest[0]):
                break
            due = max(due + self.arm.dt, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
        paced = loop.counts["paced"] / max(1, loop.step)
        return Episode(
            self.seed, False, loop.step, "", self.chain.mode.name, changed / ticks, paced, reasons, 0.0, ticks
        )


def with_own_task(config: DeployConfig) -> DeployConfig:
    """Return the config with the task that its policy was trained on, if one of the native suite; None: data alone."""
    run_dir = PolicyRef.of(config.checkpoint, config.which, Path()).run
    if config.task is not None or run_dir is None:
        return config
    return replace(config, task=own_task(read_config(run_dir) or {}))


def run_live(
    config: DeployConfig, *, make: Callable[[dict[str, Any]], Any] = make_robot, ask: Callable[[str], str] = input
) -> list[Episode]:
    """Run a checkpoint on LeRobot's arm. Each episode begins and ends at the operator's word.

    Args:
        make: builds LeRobot's arm from `robot` of the wiring.
        ask: shows a prompt, and returns the operator's answer.

    Raises:
        SafetyError, SpecError: arm, wiring and policy do not fit; says why.
    """
    wiring = load_wiring(config.wiring)
    config = with_own_task(config)
    recorder = None if config.record is None else Recorder(config.record)
    runtime = PolicyRuntime(config, wiring.arm, recorder, policy_id_of(config))
    done: list[Episode] = []
    try:
        robot = make(wiring.robot)
        with ArmBus(robot) as bus:
            session = Session(config, runtime, wiring, robot)
            with closing(session.pictures.clouds), bus.exchanging(session.arm):
                runtime.warm_up(session.ready())
                claims = not_claimed(session.profile) + session.arm.units.not_measured
                print(limits_in_force(session.profile), *claims, sep="\n", flush=True)
                for number in range(1, config.episodes + 1):
                    prompt = f"Enter begins episode {number} of {config.episodes}, q ends: "
                    if (episode := _episode(session, unused_seed(), prompt, ask)) is None:
                        break
                    done.append(episode)
                    print(of_episode(done, config.episodes, dry_run=config.dry_run), flush=True)
    finally:
        runtime.close()
    return done


def _episode(session: Session, seed: int, prompt: str, ask: Callable[[str], str]) -> Episode | None:
    """Run an episode at the operator's word; None where the word is to end.

    Where it cannot begin, the reason is shown and the arm holds: without torque it would fall.
    """

    def stop() -> None:
        session.stop = "operator"

    while ask(prompt).strip().lower() != "q":
        session.stop = ""
        with first_interrupt(stop):
            try:
                session.begin(seed)
            except RobopolicyError as error:
                print(f"the arm holds; {error}", flush=True)
                continue
            print("the arm moves; Ctrl-C stops it", flush=True)
            episode = session.run()
        success = ask("success? y or n: ").strip().lower() == "y"
        session.runtime.end(success, mode=episode.mode)
        return episode._replace(success=success)
    return None

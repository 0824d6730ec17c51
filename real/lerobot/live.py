"""`robopolicy deploy robot=lerobot`: drive a real arm through LeRobot's class, in real time."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from robopolicy.evaluation.policy_ref import PolicyRef
from robopolicy.real.control.control_loop import ControlLoop
from robopolicy.real.control.pictures import fitted
from robopolicy.real.control.robots import State
from robopolicy.real.deploy.deploy_config import DeployConfig
from robopolicy.real.deploy.simulated_arm import Episode
from robopolicy.real.deploy.summary import limits_in_force, of_episode
from robopolicy.real.lerobot.arm import LeRobotArm
from robopolicy.real.lerobot.connection import connect, make_robot
from robopolicy.real.lerobot.simulated import bus_summary
from robopolicy.real.lerobot.wiring import LeRobotWiring, load_wiring
from robopolicy.real.recording.recorder import Recorder
from robopolicy.real.ros2.policy_runtime import PolicyRuntime, policy_id_of
from robopolicy.real.safety import Mode, SafetyChain, SafetyError
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.tracking import not_claimed
from robopolicy.real.teleoperation.teleoperated_sim import first_interrupt
from robopolicy.runs.run_dir import own_task, read_config

FIRST = 5.0  # s in which the first state and pictures must come
MEASURED = 8  # states until the arm's speed is known: the first one has none to differ from
STILL = 0.1  # rad/s: a joint that is faster is not at rest; an encoder's step within WINDOW is 0.04


class Pictures:
    """Hand the pictures in LeRobot's observations to a policy, and tell the watchdogs of those that changed."""

    def __init__(self, runtime: PolicyRuntime, wiring: LeRobotWiring) -> None:
        self.runtime, self.wiring, self.error = runtime, wiring, ""
        self.newest: dict[str, Array] = {}
        self.chain: SafetyChain | None = None

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
            if self.chain is not None:
                self.chain.feed(key, time.monotonic())


class Session:
    """A policy on an arm that is connected.

    Args:
        config, runtime, wiring: of the deployment. robot: LeRobot's, not connected yet.
    """

    def __init__(self, config: DeployConfig, runtime: PolicyRuntime, wiring: LeRobotWiring, robot: Any) -> None:
        self.config, self.runtime, self.wiring, self.robot = config, runtime, wiring, robot
        profile = wiring.arm.profile(**config.settings(wiring.arm.safety))
        units, self.profile = connect(robot, wiring, profile)
        self.pictures = Pictures(runtime, wiring)
        self.chain = runtime.chain(self.profile)
        self.pictures.chain = self.chain
        self.arm = LeRobotArm(
            robot, units, self.profile, dt=wiring.arm.tick_s, clock=time.monotonic, pictures=self.pictures
        )
        self.loop: ControlLoop = runtime.loop(self.arm, self.chain, time.monotonic)
        self.stop = ""  # why the operator ends the episode

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """Exchange with the bus in a thread meanwhile, and until the stop of the newest command is over."""
        over = threading.Event()

        def work() -> None:
            due = time.monotonic()
            while not over.is_set():
                self.arm.exchange()
                due = max(due + self.arm.dt, time.monotonic())
                over.wait(due - time.monotonic())

        thread = threading.Thread(target=work, name="bus", daemon=True)
        thread.start()
        try:
            yield
        finally:
            try:
                time.sleep(self.arm.stops_in)  # after an error or a second Ctrl-C the arm still moves
            finally:
                over.set()
                thread.join(FIRST)
                print(bus_summary(self.arm.counts), self.arm.error)

    def ready(self) -> State:
        """Wait for the first state, and for the pictures that the policy sees.

        Raises:
            SafetyError: they do not come, or the arm moves.
        """
        until, speeds = time.monotonic() + FIRST, 0
        state: State | None = None
        while speeds < MEASURED or len(self.pictures.newest) < len(self.runtime.cameras):
            if time.monotonic() > until:
                missing = sorted(set(self.runtime.cameras) - set(self.pictures.newest)) or "joints"
                raise SafetyError(f"robot: nothing has come of {missing}. {self.pictures.error or self.arm.error}")
            time.sleep(self.arm.dt)
            if (newest := self.arm.read()) is not None:
                state, speeds = newest, speeds + 1
        assert state is not None
        if (fastest := float(np.abs(state.qd).max())) > STILL:
            raise SafetyError(f"state: the arm moves at {fastest:.2f} rad/s. Hold it still, or support it")
        return state

    def run(self, seed: int) -> Episode:
        """Run an episode until the operator stops it, its time is over, or a fault; the arm stands then."""
        self.stop, loop, changed, ticks, reasons = "", self.loop, 0, 0, Counter[str]()
        self.arm.forget()
        self.ready()
        until = time.monotonic() + FIRST
        while not self.arm.fresh:  # the state that the loop starts from
            if time.monotonic() > until:
                raise SafetyError(f"robot: no state comes any more. {self.arm.error}")
            time.sleep(0.1 * self.arm.dt)
        self.runtime.begin(self.chain, seed)
        loop.counts.clear()
        for key in self.runtime.cameras:
            self.chain.feed(key, time.monotonic())
        loop.start(seed=seed)
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
        return Episode(
            seed, False, loop.step, "", self.chain.mode.name, changed / ticks, loop.counts["paced"] / max(1, loop.step),
            reasons, 0.0, ticks,
        )  # fmt: skip


def with_own_task(config: DeployConfig) -> DeployConfig:
    """Return the config with the task that its policy was trained on, if one of the native suite; None: data alone."""
    run_dir = PolicyRef.of(config.checkpoint, config.which, Path()).run
    if config.task is not None or run_dir is None:
        return config
    return replace(config, task=own_task(read_config(run_dir) or {}))


@contextmanager
def released(robot: Any) -> Iterator[None]:
    """Disconnect LeRobot's arm at the end. A bus that is dead by then hides no other error."""
    try:
        yield
    finally:
        if robot.bus.is_connected:
            try:
                robot.disconnect()
            except Exception as error:
                said = " ".join(str(error).split())
                print(f"robot: could not be disconnected ({type(error).__name__}: {said}). Its motors may still hold: "
                      "support the arm, and switch its supply off", flush=True)  # fmt: skip
                robot.bus.disconnect(disable_torque=False)  # closes the port


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
        with released(robot):
            session = Session(config, runtime, wiring, robot)
            with session.exchanging():
                runtime.warm_up(session.ready())
                print(limits_in_force(session.profile), *not_claimed(session.profile), sep="\n", flush=True)
                for number, seed in enumerate(config.seeds, 1):
                    if ask(f"Enter begins episode {number} of {config.episodes}, q ends: ").strip().lower() == "q":
                        break
                    done.append(_episode(session, seed, ask))
                    print(of_episode(done[-1], number, config.episodes), flush=True)
    finally:
        runtime.close()
    return done


def _episode(session: Session, seed: int, ask: Callable[[str], str]) -> Episode:
    def stop() -> None:
        session.stop = "operator"

    print("the arm moves; Ctrl-C stops it", flush=True)
    with first_interrupt(stop):
        episode = session.run(seed)
    success = ask("success? y or n: ").strip().lower() == "y"
    session.runtime.end(success, mode=episode.mode)
    return episode._replace(success=success)

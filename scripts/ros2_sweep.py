"""A policy node without a policy: it drives all joints to and fro as fast as the limits permit. For measurements.

    python scripts/ros2_sweep.py [WIRING]   # forks a node for every line on standard input, and prints its process id

A line is the new node's name. Everything is loaded before the fork, so that a killed node is replaced in a moment.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # a process that forks should have one thread
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from robopolicy.real.control.depth_cameras import DepthCamera
from robopolicy.real.control.robots import Robot, State
from robopolicy.real.ros2.wiring import Wiring, load_wiring
from robopolicy.real.safety import Decision, Profile, SafetyChain
from robopolicy.real.safety.decision import Measured

WIRING = "mujoco_panda"
PERIOD = 1.6  # s to and fro
REACH = np.array([0.6, 0.25, 0.35, 0.3, 0.4, 0.35, 0.7])  # rad, to either side of home
SETTINGS = {"tcp_speed": 0.8, "reference_clip": 0.3, "tracking_error": 0.3}


def limits() -> Profile:
    """What the node runs under, and what is checked."""
    return load_wiring(WIRING).profile(**SETTINGS)


class Sweep:
    """The loop (`robopolicy.real.ros2.trajectory_stream.Loop`)."""

    driver, halted = "policy", ""

    def __init__(self, robot: Robot, chain: SafetyChain, clock: Callable[[], float]) -> None:
        self.robot, self.chain, self.clock = robot, chain, clock
        self.begin, self.step, self.counts = 0.0, 0, Counter[str]()

    def start(self, *, seed: int = 0) -> None:
        state = self.robot.read()
        assert state is not None
        self.chain.deactivate()
        self.chain.activate(Measured(state.q), self.clock())
        self.begin, self.home = self.clock() + seed * 0.037 % PERIOD, np.array(self.chain.profile.data["home"])

    def delay_begin(self, seconds: float) -> None:
        self.begin += seconds

    def tick(self) -> Decision:
        state, now = self.robot.read(), self.clock()
        side = 1.0 if (now - self.begin) % PERIOD < PERIOD / 2 else -1.0
        measured = None if state is None else Measured(state.q)
        decision = self.chain.filter(self.home + side * REACH, measured, now)
        self.robot.write(decision.command, 0.04, decision.stop)
        return decision


class SweepRuntime:
    """Sweep in place of a checkpoint (`robopolicy.real.ros2.pipeline.Runtime`)."""

    names: tuple[str, ...] = ()
    press: Callable[[str], None] | None = None  # no human may take over
    dry_run = False

    def __init__(self, wiring: Wiring) -> None:
        self.wiring, self.cameras = wiring, dict[str, tuple[int, ...]]()
        self.depths = dict[str, DepthCamera]()

    def loop(self, robot: Robot, chain: SafetyChain, clock: Callable[[], float]) -> Sweep:
        return Sweep(robot, chain, clock)

    def take(self, names: object, values: object, moment: object = None) -> None:
        """Features are not looked at."""

    def take_image(self, key: str, picture: object) -> None:
        """Nor are pictures."""

    def take_cloud(self, key: str, cloud: object) -> None:
        """Nor are clouds."""

    def chain(self) -> SafetyChain:
        dogs = self.wiring.watchdogs
        return SafetyChain(
            limits(), dt=self.wiring.tick_s, state=dogs["state"], enable=dogs["enable"], clock=time.monotonic
        )

    def warm_up(self, state: State) -> None:
        """Nothing to load."""

    def begin(self, chain: SafetyChain, seed: int) -> None:
        """Nothing is recorded."""

    def end(self, success: bool | None, **outcome: object) -> None:
        """Nothing was recorded."""

    def ended_by_keys(self) -> list[str]:
        return []

    def close(self) -> None:
        """Nothing to end."""


def child(name: str, wiring: Wiring) -> None:
    """A node called `name`, until it is ended."""
    import rclpy
    from rclpy.signals import SignalHandlerOptions

    from robopolicy.real.ros2.policy_node import PolicyNode
    from robopolicy.real.ros2.spin import run, take_priority

    take_priority()
    rclpy.init(args=["--ros-args", "-r", f"__node:={name}"], signal_handler_options=SignalHandlerOptions.NO)
    run(PolicyNode(wiring, lambda: SweepRuntime(wiring)))


def main() -> None:
    import robopolicy.real.ros2.policy_node
    import robopolicy.real.ros2.spin  # noqa: F401

    wiring = load_wiring(sys.argv[1] if len(sys.argv) > 1 else WIRING)
    chain, home = SweepRuntime(wiring).chain(), np.array(limits().data["home"])
    chain.limiter.start(home[None])  # compiles
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    while line := sys.stdin.readline():
        if (pid := os.fork()) == 0:
            sys.stdin.close()
            child(line.strip(), wiring)
            os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    main()

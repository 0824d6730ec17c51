"""Attacks by the operator, by bystanders, and on the node itself."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np
import psutil
from lifecycle_msgs.srv import GetState
from rclpy.qos import QoSProfile
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from scripts.hostile.attacks import Attack, goes_on
from scripts.hostile.client import DT_NS, LATCHED, Client


# -- the enable -----------------------------------------------------------------------------------------------------
def silent_then(name: str, silence: float) -> Attack:
    """The enable falls silent; the operator's software asks for motion all the same."""

    def run(c: Client, rng: np.random.Generator) -> None:
        c.start()
        if name == "activate":
            c.call("deactivate")
        c.lies.enable = None
        time.sleep(silence)
        c.call(name)
        time.sleep(1.0)

    return run


def latched(c: Client, rng: np.random.Generator) -> None:
    """An enable of the past is delivered to a late subscriber."""
    c.start()
    with c.stranger() as other:
        out = other.create_publisher(Bool, "enable", QoSProfile(depth=1, durability=LATCHED))
        c.meet(out.get_subscription_count)
        out.publish(Bool(data=True))
        c.call("deactivate")
        c.call("cleanup")
        c.lies.enable = None
        time.sleep(0.3)
        c.call("configure")
        time.sleep(0.6)
        c.call("activate")
        time.sleep(0.8)
        other.destroy_publisher(out)


def foreign_enable(c: Client, rng: np.random.Generator) -> None:
    """The operator has gone, another one enables."""
    c.start()
    with c.stranger() as other:
        out = other.create_publisher(Bool, "enable", 10)
        c.meet(out.get_subscription_count)
        ended = threading.Event()

        def go_on() -> None:
            while not ended.wait(0.02):
                out.publish(Bool(data=True))

        thread = threading.Thread(target=go_on)
        thread.start()
        time.sleep(0.3)
        c.lies.enable = None
        time.sleep(0.8)
        c.call("reset")
        time.sleep(0.6)
        ended.set()
        thread.join()


def stop_and_enable(c: Client, rng: np.random.Generator) -> None:
    """An emergency stop, then enabled again without a reset, the gripper in the middle of its motion."""
    c.start()
    time.sleep(rng.uniform(0.0, 1.0))
    c.lies.enable = False
    time.sleep(0.4)
    c.lies.enable = True
    time.sleep(1.5)


# -- bystanders and floods ------------------------------------------------------------------------------------------
def bystander(*, before: bool) -> Attack:
    """A subscriber to the trajectories that asks for what was said before it came."""

    def run(c: Client, rng: np.random.Generator) -> None:
        if not before:
            c.start()
        with c.stranger() as other:
            qos = QoSProfile(depth=10, durability=LATCHED)
            other.create_subscription(JointTrajectory, c.robot.trajectory, lambda _: None, qos)
            c.meet(lambda: other.count_publishers(c.robot.trajectory))
            time.sleep(0.8)
            if before:
                c.begin(2)
            goes_on(c, "a bystander")
            c.lies.enable = False
            time.sleep(0.8)
            c.lies.enable = True
            time.sleep(0.1)
            c.begin(2)
            goes_on(c, "a bystander, after a reset")

    return run


def flood(role: str, times: int) -> Attack:
    """Every message of a kind `times` over."""

    def run(c: Client, rng: np.random.Generator) -> None:
        c.start()
        c.lies.again = ((role, times),)
        time.sleep(1.5)
        c.lies.again = ()

    return run


def flood_calls(c: Client, rng: np.random.Generator) -> None:
    """Services are called a thousand times a second."""
    c.start()
    with c.stranger() as other:
        ask: Any = other.create_client(GetState, f"{c.target}/get_state")
        reset: Any = other.create_client(Trigger, f"{c.target}/reset")
        ask.wait_for_service(5.0)
        for k in range(1000):
            (reset if k % 10 == 0 else ask).call_async(Trigger.Request() if k % 10 == 0 else GetState.Request())
            time.sleep(0.001)
        time.sleep(0.3)


def flood_foreign(c: Client, rng: np.random.Generator) -> None:
    """Another publisher of states, thousands a second."""
    c.start()
    with c.stranger() as other:
        out = other.create_publisher(JointState, c.robot.states, 10)
        c.meet(out.get_subscription_count)
        until = time.monotonic() + 1.5
        with c.forbidden("two publishers of states", after=0.4):
            while time.monotonic() < until:
                out.publish(c.state(c.tick * DT_NS, c.q + 0.1, np.zeros(7)))
                time.sleep(0.0001)


# -- the node itself ------------------------------------------------------------------------------------------------
def dry_run(*, raises: bool) -> Attack:
    def run(c: Client, rng: np.random.Generator) -> None:
        with c.forbidden("a dry run", after=0.0):
            c.run_dry()
            time.sleep(0.5)
            if raises:
                os.kill(c.pid, signal.SIGUSR1)
                time.sleep(1.5)
                c.call("reset")
                time.sleep(0.6)
            c.call("deactivate")
            time.sleep(0.3)

    return run


def raises_live(c: Client, rng: np.random.Generator) -> None:
    """An exception inside the tick."""
    c.start()
    os.kill(c.pid, signal.SIGUSR1)
    time.sleep(1.6)


def policy_killed(c: Client, rng: np.random.Generator) -> None:
    c.start()
    with c.forbidden("no policy", after=0.7):
        for process in psutil.Process(c.pid).children():
            process.kill()
        time.sleep(1.4)


def stopped(enable: bool | None) -> Attack:
    """The node does not run for a second, and the operator says `enable` in the middle of it."""

    def run(c: Client, rng: np.random.Generator) -> None:
        c.start()
        time.sleep(rng.uniform(0.0, 0.5))
        os.kill(c.pid, signal.SIGSTOP)
        time.sleep(0.3)
        c.lies.enable = enable
        time.sleep(0.2)
        c.lies.enable = True if enable is False else enable
        time.sleep(0.5)
        os.kill(c.pid, signal.SIGCONT)
        time.sleep(1.2)

    return run


def honest_motion(c: Client, rng: np.random.Generator) -> None:
    """Nothing but motion, and an emergency stop in it."""
    c.start()
    time.sleep(2.0)
    c.lies.enable = False
    time.sleep(0.8)

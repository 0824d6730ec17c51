"""The attacks. Each begins with a configured node; afterwards the world is honest again, and the node must recover."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psutil
from lifecycle_msgs.srv import GetState
from rclpy.qos import QoSProfile
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from scripts.hostile.client import DT_NS, FR3_ARM, LATCHED, PANDA, Client, Lies, Robot

STATE, COMMANDS, CAMERA = ("joint_states", "state"), ("joint_commands",), ("observation.images.front",)
HOUR = 3600.0
Attack = Callable[[Client, np.random.Generator], None]


@dataclass(frozen=True)
class Scenario:
    """One attack.

    names: what a FAULT must name one of; `must`: something must name it. dry: the node is in a dry run. process: it
    plans in a process of its own.
    """

    name: str
    run: Attack
    names: tuple[str, ...] = ()
    must: bool = False
    robot: Robot = PANDA
    dry: bool = False
    process: bool = False


def honest(c: Client) -> None:
    """Tell the truth from now on; a clock that was set stays set, if the arm's driver has it too."""
    c.others.clear()
    c.lies = Lies(shift=c.lies.shift if c.lies.driver_too else 0.0)


# -- the arm's clock ------------------------------------------------------------------------------------------------
def clock_inactive(by: float, *, wait: float = 1.0) -> Attack:
    """Set while inactive; after the activation the enable and then the states fall silent, and return."""

    def run(c: Client, rng: np.random.Generator) -> None:
        c.begin()
        c.call("deactivate")
        time.sleep(0.5)
        c.lies.shift = by
        time.sleep(0.4 + rng.uniform(0.0, 0.2))
        c.call("activate")
        c.moves(1.0)
        c.lies.enable = None
        time.sleep(1.0)
        c.lies.enable = True
        time.sleep(wait)
        with c.forbidden("no states"):
            c.lies.states = False
            time.sleep(0.9)
        c.lies.states = True

    return run


def clock_before(by: float) -> Attack:
    """Set before the first activation, and back again."""

    def run(c: Client, rng: np.random.Generator) -> None:
        c.lies.shift = by
        time.sleep(0.5 + rng.uniform(0.0, 0.2))
        c.lies.shift = 0.0
        time.sleep(0.1)
        c.call("activate")
        c.moves(1.0)
        c.lies.enable = None
        time.sleep(0.9)
        c.lies.enable = True
        time.sleep(0.8)

    return run


def clock_moving(by: float, *, driver_too: bool) -> Attack:
    def run(c: Client, rng: np.random.Generator) -> None:
        c.begin()
        time.sleep(rng.uniform(0.0, 0.4))
        with c.forbidden("the clock jumped", after=0.3):
            c.lies = replace(c.lies, shift=by, driver_too=driver_too)
            time.sleep(1.4)

    return run


def glitch(by: float, *, moving: bool) -> Attack:
    """Three states stamped wrongly, three times over."""

    def run(c: Client, rng: np.random.Generator) -> None:
        if moving:
            c.begin()
        for _ in range(3):
            left = [3]

            def wrong(message: JointState, left: list[int] = left) -> list[JointState]:
                if left[0] > 0:
                    left[0] -= 1
                    ns = message.header.stamp.sec * 10**9 + message.header.stamp.nanosec + round(by * 1e9)
                    message.header.stamp.sec, message.header.stamp.nanosec = divmod(ns, 10**9)
                return [message]

            c.lies.state = wrong
            time.sleep(0.25 + rng.uniform(0.0, 0.1))

    return run


# -- the arm's states -----------------------------------------------------------------------------------------------
def _shifted(message: JointState, joint: int, by: float) -> JointState:
    message.position[joint] += by
    return message


def two_publishers(*, moving: bool) -> Attack:
    """Another publisher of states, 0.15 rad off."""

    def run(c: Client, rng: np.random.Generator) -> None:
        joint, by = int(rng.integers(7)), float(rng.choice([-0.15, 0.15]))
        if moving:
            c.begin()
        with c.stranger() as other:
            out = other.create_publisher(JointState, c.robot.states, 10)
            c.meet(out.get_subscription_count)
            with c.forbidden("two publishers of states", after=0.4):
                c.others.append((out, lambda m: _shifted(m, joint, by)))
                time.sleep(1.0)
                c.call("reset" if moving else "activate")
                time.sleep(1.0)
                c.others.clear()

    return run


def jump(count: int) -> Attack:
    """`count` states 0.15 rad off, from the arm's own publisher."""

    def run(c: Client, rng: np.random.Generator) -> None:
        joint, by, left = int(rng.integers(7)), float(rng.choice([-0.15, 0.15])), [count]

        def wrong(message: JointState) -> list[JointState]:
            left[0] -= 1
            return [_shifted(message, joint, by) if left[0] >= 0 else message]

        c.begin()
        c.lies.state = wrong
        if count < 10:
            time.sleep(1.0)
            return
        with c.forbidden("the arm is not where it was", after=0.3):
            time.sleep(1.2)

    return run


def spoilt(how: Callable[[JointState], None]) -> Attack:
    """Every state is unreadable or of another arm."""

    def run(c: Client, rng: np.random.Generator) -> None:
        def wrong(message: JointState) -> list[JointState]:
            how(message)
            return [message]

        c.begin()
        with c.forbidden("no readable states"):
            c.lies.state = wrong
            time.sleep(1.1 + rng.uniform(0.0, 0.2))

    return run


def _cut(message: JointState) -> None:
    message.name, message.position = message.name[:5], message.position[:5]
    message.velocity = message.velocity[:5]


def _long(message: JointState) -> None:
    message.name = [*message.name, message.name[0]]
    message.position, message.velocity = [*message.position, 0.0], [*message.velocity, 0.0]


def _swapped(message: JointState) -> None:
    names = list(message.name)
    names[1], names[3] = names[3], names[1]
    message.name = names


def reordered(c: Client, rng: np.random.Generator) -> None:
    """Joints in any order, by name: right, and no reason to stop."""

    def shuffled(message: JointState) -> list[JointState]:
        order = rng.permutation(len(message.name))
        message.name = [message.name[i] for i in order]
        message.position = [message.position[i] for i in order]
        message.velocity = [message.velocity[i] for i in order]
        return [message]

    c.begin()
    c.lies.state = shuffled
    time.sleep(0.8)
    goes_on(c, "names in another order")


def goes_on(c: Client, what: str) -> None:
    """Note it where the arm has stopped for `what`."""
    if not c.moves(0.8):
        c.log.stopped.append(what)


def commands_ahead(c: Client, rng: np.random.Generator) -> None:
    """What the driver plays is stamped 10 s late, while it hears nothing."""
    c.begin()
    with c.forbidden("nobody knows what is played", after=0.3):
        c.lies = replace(c.lies, command_shift=10.0)
        time.sleep(0.6 + rng.uniform(0.0, 0.3))
        c.lies = replace(c.lies, deaf=True)
        time.sleep(1.0)


def commands_glitch(c: Client, rng: np.random.Generator) -> None:
    """The same for a moment."""
    c.begin()
    c.lies = replace(c.lies, command_shift=10.0)
    time.sleep(0.02)
    c.lies = replace(c.lies, command_shift=0.0)
    time.sleep(0.6 + rng.uniform(0.0, 0.2))


# -- pictures -------------------------------------------------------------------------------------------------------
def pictures(lie: str, *, moving: bool = True) -> Attack:
    """Old, repeated, looping, without a time, of another day."""

    def run(c: Client, rng: np.random.Generator) -> None:
        seen: list[tuple[int, int]] = []

        def wrong(ns: int, number: int) -> list[tuple[int, int]]:
            seen.append((ns, number))
            return [{
                "frozen": seen[0],
                "loop": seen[(len(seen) - 1) % 3],
                "stamp 0": (len(seen), number),
                "an hour ahead": (ns + int(HOUR * 1e9), number),
                "2 s old": (ns - 2_000_000_000, number),
            }[lie]]  # fmt: skip

        if moving:
            c.begin()
        with c.forbidden(f"pictures: {lie}", after=0.6):
            c.lies.picture = wrong
            time.sleep(1.0 + rng.uniform(0.0, 0.3))
            if not moving:
                c.call("activate")
            time.sleep(0.8)

    return run


# -- the enable -----------------------------------------------------------------------------------------------------
def silent_then(name: str, silence: float) -> Attack:
    """The enable falls silent; the operator's software asks for motion all the same."""

    def run(c: Client, rng: np.random.Generator) -> None:
        c.begin()
        if name == "activate":
            c.call("deactivate")
        c.lies.enable = None
        time.sleep(silence)
        c.call(name)
        time.sleep(1.0)

    return run


def latched(c: Client, rng: np.random.Generator) -> None:
    """An enable of the past is delivered to whoever comes later."""
    c.begin()
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
    c.begin()
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
    c.begin()
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
            c.begin()
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
        c.begin()
        c.lies.again = ((role, times),)
        time.sleep(1.5)
        c.lies.again = ()

    return run


def flood_calls(c: Client, rng: np.random.Generator) -> None:
    """Services are called a thousand times a second."""
    c.begin()
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
    c.begin()
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
            c.call("activate")
            time.sleep(0.8)
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
    c.begin()
    os.kill(c.pid, signal.SIGUSR1)
    time.sleep(1.6)


def policy_killed(c: Client, rng: np.random.Generator) -> None:
    c.begin()
    with c.forbidden("no policy", after=0.7):
        for process in psutil.Process(c.pid).children():
            process.kill()
        time.sleep(1.4)


def stopped(c: Client, rng: np.random.Generator) -> None:
    """The node does not run for a second."""
    c.begin()
    time.sleep(rng.uniform(0.0, 0.5))
    os.kill(c.pid, signal.SIGSTOP)
    time.sleep(1.0)
    os.kill(c.pid, signal.SIGCONT)
    time.sleep(1.0)


def honest_motion(c: Client, rng: np.random.Generator) -> None:
    """Nothing but motion, and an emergency stop in it."""
    c.begin()
    time.sleep(2.0)
    c.lies.enable = False
    time.sleep(0.8)


def scenarios() -> list[Scenario]:
    """All of them, in the order in which they run."""
    s = Scenario
    nan, inf = float("nan"), float("inf")
    enable, pub = ("enable", "emergency_stop"), (*STATE, "publisher")
    clock = (*STATE, *COMMANDS, "stamp", "clock")
    return [
        s("honest", honest_motion, enable),
        s("honest_fr3", honest_motion, enable, robot=FR3_ARM),
        *(s(f"clock_inactive_{n}", clock_inactive(by, wait=w), (*enable, *clock), True)
          for n, by, w in (("-15s", -15.0, 13.0), ("+15s", 15.0, 1.0), ("-1h", -HOUR, 1.0), ("+1h", HOUR, 1.0))),
        *(s(f"clock_before_{n}", clock_before(by), (*enable, *clock), True)
          for n, by in (("-15s", -15.0), ("+15s", 15.0), ("-1h", -HOUR), ("+1h", HOUR))),
        *(s(f"clock_moving_{n}", clock_moving(by, driver_too=d), clock, True)
          for n, by, d in (("-15s", -15.0, True), ("+15s", 15.0, False), ("-1h", -HOUR, False), ("+1h", HOUR, True))),
        *(s(f"glitch_{n}", glitch(by, moving=m), clock)
          for n, by, m in (("+0.2s", 0.2, True), ("-0.2s", -0.2, True), ("inactive", 0.2, False))),
        s("two_publishers_before", two_publishers(moving=False), pub, True),
        s("two_publishers_moving", two_publishers(moving=True), pub, True),
        s("jump_3", jump(3), (*STATE, "tracking_error")),
        s("jump_stays", jump(10**9), (*STATE, "tracking_error"), True),
        s("states_nan", spoilt(lambda m: m.position.__setitem__(2, nan)), STATE, True),
        s("states_inf", spoilt(lambda m: m.velocity.__setitem__(4, inf)), STATE, True),
        s("states_short", spoilt(_cut), STATE, True),
        s("states_long", spoilt(_long), STATE, True),
        s("states_swapped", spoilt(_swapped), STATE, True),
        s("states_reordered", reordered, STATE),
        s("commands_ahead", commands_ahead, COMMANDS, True),
        s("commands_glitch", commands_glitch, COMMANDS),
        *(s(f"pictures_{lie.replace(' ', '_')}", pictures(lie), CAMERA, True)
          for lie in ("frozen", "loop", "stamp 0", "an hour ahead", "2 s old")),
        s("pictures_before_an_hour_ahead", pictures("an hour ahead", moving=False), CAMERA, True),
        s("pictures_before_loop", pictures("loop", moving=False), CAMERA, True),
        s("enable_silent_reset", silent_then("reset", 0.75), enable, True),
        s("enable_silent_activate", silent_then("activate", 0.6), enable, True),
        s("enable_latched", latched, enable, True),
        s("enable_foreign", foreign_enable, enable, True),
        s("enable_stop_and_go", stop_and_enable, enable, True),
        s("bystander_moving", bystander(before=False), enable),
        s("bystander_before", bystander(before=True), enable),
        s("flood_states", flood("states", 8)),
        s("flood_enable", flood("enable", 60)),
        s("flood_pictures", flood("picture", 60)),
        s("flood_calls", flood_calls),
        s("flood_foreign_states", flood_foreign, pub, True),
        s("dry_run", dry_run(raises=False), dry=True),
        s("dry_run_raises", dry_run(raises=True), ("RuntimeError", "injected"), True, dry=True),
        s("raises", raises_live, ("RuntimeError", "injected"), True),
        s("policy_killed", policy_killed, ("planner", "planning", "policy"), True, process=True),
        s("node_stopped", stopped),
    ]  # fmt: skip

"""Attacks by what the arm and the camera say: clocks, states, pictures."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from sensor_msgs.msg import Image, JointState

from scripts.hostile.attacks import HOUR, Attack, goes_on
from scripts.hostile.client import DT_NS, Client
from scripts.hostile.world import picture


# -- the arm's clock ------------------------------------------------------------------------------------------------
def clock_inactive(by: float, *, wait: float = 1.0) -> Attack:
    """Set while inactive; after the activation the enable and then the states fall silent, and return."""

    def run(c: Client, rng: np.random.Generator) -> None:
        c.start()
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
        c.start()
        time.sleep(rng.uniform(0.0, 0.4))
        with c.forbidden("the clock jumped", after=0.3):
            c.lies = replace(c.lies, shift=by, driver_too=driver_too)
            time.sleep(1.4)

    return run


def drift(rate: float) -> Attack:
    """The arm's clock, and with it the arm, is too fast by `rate` for 4 s."""

    def run(c: Client, rng: np.random.Generator) -> None:
        c.start()
        begin, began = time.monotonic(), c.began
        while (passed := time.monotonic() - begin) < 4.0:
            c.began = began - rate * passed
            time.sleep(0.004)
        goes_on(c, "a clock that drifts")

    return run


def glitch(by: float, *, moving: bool) -> Attack:
    """Three states stamped wrongly, three times over."""

    def run(c: Client, rng: np.random.Generator) -> None:
        if moving:
            c.start()
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
            c.start()
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


def second(role: str) -> Attack:
    """Another publisher that says, on any input, just what the right one says."""

    def run(c: Client, rng: np.random.Generator) -> None:
        kind, topic = {"states": (JointState, c.robot.states), "commands": (JointState, c.robot.commands),
                       "picture": (Image, c.robot.camera)}[role]  # fmt: skip
        c.start()
        with c.stranger() as other:
            out = other.create_publisher(kind, topic, 10)
            c.meet(out.get_subscription_count)
            with c.forbidden(f"two publishers of {role}", after=0.4):
                until = time.monotonic() + 1.5
                while time.monotonic() < until:
                    ns = c.tick * DT_NS
                    if role == "picture":
                        out.publish(picture(ns, c.tick))
                    else:
                        message = c.state(ns, c.q, np.zeros(7))
                        if role == "commands":
                            message = JointState(header=message.header, name=message.name[:7],
                                                 position=message.position[:7])  # fmt: skip
                        out.publish(message)
                    time.sleep(0.02)
                c.call("reset")

    return run


def jump(count: int) -> Attack:
    """`count` states 0.15 rad off, from the arm's own publisher."""

    def run(c: Client, rng: np.random.Generator) -> None:
        joint, by, left = int(rng.integers(7)), float(rng.choice([-0.15, 0.15])), [count]

        def wrong(message: JointState) -> list[JointState]:
            left[0] -= 1
            return [_shifted(message, joint, by) if left[0] >= 0 else message]

        c.start()
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

        c.start()
        with c.forbidden("no readable states"):
            c.lies.state = wrong
            time.sleep(1.1 + rng.uniform(0.0, 0.2))

    return run


def cut(message: JointState) -> None:
    message.name, message.position = message.name[:5], message.position[:5]
    message.velocity = message.velocity[:5]


def lengthen(message: JointState) -> None:
    message.name = [*message.name, message.name[0]]
    message.position, message.velocity = [*message.position, 0.0], [*message.velocity, 0.0]


def swap(message: JointState) -> None:
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

    c.start()
    c.lies.state = shuffled
    time.sleep(0.8)
    goes_on(c, "names in another order")


def commands_ahead(c: Client, rng: np.random.Generator) -> None:
    """What the driver plays is stamped 10 s late, while it hears nothing."""
    c.start()
    with c.forbidden("what is played is unknown", after=0.3):
        c.lies = replace(c.lies, command_shift=10.0)
        time.sleep(0.6 + rng.uniform(0.0, 0.3))
        c.lies = replace(c.lies, deaf=True)
        time.sleep(1.0)


def commands_foreign(c: Client, rng: np.random.Generator) -> None:
    """The driver plays what another one commands."""
    c.start()
    with c.forbidden("another commands the arm", after=0.3):
        c.lies = replace(c.lies, command_by=float(rng.choice([-0.05, 0.05])))
        time.sleep(1.0)


def commands_glitch(c: Client, rng: np.random.Generator) -> None:
    """The same for a moment."""
    c.start()
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
            c.start()
        with c.forbidden(f"pictures: {lie}", after=0.6):
            c.lies.picture = wrong
            time.sleep(1.0 + rng.uniform(0.0, 0.3))
            if not moving:
                c.call("activate")
            time.sleep(0.8)

    return run

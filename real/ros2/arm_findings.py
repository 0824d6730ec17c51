"""What a running arm's messages say against its wiring and its limits. Independent of ROS's graph."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
from sensor_msgs.msg import JointState

from robopolicy.doctor.checks import Check
from robopolicy.real.ros2.arm_publishers import StatePublishers
from robopolicy.real.ros2.channels import LineDelay
from robopolicy.real.ros2.joint_states import ARM, stamp_of
from robopolicy.real.ros2.messages import StateReader
from robopolicy.real.ros2.remote_arm import STILL
from robopolicy.real.ros2.urdf import contradictions
from robopolicy.real.ros2.wiring import GRIPPER, Topic, Wiring
from robopolicy.real.ros2.wiring_file import LONGEST_LEAD
from robopolicy.real.safety import SafetyError
from robopolicy.real.safety.array_ops import Array

SLOW, FAST = 0.8, 1.5  # of the wiring's rate; two publishers of one rate, or a bag beside the driver, make 2
SHORTEST = 0.4  # s in which a gripper's messages are counted
LONG = 2.0  # s of the arm's states in which a gripper with too few messages for that is slow
COARSE = 0.02  # rad: a joint whose position moves in larger steps is not followed
MOST = 256  # joints of others that are told apart
SLOWEST = 99.0  # percentile of latencies
EARLY = 1e-3  # s that a state may arrive before its stamp: clocks that agree differ by less
FEWEST = 20  # states that a delay is measured by
MOVED = 0.02  # rad: a joint that went further shows its direction
_FITS = "the URDF permits all that the limits permit, and its axes lie and turn as theirs; base and tool: not compared"


@dataclass
class Heard:
    """Messages of a few seconds."""

    states: list[tuple[float, float, Array, Array]] = field(default_factory=list)  # receipt, stamp [s], q, qd
    refused: Counter[str] = field(default_factory=Counter)  # messages of the arm, by reason
    foreign: Counter[str] = field(default_factory=Counter)  # joints of others
    empty: int = 0
    description: str | None = None
    fingers: int = 0  # messages with the gripper's joints
    opening: float = 0.0  # m, of the newest of them
    publishers: StatePublishers = field(default_factory=StatePublishers)

    def take(
        self, reader: StateReader, message: JointState, at: float, *, gid: bytes | None = b"",
        roles: Collection[str] = (ARM, GRIPPER),
    ) -> None:  # fmt: skip
        """Sort a message that was received at `at` s of the system's clock.

        Args:
            gid: its publisher; None: unknown.
            roles: of its topic, by the wiring: joints of another role are left out.
        """
        if gid is not None:
            self.publishers.heard.add(gid)
        if not message.name:
            self.empty += 1
        ours = {*reader.wiring.joints, *reader.wiring.gripper}
        if len(self.foreign) < MOST:
            self.foreign.update(n for n in message.name[:MOST] if n not in ours)
        arm, gripper = ARM in roles and reader.has_arm(message), GRIPPER in roles and reader.has_gripper(message)
        for role in [ARM] * arm + [GRIPPER] * gripper:  # also of a message that is refused
            self.publishers.take(role, gid, at)
        try:
            if gripper:
                self.opening = reader.read_gripper(message)
                self.fingers += 1
            if arm:
                state = reader.read(message)
                self.states.append((at, stamp_of(message), state.q, state.qd))
        except SafetyError as error:
            self.refused[str(error)] += 1


def findings(heard: Heard, wiring: Wiring) -> Iterator[Check]:
    """Yield one finding each on names, units, rate, latency, resolution, directions, gripper and description."""
    topic = wiring.topic("joint_states")
    if heard.refused:
        why, count = heard.refused.most_common(1)[0]
        yield Check("joint states", False, f"{count} of {heard.refused.total()} refused: {why}", "as it says")
    if not heard.states and not heard.refused:
        others = f"; joints of others: {sorted(heard.foreign)[:16]}" if heard.foreign else ""
        yield Check(
            "joint states", False, f"no state of {list(wiring.joints)} on {topic.name!r}{others}",
            "start the driver; compare `joints` and topics.joint_states of the wiring with it",
        )  # fmt: skip
    if not heard.states:
        return
    if not heard.refused:
        yield Check("joint states", True, f"{len(heard.states)} messages with all {len(wiring.joints)} joints, in rad")
    beside = ", ".join(sorted(heard.foreign)[:16]) or "none"
    yield Check("joints of others", True, f"{beside}; {heard.empty} empty messages: left out")
    at, stamps = (np.array([s[k] for s in heard.states]) for k in (0, 1))
    q, qd = (np.array([s[k] for s in heard.states]) for k in (2, 3))
    yield from _times(at, stamps, wiring)
    yield from _motion(at, q, qd, wiring)
    if wiring.gripper:
        yield _gripper(heard, wiring)
    yield from _description(heard, wiring)


def _gripper(heard: Heard, wiring: Wiring) -> Check:
    """Judge whether the gripper speaks, and where it does so apart, how often."""
    said, topic = f"{heard.fingers} messages of {list(wiring.gripper)}", wiring.topics[GRIPPER]
    said += f", now {1000 * heard.opening:.0f} mm open: compare with the jaws" if heard.fingers else ""
    rate = None if topic is None else heard.publishers.rate(GRIPPER, SHORTEST)
    lasted = heard.states[-1][0] - heard.states[0][0]
    if rate is None and lasted >= LONG:
        rate = heard.fingers / lasted
    if topic is not None and heard.fingers and rate is not None and rate < SLOW * topic.rate_hz:
        fix = f"set topics.{GRIPPER}.rate_hz: {rate:.3g}, and watchdogs.{GRIPPER}.hold to two messages or more"
        return Check("gripper", False, f"{said}, {rate:.1f} Hz of {topic.rate_hz:g}", fix)
    if topic is None or rate is None or rate <= FAST * topic.rate_hz:
        fix = "compare `gripper` and topics.gripper_states of the wiring with its driver"
        return Check("gripper", heard.fingers > 0, said, fix)
    return Check("gripper", False, f"{said}, {_too_fast(rate, topic)}", _slow_down(GRIPPER, rate))


def _too_fast(rate: float, topic: Topic) -> str:
    return f"{rate:.1f} Hz of {topic.rate_hz:g}, expected {FAST * topic.rate_hz:g} at most"


def _slow_down(role: str, rate: float) -> str:
    """Say what helps where messages of a role come too often, at `rate` Hz."""
    return (
        f"stop what speaks beside the driver: a second publisher, a bag that is played, a relay. Only where this is "
        f"the driver's own rate, set topics.{role}.rate_hz: {rate:.0f}"
    )


def _times(at: Array, stamps: Array, wiring: Wiring) -> Iterator[Check]:
    """Judge rate and latency."""
    topic, dog = wiring.topic("joint_states"), wiring.watchdogs["state"]
    patience = min(dog.hold, dog.fault)
    gaps = np.diff(at)
    rate = len(gaps) / float(at[-1] - at[0]) if len(gaps) and at[-1] > at[0] else 0.0
    longest = float(gaps.max()) if len(gaps) else math.inf
    fast = rate > FAST * topic.rate_hz
    said = _too_fast(rate, topic) if fast else f"{rate:.1f} Hz of {topic.rate_hz:g}"
    yield Check(
        "rate", not fast and rate >= SLOW * topic.rate_hz and longest < patience,
        f"{said}, longest gap {1000 * longest:.0f} ms of {1000 * patience:.0f}",
        _slow_down(ARM, rate) if fast
        else f"set topics.joint_states.rate_hz: {rate:.0f}, and watchdogs.state.hold to two messages or more",
    )  # fmt: skip
    if not stamps.all():
        yield Check("latency", False, "stamps are 0", "let the driver set header.stamp")
        return
    low, middle, high = np.percentile(at - stamps, [0, 50, SLOWEST])
    said = f"{1000 * middle:.1f} ms in the middle, {1000 * high:.1f} ms in 99 of 100, from receipt to stamp"
    yield Check(
        "latency", low > -EARLY and high < patience, f"{said}; a difference of the two clocks is in it",
        "let both clocks agree (chrony, PTP): a state cannot arrive before its time. Or relieve the line",
    )  # fmt: skip
    if wiring.output.type != "positions" and low > -EARLY:  # positions are played as they come
        lead, needed = wiring.lead_ticks, math.ceil(2 * high / wiring.tick_s)
        yield Check(
            "lead", needed <= lead,
            f"a state and its command need {2000 * high:.1f} ms, of {1000 * lead * wiring.tick_s:g} by lead_ticks",
            f"set lead_ticks: {needed}, or relieve the line" if needed <= LONGEST_LEAD
            else f"relieve the line: lead_ticks may be {LONGEST_LEAD} at most",
        )  # fmt: skip


def measured_delay(heard: Heard) -> LineDelay | None:
    """Return the delay of the states that were heard; None with too few of them, or stamps that do not increase, or
    lie in the future.
    """
    at, stamps = (np.array([s[k] for s in heard.states]) for k in (0, 1))
    gaps = np.diff(stamps)
    if len(at) < FEWEST or not stamps.all() or (gaps <= 0.0).any() or (at - stamps).min() < -EARLY:
        return None
    middle, high = np.percentile(at - stamps, [50, SLOWEST])
    missing = float(np.maximum(np.rint(gaps / np.median(gaps)) - 1.0, 0.0).sum())
    coarsest = _finest_steps(np.array([s[2] for s in heard.states])).max(initial=0.0)
    return LineDelay(
        latency_s=float(np.clip(middle, 0.0, 1.0)), jitter_s=min(float(high - middle), 1.0),
        lost=missing / (missing + len(at)), resolution_rad=min(float(coarsest), 1.0),
    )  # fmt: skip


def _finest_steps(q: Array) -> Array:
    """Return the finest step [rad] of each joint that changed, of positions [T n]."""
    steps = np.abs(np.diff(q, axis=0))
    return np.array([column[column > 0].min() for column in steps.T if (column > 0).any()])


def _motion(at: Array, q: Array, qd: Array, wiring: Wiring) -> Iterator[Check]:
    """Judge resolution, rest and directions: whether velocities are those of the positions."""
    names = wiring.joints
    finest = _finest_steps(q)
    worst = float(finest.max(initial=0.0))
    said = f"steps of {worst:.1e} rad at most, of {len(finest)} joints that changed" if len(finest) else "no change"
    yield Check("resolution", worst < COARSE, said, "use an encoder or a driver of finer steps")
    moved, way = np.ptp(q, axis=0), q - q[0]
    by_velocity = np.concatenate([np.zeros((1, q.shape[1])), np.cumsum(0.5 * (qd[1:] + qd[:-1]) * np.diff(at)[:, None],
                                                                       axis=0)])  # fmt: skip
    for k in np.flatnonzero(moved > MOVED):
        ratio = float((way[:, k] @ by_velocity[:, k]) / max(way[:, k] @ way[:, k], 1e-12))
        yield Check(
            f"direction of {names[k]}", 0.5 < ratio < 2.0,
            f"went {moved[k]:.2f} rad; its velocity says {ratio:.2f} times that",
            "the driver's velocity has another sign or unit (rad/s) than its position",
        )  # fmt: skip
    if still := [names[k] for k in np.flatnonzero(moved <= MOVED)]:
        yield Check(
            "directions", True, f"not observed, as they did not move: {', '.join(still)}. Move each by hand or by "
            "pendant while this runs, and see that + is the + of the drawing",
        )  # fmt: skip
    if (moved <= MOVED).all():
        fastest = float(np.abs(qd).max())
        yield Check(
            "rest", fastest <= STILL, f"velocities to {fastest:.3f} rad/s at rest, of {STILL}",
            "let the driver filter its velocities: the node takes an arm of such for one that moves",
        )  # fmt: skip


def _description(heard: Heard, wiring: Wiring) -> Iterator[Check]:
    """Judge the arm's own URDF."""
    topic = wiring.topics["robot_description"]
    if topic is None:
        yield Check("description", True, "the wiring names no topic for it: unchecked")
        return
    if heard.description is None:
        yield Check(
            "description", False, f"nothing has come on {topic.name!r}", "start robot_state_publisher, or set null"
        )
        return
    found = contradictions(wiring.profile(**wiring.safety), heard.description, wiring.joints)
    yield Check(
        "description", not found, "; ".join(found) or _FITS,
        "use the limits of this arm: robopolicy arm new urdf=…",
    )  # fmt: skip

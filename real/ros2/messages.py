"""Messages to numbers and back, with every check that a message from outside must pass."""

from __future__ import annotations

import numpy as np
from builtin_interfaces.msg import Duration, Time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from robopolicy.real.control.joint_order import JointOrder
from robopolicy.real.control.robots import State
from robopolicy.real.ros2.wiring import Wiring
from robopolicy.real.safety import SafetyError
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.profile import Profile

S = 1_000_000_000  # ns
ALONE = "alone"  # frame of an echo: the simulated arm, which is to wait for answers, has heard no trajectory yet


def to_ns(stamp: Time | Duration) -> int:
    return int(stamp.sec) * S + int(stamp.nanosec)


def to_time(ns: int) -> Time:
    return Time(sec=ns // S, nanosec=ns % S)


def openings(wiring: Wiring) -> tuple[float, float]:
    """Return the least and the largest opening [m] that a gripper may report: beyond its range it is another unit."""
    low, high = (0.0, 1.0) if wiring.grip is None else (wiring.grip.low, wiring.grip.high)
    slack = max(0.02, 0.5 * (high - low))
    return low - slack, high + slack


class NotFiniteError(SafetyError):
    """The arm's state holds NaN or infinite values: the arm is at fault, not the sender."""


class StateReader:
    """JointState messages of an arm and its gripper as `State`, in the order of the limits.

    Joints of others are left out. Where the wiring has `gripper_states`, the gripper comes in messages of its own, and
    a state has the newest opening, NaN before the first one.

    Args:
        wiring: names on the wire.
        profile: the arm's, for telling degrees from radians.
    """

    def __init__(self, wiring: Wiring, profile: Profile) -> None:
        self.wiring, self.profile = wiring, profile
        self._joints, self._fingers_of = frozenset(wiring.joints), frozenset(wiring.gripper)
        self._arm = JointOrder(wiring.joints, extra=None)
        self._fingers = JointOrder(tuple(wiring.gripper), extra=None)
        self._factors = np.array(list(wiring.gripper.values()))
        self._apart = wiring.topics["gripper_states"] is not None
        self.opening = np.nan if self._apart else 0.0  # m
        self._openings = openings(wiring)

    def has_arm(self, message: JointState) -> bool:
        """Whether a message is of this arm: it names a joint of it. `read` refuses half an arm."""
        return not self._joints.isdisjoint(message.name)

    def has_gripper(self, message: JointState) -> bool:
        """Whether a message names a joint of the gripper."""
        return not self._fingers_of.isdisjoint(message.name)

    def read(self, message: JointState) -> State:
        """Return the state in a message.

        Raises:
            SafetyError: joints are missing or doubled, velocities are missing, numbers are none or look like degrees,
                or two joints seem swapped; says which.
        """
        names = list(message.name)
        q = self._arm.arrange(names, message.position)
        if len(message.velocity) != len(names):
            raise SafetyError(
                f"joint_states: expected {len(names)} velocities [rad/s], found {len(message.velocity)}. "
                "Set the driver to publish them: the policy sees how fast the tool moves."
            )
        qd = self._arm.arrange(names, message.velocity)
        for what, value in (("position", q), ("velocity", qd)):
            if not np.isfinite(value).all():
                bad = self.wiring.joints[int(np.argmax(~np.isfinite(value)))]
                raise NotFiniteError(f"joint_states: {what} of {bad!r} is not finite")
        self._check_unit(q)
        if not self._apart:
            self.read_gripper(message, "joint_states")
        return State(q, qd, self.opening)

    def read_gripper(self, message: JointState, role: str = "gripper_states") -> float:
        """Return the opening [m] in a message, 0 without a gripper; states that are read later have it.

        Raises:
            SafetyError: a joint of the gripper is missing or doubled, or the opening is not finite or far outside its
                range, as in other units.
        """
        if len(self._factors):
            opening = float(self._factors @ self._fingers.arrange(list(message.name), message.position))
            if not np.isfinite(opening):
                raise NotFiniteError(f"{role}: position of {list(self.wiring.gripper)} is not finite")
            low, high = self._openings
            if not low <= opening <= high:
                raise SafetyError(
                    f"{role}: {list(self.wiring.gripper)} are {opening:.4g} m apart by `gripper`, expected {low:.3g} "
                    f"to {high:.3g}. Correct the factors there, m of opening per unit of the driver, or topics.gripper"
                )
            self.opening = opening
        return self.opening

    def _check_unit(self, q: Array) -> None:
        low, high = self.profile.maker["low"] - 0.05, self.profile.maker["high"] + 0.05
        outside = (q < low) | (q > high)
        if not outside.any():
            return
        k, rad = int(np.argmax(outside)), np.deg2rad(q)
        if (np.abs(q) > 2 * np.pi).any() and ((low <= rad) & (rad <= high)).all():
            raise SafetyError(
                f"joint_states: {np.round(q, 1).tolist()} look like degrees; rad are expected (REP 103). "
                "Set the driver's unit."
            )
        raise SafetyError(
            f"joint_states: {self.wiring.joints[k]!r} is at {q[k]:.3f} rad, the joint reaches from {low[k]:.3f} to "
            f"{high[k]:.3f}. "
            "Are two joints swapped in `joints`, or is this another arm?"
        )


def joint_state(names: tuple[str, ...], ns: int, position: Array, velocity: Array | None = None) -> JointState:
    """Named values with a stamp [ns]."""
    message = JointState(name=list(names), position=position.tolist())
    message.header.stamp = to_time(ns)
    if velocity is not None:
        message.velocity = velocity.tolist()
    return message


def trajectory(names: tuple[str, ...], first_ns: int, points: Array, dt_ns: int) -> JointTrajectory:
    """Control points [K n] rad, one each `dt_ns`, the first due at `first_ns` of the arm's clock."""
    message = JointTrajectory(joint_names=list(names))
    message.header.stamp = to_time(first_ns)
    message.points = [
        JointTrajectoryPoint(positions=q, time_from_start=Duration(sec=k * dt_ns // S, nanosec=k * dt_ns % S))
        for k, q in enumerate(points.tolist())
    ]
    return message


def points_of(message: JointTrajectory, order: JointOrder, dt_ns: int) -> tuple[int, Array]:
    """Tick of the first point and control points [K n] of a trajectory with K ≥ 1 points a tick apart.

    Raises:
        SafetyError: joints or times are not as expected.
    """
    first = to_ns(message.header.stamp) + to_ns(message.points[0].time_from_start)
    for k, point in enumerate(message.points):
        due = to_ns(message.header.stamp) + to_ns(point.time_from_start)
        if abs(due - first - k * dt_ns) > 1000:
            raise SafetyError(f"trajectory: point {k} is due {(due - first) / S:.4f} s after the first, expected "
                              f"{k * dt_ns / S:.4f}: control points come one a tick")  # fmt: skip
    if any(len(p.positions) != len(message.joint_names) for p in message.points):
        raise SafetyError(f"trajectory: every point needs {len(message.joint_names)} positions, as many as joint_names")
    order.arrange(list(message.joint_names), np.zeros(len(message.joint_names)))
    where = [list(message.joint_names).index(name) for name in order.joints]
    points = np.array([p.positions for p in message.points])[:, where]
    return round(first / dt_ns), points


def diagnostics(
    ns: int, name: str, hardware: str, level: bytes, text: str, values: dict[str, object]
) -> DiagnosticArray:  # fmt: skip
    """Build the message of one status, stamped [ns]."""
    pairs = [KeyValue(key=k, value=str(v)) for k, v in values.items()]
    status = DiagnosticStatus(name=name, hardware_id=hardware, level=level, message=text, values=pairs)
    message = DiagnosticArray(status=[status])
    message.header.stamp = to_time(ns)
    return message


def values_of(message: DiagnosticArray, name: str) -> dict[str, str] | None:
    """Values of the status called `name`, with its text under "message"; None where there is none."""
    for found in message.status:
        if found.name == name:
            return {"message": found.message, **{v.key: v.value for v in found.values}}
    return None

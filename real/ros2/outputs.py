"""Ways to tell an arm's driver where to go. What is sent is decided elsewhere (robopolicy.real.ros2.trajectory_stream).

`Commands` is the one place that makes what can move something. In a dry run it makes nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
from action_msgs.msg import GoalStatus
from numpy.typing import NDArray
from rclpy.lifecycle import LifecycleNode
from std_msgs.msg import Float64, Float64MultiArray, MultiArrayDimension, MultiArrayLayout
from trajectory_msgs.msg import JointTrajectory

from robopolicy.real.ros2 import messages
from robopolicy.real.ros2.cdr import TrajectoryBytes
from robopolicy.real.ros2.gripper import Gripper
from robopolicy.real.ros2.qos import mismatches, missing, on_publisher, profile_of
from robopolicy.real.ros2.wiring import Topic, Wiring, WiringError
from robopolicy.real.safety.motion import knots

Array = NDArray[np.float64]
Tell = Callable[[str], None]  # takes a sentence about what is wrong with the driver
Notice = Callable[[], None]  # a node was found that cannot hear us

ANSWER_S = 0.2  # s that a driver may take to answer a goal
ABORTED, CANCELED = GoalStatus.STATUS_ABORTED, GoalStatus.STATUS_CANCELED


class Output(Protocol):
    """One way to the driver."""

    def send(self, first: int, points: Array, new: int) -> None:
        """Control points [K n] rad from tick `first` on: what was sent before, at `new` the newest command, then its
        certified stop. K = 0: nothing more will come."""
        ...

    def problems(self) -> list[str]:
        """Why nothing would arrive, one sentence each."""
        ...

    def close(self) -> None: ...


class Commands:
    """All that can move the arm or its gripper.

    Args:
        dry_run: nothing of it exists: there are no publishers and no client.
        notice: called when a node subscribes that cannot hear us.
        fault: called with a sentence when the driver gives up.
    """

    def __init__(self, node: LifecycleNode, wiring: Wiring, *, dry_run: bool, notice: Notice, fault: Tell) -> None:
        self.node, self.wiring = node, wiring
        self.output: Output = Nothing()
        self.gripper: Gripper | None = None
        self._grip: Any = None
        if dry_run:
            return
        self.output = output_of(node, wiring, notice=notice, fault=fault)
        if (topic := wiring.grip) is not None:
            self._grip = _publisher(node, Float64, topic, notice)
            self.gripper = Gripper(topic, lambda opening: self._grip.publish(Float64(data=opening)))

    def problems(self) -> list[str]:
        """Why what is commanded would not arrive, one sentence each."""
        found, grip = self.output.problems(), self.wiring.grip
        if self.gripper is not None and grip is not None:
            if grip.node:
                found += missing(self.node, "gripper", grip, other=grip.node)
            else:  # it may come later, and is told the last opening then
                found += mismatches(self.node, "gripper", grip, publishes=True)
        return found

    def topics(self) -> list[tuple[str, Topic]]:
        """Roles and topics of what is published here."""
        found: list[tuple[str, Topic]] = []
        if not isinstance(self.output, Nothing | Goals):
            found.append(("trajectory", self.wiring.output))
        if self.gripper is not None and self.wiring.grip is not None:
            found.append(("gripper", self.wiring.grip))
        return found

    def close(self) -> None:
        self.output.close()
        if self._grip is not None:
            self.node.destroy_publisher(self._grip)
            self._grip = self.gripper = None


class Nothing:
    """The way out of a dry run: there is none."""

    def send(self, first: int, points: Array, new: int) -> None:
        del first, points, new

    def problems(self) -> list[str]:
        return []

    def close(self) -> None: ...


def spline_of(first: int, points: Array, dt: float) -> tuple[int, Array, Array, Array]:
    """What an arm does that plays control points [K n] rad from tick `first` on: tick of the first position, and
    positions [K n], velocities and accelerations at the beginning of each tick from there, at rest at the end.

    Between two of them is one cubic, so a quintic through both is the very spline whose limits were certified.
    """
    ended = np.concatenate([points, np.repeat(points[-1:], 2, axis=0)])
    return first + 3, *knots(ended, dt)


class TrajectoryOutput:
    """A JointTrajectory a tick, to a driver that plays it by its times."""

    def __init__(self, node: LifecycleNode, wiring: Wiring, notice: Notice) -> None:
        self.node, self.wiring, self.dt_ns = node, wiring, wiring.dt_ns
        self.splines = wiring.output.points == "spline"
        self._bytes = TrajectoryBytes(wiring.joints, wiring.dt_ns, derivatives=self.splines)
        self._out: Any = _publisher(node, JointTrajectory, wiring.output, notice)

    def send(self, first: int, points: Array, new: int) -> None:
        del new  # the driver finds it by its time
        if not self.splines:
            self._out.publish(self._bytes.write(first * self.dt_ns, points))
        elif len(points):  # one without points is no message for a controller: it plays what it has to its end
            first, q, qd, qdd = spline_of(first, points, self.wiring.tick_s)
            self._out.publish(self._bytes.write_spline(first * self.dt_ns, q, qd, qdd))

    def problems(self) -> list[str]:
        return missing(self.node, "trajectory", self.wiring.output, other=self.wiring.output.node)

    def close(self) -> None:
        self.node.destroy_publisher(self._out)


class Positions:
    """One Float64MultiArray [n] rad a tick, in the wiring's order of joints, played as it comes.

    The driver fills the time between two, and stops by itself when none come. While this process lives, it brings the
    arm to rest itself: the rest of the certified stop is sent before nothing more is.

    Args:
        sleep: passes s; clock: s, of a steady clock; for tests.
    """

    def __init__(
        self, node: LifecycleNode, wiring: Wiring, notice: Notice, *, sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.node, self.wiring, self.tick_s, self.sleep, self.clock = node, wiring, wiring.tick_s, sleep, clock
        self.timeout_s, self._sent = wiring.output.timeout_s, -math.inf  # s, when the last one went out
        self._out: Any = _publisher(node, Float64MultiArray, wiring.output, notice)
        n = len(wiring.joints)
        names = MultiArrayDimension(label=",".join(wiring.joints), size=n, stride=n)  # for people: drivers ignore it
        self._layout = MultiArrayLayout(dim=[names])
        self._left: Array = np.zeros((0, n))  # of the stop

    def send(self, first: int, points: Array, new: int) -> None:
        del first
        if len(points):
            self._publish(points[new])
            self._left = points[new + 1 :]
            return
        left, self._left = self._left, self._left[:0]
        for q in left:
            self.sleep(self.tick_s)
            if self.clock() - self._sent > self.timeout_s:
                return  # the driver has stopped by itself, somewhere else
            self._publish(q)

    def problems(self) -> list[str]:
        return missing(self.node, "trajectory", self.wiring.output, other=self.wiring.output.node)

    def close(self) -> None:
        self.node.destroy_publisher(self._out)

    def _publish(self, q: Array) -> None:
        self._sent = self.clock()
        self._out.publish(Float64MultiArray(layout=self._layout, data=q.tolist()))


class Goals:
    """Trajectories as goals of FollowJointTrajectory, `rate_hz` times a second; each replaces the one before.

    Between two goals nothing is lost: commands are for `lead_ticks` later, which is further off than the next goal.
    A goal that the driver rejects, aborts or never answers is a fault, and so is the newest one being canceled.

    Args:
        fault: called with a sentence when the driver gives up.
        client: (node, type, name) → action client; for tests.
    """

    def __init__(self, node: LifecycleNode, wiring: Wiring, fault: Tell, *, client: Any = None) -> None:
        if client is None:
            from rclpy.action import ActionClient as client
        self.wiring, self.fault, self.type = wiring, fault, action_type()
        self.every = max(1, round(1 / (wiring.output.rate_hz * wiring.tick_s)))
        self._client: Any = client(node, self.type, wiring.output.name)
        self._number, self._due = 0, 0  # of goals; tick of the next one
        self._unanswered: dict[int, int] = {}  # number → tick

    def send(self, first: int, points: Array, new: int) -> None:
        tick = first + new
        if not len(points):  # the end of an episode: what was not answered belongs to it
            self._unanswered.clear()
        if not len(points) or self._due - self.every <= tick < self._due:
            return  # the last goal ends in the certified stop
        self._due, self._number = tick + self.every, self._number + 1
        late = [n for n, sent in self._unanswered.items() if (tick - sent) * self.wiring.tick_s > ANSWER_S]
        if late:
            self._unanswered.clear()
            self.fault(f"driver: goal {late[0]} on {self.wiring.output.name!r} has had no answer for {ANSWER_S} s")
            return
        self._unanswered[self._number] = tick
        goal, dt = self.type.Goal(), self.wiring.dt_ns
        if self.wiring.output.points == "spline":
            first, q, qd, qdd = spline_of(first, points, self.wiring.tick_s)
            goal.trajectory = messages.spline(self.wiring.joints, first * dt, q, qd, qdd, dt)
        else:
            goal.trajectory = messages.trajectory(self.wiring.joints, first * dt, points, dt)
        self._client.send_goal_async(goal).add_done_callback(partial(self._answered, self._number))

    def problems(self) -> list[str]:
        if self._client.server_is_ready():
            return []
        return [f"trajectory: no action server {self.wiring.output.name!r}; is the controller running?"]

    def close(self) -> None:
        self._client.destroy()

    def _answered(self, number: int, future: Any) -> None:
        handle = future.result()
        self._unanswered.pop(number, None)
        if handle.accepted:
            handle.get_result_async().add_done_callback(partial(self._ended, number))
        else:
            self.fault(f"driver: goal {number} on {self.wiring.output.name!r} was rejected")

    def _ended(self, number: int, future: Any) -> None:
        done = future.result()
        if done.status == ABORTED or (done.status == CANCELED and number == self._number):
            how = "aborted" if done.status == ABORTED else "canceled by somebody"
            said = getattr(done.result, "error_string", "")
            self.fault(f"driver: goal {number} on {self.wiring.output.name!r} was {how}{f': {said}' if said else ''}")


def action_type() -> Any:
    """control_msgs/action/FollowJointTrajectory, which a ROS 2 installation brings and no wheel does.

    Raises:
        WiringError: it cannot be imported; says what to source.
    """
    try:
        from control_msgs.action import FollowJointTrajectory
    except ImportError as error:
        raise WiringError(
            f"topics.trajectory: type action needs control_msgs ({error}), which is in no wheel: install it with "
            "`sudo apt install ros-$ROS_DISTRO-control-msgs`, `source /opt/ros/$ROS_DISTRO/setup.bash` and start the "
            "node again. Or use type trajectory, which needs nothing."
        ) from error
    return FollowJointTrajectory


def output_of(node: LifecycleNode, wiring: Wiring, *, notice: Notice, fault: Tell) -> Output:
    """The way to the driver that the wiring names.

    Args:
        notice: called when a node subscribes that cannot hear us.
        fault: called with a sentence when the driver gives up.
    """
    if wiring.output.type == "action":
        return Goals(node, wiring, fault)
    return (Positions if wiring.output.type == "positions" else TrajectoryOutput)(node, wiring, notice)


def _publisher(node: LifecycleNode, kind: type, topic: Topic, notice: Notice) -> Any:
    events = on_publisher(notice)
    return node.create_lifecycle_publisher(kind, topic.name, profile_of(topic), event_callbacks=events)

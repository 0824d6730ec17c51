"""Message types that carry commands to an arm's driver. robopolicy.real.ros2.trajectory_stream decides what is sent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from action_msgs.msg import GoalStatus
from rclpy.event_handler import PublisherEventCallbacks
from rclpy.lifecycle import LifecycleNode
from rclpy.serialization import deserialize_message
from std_msgs.msg import Float64MultiArray, MultiArrayDimension, MultiArrayLayout
from trajectory_msgs.msg import JointTrajectory

from robopolicy.real.ros2.cdr import TrajectoryBytes
from robopolicy.real.ros2.qos import bystanders, missing, profile_of
from robopolicy.real.ros2.wiring import Topic, Wiring, WiringError
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.motion import knots

OnFailure = Callable[[str], None]  # takes a sentence about a failure of the driver
OnMismatch = Callable[[], None]  # called when a node is found whose quality of service does not fit

ANSWER_S = 0.2  # s that a driver may take to answer a goal
ABORTED, CANCELED = GoalStatus.STATUS_ABORTED, GoalStatus.STATUS_CANCELED


class Output:
    """Send commands to the driver. This one sends none: a dry run."""

    def send(self, first: int, points: Array, new: int) -> None:
        """Send control points [K n] rad, one a tick from tick `first` on; K = 0 ends the stream.

        Args:
            points: commands that were sent before, the newest command, then its certified stop.
            new: index of the newest command in `points`.
        """

    def problems(self) -> list[str]:
        """List why no command would arrive, one sentence each."""
        return []

    def bystanders(self) -> list[str]:
        """List nodes that subscribe to commands and cannot receive them, one sentence each."""
        return []

    def close(self) -> None:
        """Remove the publisher or client."""


class TopicOutput(Output):
    """Publish commands on the wiring's topic."""

    kind: type  # of the messages

    def __init__(self, node: LifecycleNode, wiring: Wiring, on_mismatch: OnMismatch) -> None:
        self.node, self.wiring = node, wiring
        self._out: Any = make_publisher(node, self.kind, wiring.output, on_mismatch)

    def problems(self) -> list[str]:
        return missing(self.node, "trajectory", self.wiring.output, other=self.wiring.output.node)

    def bystanders(self) -> list[str]:
        return bystanders(self.node, "trajectory", self.wiring.output, publishes=True)

    def close(self) -> None:
        self.node.destroy_publisher(self._out)


def spline_of(first: int, points: Array, dt: float) -> tuple[int, Array, Array, Array]:
    """Sample the spline of control points [K n] rad from tick `first` on.

    Returns the tick of the first position, and positions [K n] rad, velocities and accelerations at the beginning of
    each tick from there, at rest at the end. Between two of them is one cubic, so a quintic through both is the very
    spline whose limits were certified.
    """
    ended = np.concatenate([points, np.repeat(points[-1:], 2, axis=0)])
    return first + 3, *knots(ended, dt)


class DriverTrajectory:
    """Write JointTrajectory messages as the driver of a wiring plays them."""

    def __init__(self, wiring: Wiring) -> None:
        self.tick_s, self.dt_ns, self.splines = wiring.tick_s, wiring.dt_ns, wiring.output.points == "spline"
        self._bytes = TrajectoryBytes(wiring.joints, wiring.dt_ns, derivatives=self.splines)

    def write(self, first: int, points: Array) -> bytes:
        """Return the message of control points [K n] rad, the first in tick `first`."""
        first, *samples = spline_of(first, points, self.tick_s) if self.splines else (first, points)
        return self._bytes.write(first * self.dt_ns, *samples)


class TrajectoryOutput(TopicOutput):
    """Send a JointTrajectory every tick, to a driver that plays it by its times."""

    kind = JointTrajectory

    def __init__(self, node: LifecycleNode, wiring: Wiring, on_mismatch: OnMismatch) -> None:
        super().__init__(node, wiring, on_mismatch)
        self._trajectory = DriverTrajectory(wiring)

    def send(self, first: int, points: Array, new: int) -> None:
        del new  # the driver finds it by its time
        if len(points) or not self._trajectory.splines:  # a controller takes no message without points: it plays on
            self._out.publish(self._trajectory.write(first, points))


class PositionOutput(TopicOutput):
    """Send a Float64MultiArray [n] rad every tick, in the wiring's order of joints, played as it comes.

    The driver interpolates between two messages, and stops by itself when none come. At the end of an episode the rest
    of the certified stop is sent, so that a living process brings the arm to rest itself.

    Args:
        sleep: passes s; clock: s, of a steady clock; for tests.
    """

    kind = Float64MultiArray

    def __init__(
        self, node: LifecycleNode, wiring: Wiring, on_mismatch: OnMismatch, *,
        sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        super().__init__(node, wiring, on_mismatch)
        self.tick_s, self.sleep, self.clock, n = wiring.tick_s, sleep, clock, len(wiring.joints)
        self.timeout_s, self._sent = wiring.output.timeout_s, -math.inf  # s, when the last one went out
        names = MultiArrayDimension(label=",".join(wiring.joints), size=n, stride=n)  # for readers: drivers ignore it
        self._layout = MultiArrayLayout(dim=[names])
        self._left: Array = np.zeros((0, n))  # of the stop [K n] rad

    def send(self, first: int, points: Array, new: int) -> None:
        del first
        if len(points):
            self._publish(points[new])
            self._left = points[new + 1 :]
            return
        left, self._left, due = self._left, self._left[:0], self._sent
        for q in left:
            due = max(due + self.tick_s, now := self.clock())  # one a cycle of the driver: none is left out
            self.sleep(due - now)
            if self.clock() - self._sent > self.timeout_s:
                return  # the driver has stopped by itself, somewhere else
            self._publish(q)

    def _publish(self, q: Array) -> None:
        self._sent = self.clock()
        self._out.publish(Float64MultiArray(layout=self._layout, data=q.tolist()))


class ActionOutput(Output):
    """Send trajectories as goals of FollowJointTrajectory, `rate_hz` times a second; each replaces the one before.

    No command is lost between two goals: commands are for `lead_ticks` later, which is after the next goal.
    A goal that the driver rejects, aborts or never answers is a fault, and so is the newest one being canceled.

    Args:
        on_failure: called with a sentence when the driver gives up.
        client: (node, type, name) → action client; for tests.
    """

    def __init__(self, node: LifecycleNode, wiring: Wiring, on_failure: OnFailure, *, client: Any = None) -> None:
        if client is None:
            from rclpy.action import ActionClient as client
        self.wiring, self.on_failure = wiring, on_failure
        self.type = action_type("FollowJointTrajectory", "topics.trajectory")
        self.every, self._trajectory = wiring.output.every(wiring.tick_s), DriverTrajectory(wiring)
        self._client: Any = client(node, self.type, wiring.output.name)
        self._number, self._due = 0, 0  # of goals; tick of the next one
        self._unanswered: dict[int, int] = {}  # number → tick

    def send(self, first: int, points: Array, new: int) -> None:
        tick = first + new
        if not len(points):  # the end of an episode, which open answers belong to
            self._unanswered.clear()
        if not len(points) or self._due - self.every <= tick < self._due:
            return  # the last goal ends in the certified stop
        self._due, self._number = tick + self.every, self._number + 1
        overdue = [n for n, sent in self._unanswered.items() if (tick - sent) * self.wiring.tick_s > ANSWER_S]
        if overdue:
            self._unanswered.clear()
            self._fail(overdue[0], f"has had no answer for {ANSWER_S} s")
            return
        self._unanswered[self._number] = tick
        goal = self.type.Goal()
        goal.trajectory = deserialize_message(self._trajectory.write(first, points), JointTrajectory)
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
            self._fail(number, "was rejected")

    def _ended(self, number: int, future: Any) -> None:
        done = future.result()
        if done.status == ABORTED or (done.status == CANCELED and number == self._number):
            how = "aborted" if done.status == ABORTED else "canceled by another client"
            said = getattr(done.result, "error_string", "")
            self._fail(number, f"was {how}{f': {said}' if said else ''}")

    def _fail(self, number: int, how: str) -> None:
        self.on_failure(f"driver: goal {number} on {self.wiring.output.name!r} {how}")


def action_type(name: str, key: str) -> Any:
    """Import an action of control_msgs, which is in no wheel.

    Raises:
        WiringError: it cannot be imported; says what to source. `key`: of the wiring that asks for it.
    """
    try:
        from control_msgs import action
    except ImportError as error:
        raise WiringError(
            f"{key}: this type needs control_msgs ({error}). `sudo apt install ros-$ROS_DISTRO-control-msgs`, `source "
            "/opt/ros/$ROS_DISTRO/setup.bash` and start the node again; or use type trajectory, or opening"
        ) from error
    return getattr(action, name)


def output_of(node: LifecycleNode, wiring: Wiring, *, on_mismatch: OnMismatch, on_failure: OnFailure) -> Output:
    """Build the output that the wiring names.

    Args:
        on_mismatch, on_failure: see OnMismatch and OnFailure.
    """
    if wiring.output.type == "action":
        return ActionOutput(node, wiring, on_failure)
    return (PositionOutput if wiring.output.type == "positions" else TrajectoryOutput)(node, wiring, on_mismatch)


def make_publisher(node: LifecycleNode, kind: type, topic: Topic, on_mismatch: OnMismatch) -> Any:
    """Create a publisher of commands, which is silent unless the node is active."""
    events = PublisherEventCallbacks(incompatible_qos=lambda _: on_mismatch(), use_default_callbacks=False)
    return node.create_lifecycle_publisher(kind, topic.name, profile_of(topic), event_callbacks=events)

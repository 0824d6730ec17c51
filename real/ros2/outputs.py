"""Ways to tell an arm's driver where to go. What is sent is decided elsewhere (real.ros2.session)."""

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
from std_msgs.msg import Float64MultiArray, MultiArrayDimension, MultiArrayLayout
from trajectory_msgs.msg import JointTrajectory

from real.ros2 import messages
from real.ros2.cdr import TrajectoryBytes
from real.ros2.qos import on_publisher, profile_of
from real.ros2.wiring import Wiring, WiringError

Array = NDArray[np.float64]
Tell = Callable[[str], None]  # takes a sentence about what is wrong with the driver

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


class Trajectories:
    """A JointTrajectory a tick, to a driver that plays it by its times."""

    def __init__(self, node: LifecycleNode, wiring: Wiring, refuse: Tell) -> None:
        self.node, self.dt_ns, self._bytes = node, wiring.dt_ns, TrajectoryBytes(wiring.joints, wiring.dt_ns)
        self._out: Any = _publisher(node, JointTrajectory, wiring, refuse)

    def send(self, first: int, points: Array, new: int) -> None:
        del new  # the driver finds it by its time
        self._out.publish(self._bytes.write(first * self.dt_ns, points))

    def problems(self) -> list[str]:
        return []

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
        self, node: LifecycleNode, wiring: Wiring, refuse: Tell, *, sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.node, self.tick_s, self.sleep, self.clock = node, wiring.tick_s, sleep, clock
        self.timeout_s, self._sent = wiring.output.timeout_s, -math.inf  # s, when the last one went out
        self._out: Any = _publisher(node, Float64MultiArray, wiring, refuse)
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
        return []

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


def output_of(node: LifecycleNode, wiring: Wiring, *, refuse: Tell, fault: Tell) -> Output:
    """What the wiring asks for.

    Args:
        refuse: called with a sentence when a quality of service does not fit.
        fault: called with a sentence when the driver gives up.
    """
    if wiring.output.type == "action":
        return Goals(node, wiring, fault)
    return (Positions if wiring.output.type == "positions" else Trajectories)(node, wiring, refuse)


def _publisher(node: LifecycleNode, kind: type, wiring: Wiring, refuse: Tell) -> Any:
    topic = wiring.output
    events = on_publisher("trajectory", refuse)
    return node.create_lifecycle_publisher(kind, topic.name, profile_of(topic), event_callbacks=events)

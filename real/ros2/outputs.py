"""Message types that carry commands to an arm's driver. robopolicy.real.ros2.trajectory_stream decides what is sent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from rclpy.lifecycle import LifecycleNode
from std_msgs.msg import Float64MultiArray, MultiArrayDimension, MultiArrayLayout
from trajectory_msgs.msg import JointTrajectory

from robopolicy.real.ros2.cdr import TrajectoryBytes
from robopolicy.real.ros2.qos import missing, on_publisher, profile_of
from robopolicy.real.ros2.wiring import Topic, Wiring
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.motion import knots

OnFailure = Callable[[str], None]  # takes a sentence about a failure of the driver
OnMismatch = Callable[[], None]  # called when a node is found whose quality of service does not fit


class Output(Protocol):
    """Send commands to the driver."""

    def send(self, first: int, points: Array, new: int) -> None:
        """Send control points [K n] rad, one a tick from tick `first` on; K = 0 ends the stream.

        Args:
            points: commands that were sent before, the newest command, then its certified stop.
            new: index of the newest command in `points`.
        """
        ...

    def problems(self) -> list[str]:
        """List why no command would arrive, one sentence each."""
        ...

    def close(self) -> None: ...


class NoOutput:
    """Send nothing: a dry run."""

    def send(self, first: int, points: Array, new: int) -> None:
        del first, points, new

    def problems(self) -> list[str]:
        return []

    def close(self) -> None: ...


def spline_of(first: int, points: Array, dt: float) -> tuple[int, Array, Array, Array]:
    """Sample the spline of control points [K n] rad from tick `first` on.

    Returns the tick of the first position, and positions [K n] rad, velocities and accelerations at the beginning of
    each tick from there, at rest at the end. Between two of them is one cubic, so a quintic through both is the very
    spline whose limits were certified.
    """
    ended = np.concatenate([points, np.repeat(points[-1:], 2, axis=0)])
    return first + 3, *knots(ended, dt)


class TrajectoryOutput:
    """Send a JointTrajectory every tick, to a driver that plays it by its times."""

    def __init__(self, node: LifecycleNode, wiring: Wiring, on_mismatch: OnMismatch) -> None:
        self.node, self.wiring, self.dt_ns = node, wiring, wiring.dt_ns
        self.splines = wiring.output.points == "spline"
        self._bytes = TrajectoryBytes(wiring.joints, wiring.dt_ns, derivatives=self.splines)
        self._out: Any = make_publisher(node, JointTrajectory, wiring.output, on_mismatch)

    def send(self, first: int, points: Array, new: int) -> None:
        del new  # the driver finds it by its time
        if not self.splines:
            self._out.publish(self._bytes.write(first * self.dt_ns, points))
        elif len(points):  # a controller takes no message without points: it plays the last trajectory to its end
            first, q, qd, qdd = spline_of(first, points, self.wiring.tick_s)
            self._out.publish(self._bytes.write_spline(first * self.dt_ns, q, qd, qdd))

    def problems(self) -> list[str]:
        return missing(self.node, "trajectory", self.wiring.output, other=self.wiring.output.node)

    def close(self) -> None:
        self.node.destroy_publisher(self._out)


class PositionOutput:
    """Send a Float64MultiArray [n] rad every tick, in the wiring's order of joints, played as it comes.

    The driver interpolates between two messages, and stops by itself when none come. At the end of an episode the rest
    of the certified stop is sent, so that a living process brings the arm to rest itself.

    Args:
        sleep: passes s; clock: s, of a steady clock; for tests.
    """

    def __init__(
        self, node: LifecycleNode, wiring: Wiring, on_mismatch: OnMismatch, *,
        sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.node, self.wiring, self.tick_s, self.sleep, self.clock = node, wiring, wiring.tick_s, sleep, clock
        self.timeout_s, self._sent = wiring.output.timeout_s, -math.inf  # s, when the last one went out
        self._out: Any = make_publisher(node, Float64MultiArray, wiring.output, on_mismatch)
        n = len(wiring.joints)
        names = MultiArrayDimension(label=",".join(wiring.joints), size=n, stride=n)  # for readers: drivers ignore it
        self._layout = MultiArrayLayout(dim=[names])
        self._left: Array = np.zeros((0, n))  # of the stop [K n] rad

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


def make_publisher(node: LifecycleNode, kind: type, topic: Topic, on_mismatch: OnMismatch) -> Any:
    """Create a publisher of commands, which is silent unless the node is active."""
    events = on_publisher(on_mismatch)
    return node.create_lifecycle_publisher(kind, topic.name, profile_of(topic), event_callbacks=events)

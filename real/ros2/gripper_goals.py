"""Openings as goals of control_msgs/GripperCommand, for grippers that take no stream (Franka's hand)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from rclpy.lifecycle import LifecycleNode

from robopolicy.real.ros2.channels import GripperTopic
from robopolicy.real.ros2.outputs import OnFailure, action_type

ANSWER_S = 1.0  # s that a gripper may take to answer a goal, and to end a canceled one
STEP = 0.001  # m: openings nearer to the last goal than this need no new one


class GripperGoals:
    """Send one goal at a time: a new opening cancels the running goal and follows when that has ended.

    A gripper that closes on an object aborts its goal in some drivers, so an aborted goal is no fault: the measured
    opening says what it holds. A rejected goal, one without an answer, and a canceled one that goes on are faults.

    Args:
        on_failure: called with a sentence when the gripper gives up.
        client: (node, type, name) → action client; clock: s, of a steady clock; for tests.

    Raises:
        WiringError: control_msgs is not there; says what to source.
    """

    def __init__(
        self, node: LifecycleNode, topic: GripperTopic, on_failure: OnFailure, *, client: Any = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        if client is None:
            from rclpy.action import ActionClient as client
        self.topic, self.on_failure, self.clock = topic, on_failure, clock
        self.type = action_type("GripperCommand", "topics.gripper")
        self._client: Any = client(node, self.type, topic.name)
        self._goal = math.nan  # m, of the newest goal
        self._asked = math.inf  # s, when a goal was sent or canceled that has had no answer
        self._handle: Any = None  # of the goal that runs
        self._failed = False  # the newest goal was rejected, or had no answer

    def begin(self) -> None:
        """Begin an episode, in which a goal that failed is sent again."""
        if self._failed:
            self._goal, self._failed = math.nan, False

    def publish(self, opening: float) -> None:
        """Take the wanted opening [m]; called again and again."""
        if self.clock() - self._asked > ANSWER_S:
            self._asked = math.inf
            late, self._failed = f"has not answered a goal for {ANSWER_S} s", self._handle is None
            if self._handle is not None:
                late = f"has not ended the canceled goal of {self._goal:.3f} m within {ANSWER_S} s"
            self.on_failure(f"gripper: {self.topic.name!r} {late}")
            return
        if self._asked < math.inf or abs(opening - self._goal) <= STEP:
            return
        self._asked = self.clock()
        if self._handle is not None:
            self._handle.cancel_goal_async()  # its end comes as its result
            return
        self._goal = opening
        goal = self.type.Goal()
        goal.command.position, goal.command.max_effort = opening * self.topic.factor, float(self.topic.max_effort or 0)
        self._client.send_goal_async(goal).add_done_callback(partial(self._answered, opening))

    def problems(self) -> list[str]:
        """List why no goal would arrive, one sentence each."""
        if self._client.server_is_ready():
            return []
        return [f"gripper: no action server {self.topic.name!r}; is the gripper's driver running?"]

    def close(self) -> None:
        """Remove the client."""
        self._client.destroy()

    def _answered(self, opening: float, future: Any) -> None:
        self._asked, handle = math.inf, future.result()
        if not handle.accepted:
            self._failed = True
            self.on_failure(f"gripper: the goal of {opening:.3f} m on {self.topic.name!r} was rejected")
            return
        self._handle = handle
        handle.get_result_async().add_done_callback(partial(self._ended, handle))

    def _ended(self, handle: Any, future: Any) -> None:
        del future
        if handle is self._handle:
            self._handle, self._asked = None, math.inf

"""Publishers and clients of a node that can move the arm or its gripper. In a dry run there are none."""

from __future__ import annotations

import time
from typing import Any

from rclpy.lifecycle import LifecycleNode
from std_msgs.msg import Bool, Float64

from robopolicy.real.ros2.command_sources import OtherSources
from robopolicy.real.ros2.gripper import Gripper
from robopolicy.real.ros2.gripper_goals import GripperGoals
from robopolicy.real.ros2.outputs import OnFailure, OnMismatch, Output, make_publisher, output_of
from robopolicy.real.ros2.qos import bystanders, mismatches, missing
from robopolicy.real.ros2.wiring import Topic, Wiring
from robopolicy.real.safety import Mode


class Commands:
    """Send commands to the arm's driver and to the gripper's.

    Args:
        dry_run: make no publisher and no client of commands.
        on_mismatch: called when a node subscribes with a quality of service that does not fit.
        on_failure: called with a sentence when the arm's driver gives up; `on_gripper_failure`: when the gripper does.
    """

    def __init__(
        self, node: LifecycleNode, wiring: Wiring, *, dry_run: bool, on_mismatch: OnMismatch, on_failure: OnFailure,
        on_gripper_failure: OnFailure,
    ) -> None:  # fmt: skip
        self.node = node
        self.others = None if dry_run else OtherSources(node, wiring)
        self.output = Output()
        self.gripper: Gripper | None = None
        self._grip: Any = None
        self._goals: GripperGoals | None = None
        if dry_run:
            return
        self.output = output_of(node, wiring, on_mismatch=on_mismatch, on_failure=on_failure)
        if (topic := wiring.grip) is not None and topic.type == "gripper_command":
            self._goals = GripperGoals(node, topic, on_gripper_failure)
            self.gripper = Gripper(topic, self._goals.publish)
        elif topic is not None:
            self._grip = make_publisher(node, Float64, topic, on_mismatch)
            self.gripper = Gripper(topic, lambda opening: self._grip.publish(Float64(data=opening)))

    def begin(self) -> None:
        """Prepare the gripper for an episode."""
        if self.gripper is not None:
            self.gripper.begin()
        if self._goals is not None:
            self._goals.begin()

    def grip(self, opening: float, measured: float, mode: Mode) -> None:
        """Send the wanted opening [m] of this tick, where the robot has a gripper; `measured`: m."""
        if self.gripper is not None:
            self.gripper.want(opening, measured)
            self.gripper.tick(mode, measured, time.monotonic())

    def problems(self) -> list[str]:
        """List why commands would not arrive, or not alone, one sentence each; in a dry run there are none."""
        found = [*self.output.problems(), *(self.others.problems() if self.others is not None else ())]
        if self._goals is not None:
            found += self._goals.problems()
        elif self.gripper is not None:
            topic = self.gripper.topic
            if topic.node:
                found += missing(self.node, "gripper", topic, other=topic.node)
            else:  # it may come later, and receives the last opening then
                found += mismatches(self.node, "gripper", topic, publishes=True)
        return found

    def newcomers(self, now: float) -> list[str]:
        """List nodes that can command since the arm was started, at `now` s of our steady clock; none in a dry run."""
        return [] if self.others is None else self.others.newcomers(now)

    def bystanders(self) -> list[str]:
        """List nodes that subscribe to commands and cannot receive them, one sentence each."""
        if self.gripper is None or self._goals is not None:
            return self.output.bystanders()
        return self.output.bystanders() + bystanders(self.node, "gripper", self.gripper.topic, publishes=True)

    def close(self) -> None:
        self.output.close()
        if self._goals is not None:
            self._goals.close()
        if self._grip is not None:
            self.node.destroy_publisher(self._grip)
        self._grip = self._goals = self.gripper = None


class InterventionPublisher:
    """Publish whether a human drives, for bags. It cannot move the arm, and so exists in a dry run too."""

    def __init__(self, node: LifecycleNode, topic: Topic, on_mismatch: OnMismatch) -> None:
        self.node, self.every = node, 1 / topic.rate_hz
        self._out: Any = make_publisher(node, Bool, topic, on_mismatch)
        self._last: tuple[bool, float] | None = None  # the last message, and s when it was sent

    def tick(self, driver: str, now: float) -> None:
        """Publish at once where the driver changes, and again at the topic's rate."""
        human = driver != "policy"
        if self._last is None or self._last[0] != human or now - self._last[1] > self.every:
            self._last = human, now
            self._out.publish(Bool(data=human))

    def close(self) -> None:
        self.node.destroy_publisher(self._out)

"""Commands as goals of a controller's FollowJointTrajectory action."""

from __future__ import annotations

from functools import partial
from typing import Any

from action_msgs.msg import GoalStatus
from rclpy.lifecycle import LifecycleNode
from rclpy.serialization import deserialize_message
from trajectory_msgs.msg import JointTrajectory

from robopolicy.real.ros2.outputs import DriverTrajectory, OnFailure, Output
from robopolicy.real.ros2.wiring import Wiring, WiringError
from robopolicy.real.safety.array_ops import Array

ANSWER_S = 0.2  # s that a driver may take to answer a goal
ABORTED, CANCELED = GoalStatus.STATUS_ABORTED, GoalStatus.STATUS_CANCELED


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
        self.wiring, self.on_failure, self.type = wiring, on_failure, action_type()
        self.every = wiring.output.every(wiring.tick_s)
        self._trajectory = DriverTrajectory(wiring)
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
            self.on_failure(
                f"driver: goal {overdue[0]} on {self.wiring.output.name!r} has had no answer for {ANSWER_S} s"
            )
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
            self.on_failure(f"driver: goal {number} on {self.wiring.output.name!r} was rejected")

    def _ended(self, number: int, future: Any) -> None:
        done = future.result()
        if done.status == ABORTED or (done.status == CANCELED and number == self._number):
            how = "aborted" if done.status == ABORTED else "canceled by another client"
            said = getattr(done.result, "error_string", "")
            self.on_failure(
                f"driver: goal {number} on {self.wiring.output.name!r} was {how}{f': {said}' if said else ''}"
            )


def action_type() -> Any:
    """Import control_msgs/action/FollowJointTrajectory, which comes with a ROS 2 installation and with no wheel.

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

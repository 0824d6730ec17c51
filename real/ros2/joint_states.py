"""States of the arm and of its gripper, as they are found: in one message or apart, among joints of others."""

from __future__ import annotations

from collections.abc import Sequence

from sensor_msgs.msg import CompressedImage, Image, JointState

from robopolicy.real.ros2 import messages
from robopolicy.real.ros2.remote_arm import RemoteArm
from robopolicy.real.ros2.wiring import GRIPPER, Wiring

ARM = "joint_states"  # role of a topic, which may have the name of the gripper's


class JointStates:
    """Hand states to the remote arm, and count messages of others.

    Args:
        wiring: names of the joints. arm: takes the states.
    """

    def __init__(self, wiring: Wiring, arm: RemoteArm) -> None:
        self.wiring, self.arm = wiring, arm
        self.reader = messages.StateReader(wiring, arm.chain.profile)
        self._others: dict[str, list[str]] = {}  # joints in the newest message of others, by role

    def wants(self, role: str, message: JointState) -> bool:
        """Whether a message is of the arm (or of the gripper); others are counted."""
        if self.reader.has_arm(message) if role == ARM else self.reader.has_gripper(message):
            return True
        self.arm.counts[f"{role}_{'ignored' if message.name else 'empty'}"] += 1
        if message.name or role not in self._others:
            self._others[role] = list(message.name)[:16]
        return False

    def on_state(self, message: JointState, at: float) -> None:
        """Take a state of the arm, received at `at` s of our steady clock."""
        try:
            state = self.reader.read(message)
        except messages.NotFiniteError:
            self.arm.on_unreadable()
            raise
        self.arm.on_state(state, stamp_of(message), at)

    def on_gripper(self, message: JointState, at: float) -> None:
        """Take an opening of a gripper that comes in messages of its own."""
        self.arm.stamps[GRIPPER].take(stamp_of(message), at)
        self.reader.read_gripper(message)
        self.arm.hear(GRIPPER, at)

    def unheard(self, heard: Sequence[str]) -> list[str]:
        """List why there is no state where there are messages, one sentence each; `heard`: roles with a message."""
        wanted = {ARM: list(self.wiring.joints), GRIPPER: list(self.wiring.gripper)}
        return [
            f"{role}: messages on {self.wiring.topic(role).name!r} name none of {wanted[role]}; the newest names "
            f"{names}. Is this another arm, or has a prefix changed?"
            for role, names in self._others.items()
            if role not in heard
        ]


def stamp_of(message: JointState | Image | CompressedImage) -> float:
    """Return the stamp of a message in s."""
    return messages.to_ns(message.header.stamp) * 1e-9

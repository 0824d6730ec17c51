"""The policy node's inputs: messages are checked, and go to the remote arm and to the policy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.lifecycle import LifecycleNode
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Bool, String

from robopolicy.core.errors import RobopolicyError
from robopolicy.real.control.depth_cameras import Moment
from robopolicy.real.control.joint_order import JointOrder
from robopolicy.real.ros2 import messages
from robopolicy.real.ros2.clock import StampError
from robopolicy.real.ros2.depth_inputs import CloudInputs, DepthInputs
from robopolicy.real.ros2.images import ImageReader, message_type
from robopolicy.real.ros2.joint_states import ARM, JointStates, stamp_of
from robopolicy.real.ros2.outputs import OnMismatch
from robopolicy.real.ros2.publishers import ALIVE, Endpoint, PublisherError, Publishers, gid_of, with_info
from robopolicy.real.ros2.qos import bystanders, mismatches, profile_of, publishers_heard
from robopolicy.real.ros2.receipts import Receipts
from robopolicy.real.ros2.remote_arm import RemoteArm
from robopolicy.real.ros2.teleop_keys import FRESH, STOPS
from robopolicy.real.ros2.urdf import contradictions
from robopolicy.real.ros2.wiring import GRIPPER, Topic, Wiring
from robopolicy.real.safety import SafetyError


class Inputs(CloudInputs, Protocol):
    """Take the inputs of a policy, and a human's keys."""

    names: tuple[str, ...]  # features that it needs beside the arm's state
    cameras: dict[str, tuple[int, ...]]  # shapes (3, H, W) of the pictures that it needs, by feature
    press: Callable[[str], None] | None  # takes a human's keys, where a human may take over

    def take(self, names: Sequence[str], values: Sequence[float], moment: Moment | None = None, /) -> None: ...
    def take_image(self, key: str, picture: NDArray[np.uint8], /) -> None: ...


class Subscriptions:
    """Subscribe to the inputs of a policy node.

    Args:
        node: which has the subscriptions.
        wiring: names of the topics.
        inputs: takes features, pictures and keys.
        arm: takes states, echoes of the driver and signs of life.
        on_mismatch: called when a node is found whose quality of service does not fit. It may be a bystander; whether
            all needed messages pass, `problems` says.
    """

    def __init__(
        self, node: LifecycleNode, wiring: Wiring, inputs: Inputs, arm: RemoteArm, on_mismatch: OnMismatch
    ) -> None:
        self.node, self.wiring, self.inputs, self.arm = node, wiring, inputs, arm
        self.refused: dict[str, str] = {}  # why the newest message was refused, by source
        self.handled = 0
        self._heard: dict[str, float] = {}  # s of our steady clock of the newest accepted message, by role
        self._publishers: dict[str, Publishers] = {}  # by role
        self.receipts = Receipts()
        self._refused_at: dict[str, float] = {}  # s of our steady clock, by source
        self._connected: dict[str, Topic] = {}  # topics that we hear, by role
        self._entities: list[Any] = []
        self._states = JointStates(wiring, arm)
        self._commands = JointOrder(wiring.joints)
        self._depth = DepthInputs(wiring, inputs, arm)
        self._description: str | None = None  # the arm's URDF
        try:
            self._connect(on_mismatch)
        except BaseException:  # no half configured node hears anything
            self.close()
            raise

    def _connect(self, on_mismatch: OnMismatch) -> None:
        wiring, inputs = self.wiring, self.inputs
        for role, handle in ((ARM, self._states.on_state), (GRIPPER, self._states.on_gripper)):
            wants = partial(self._states.wants, role)
            self._hear(role, JointState, wiring.topics[role], handle, on_mismatch, wants)
        for role, kind, handle in (
            ("joint_commands", JointState, self._on_commanded),
            ("enable", Bool, self._on_enable), ("robot_description", String, self._on_description),
        ):  # fmt: skip
            self._hear(role, kind, wiring.topics[role], handle, on_mismatch)
        if inputs.names:
            self._hear("features", JointState, wiring.topic("features"), self._on_features, on_mismatch)
        if inputs.press is not None:
            self._hear("keys", String, wiring.topic("keys"), self._on_key, on_mismatch)
        for key, shape in inputs.cameras.items():
            camera = wiring.cameras[key]
            handle = partial(self._on_image, key, ImageReader(key, shape, camera))
            self._hear(key, message_type(camera), camera, handle, on_mismatch)
        self._depth.connect(partial(self._hear, on_mismatch=on_mismatch))

    def _hear(
        self, role: str, kind: type, topic: Topic | None, handle: Callable[[Any, float], None], on_mismatch: OnMismatch,
        wants: Callable[[Any], bool] = lambda _: True,
    ) -> None:  # fmt: skip
        """Subscribe; a refusal of `handle` is remembered until a message of that role is accepted.

        Messages that `wants` does not take are of others, who may share the topic.
        """
        if topic is None:
            return
        name = self.node.resolve_topic_name(topic.name)
        publishers = Publishers(role, name, latched=role == "robot_description")
        self._publishers[role] = publishers

        def take(message: Any, info: Any) -> None:
            self.handled += 1
            at = self.receipts.received(info)
            if not wants(message):
                publishers.leave(gid_of(info))
                return
            try:
                self._of_one(publishers, gid_of(info), at)
                handle(message, at)
            except Exception as error:  # no message may end the node
                self._refuse(role, at, error)
                return
            if role not in self.inputs.depths:  # a picture of depth is good once its cloud is
                self._accept(role, at)

        # The event does not name the publisher, which may be a bystander: it is a warning, and no reason to stop.
        events = SubscriptionEventCallbacks(incompatible_qos=lambda _: on_mismatch(), use_default_callbacks=False)
        heard = self.node.create_subscription(
            kind, topic.name, with_info(take), profile_of(topic), event_callbacks=events
        )
        self._entities.append(heard)
        self._connected[role] = topic

    def _accept(self, role: str, at: float) -> None:
        self.refused.pop(role, None)
        self._heard[role] = at

    def _refuse(self, role: str, at: float, error: Exception) -> None:
        known = isinstance(error, RobopolicyError)
        self.refused[role] = str(error) if known else f"{role}: {type(error).__name__}: {error}"
        self._refused_at[role] = at
        self.arm.counts[f"{role}_refused"] += 1
        if isinstance(error, StampError):
            self.arm.counts[f"{role}_{error.reason}"] += 1

    def empty(self, now: float) -> None:
        """Note that all messages were handled that had come by `now` s of our steady clock; collect clouds."""
        self.receipts.empty(now)
        self._depth.collect(self._accept, self._refuse)

    def _of_one(self, publishers: Publishers, gid: bytes | None, at: float) -> None:
        """Raise PublisherError, and stop the arm, where a second publisher speaks while it runs."""
        running = self.arm.running
        try:
            if gid is not None:
                publishers.take(gid, at, running)
            elif running and not publishers.latched and len(self._graph(publishers.role)) > 1:
                raise PublisherError(publishers.second())
        except PublisherError as error:
            self.arm.on_second_publisher(str(error))
            raise

    def _graph(self, role: str) -> list[Endpoint]:
        """Return the publishers of an input that can reach us; others are bystanders."""
        heard = publishers_heard(self.node, self._connected[role])
        return [Endpoint(bytes(end.endpoint_gid), end.node_name) for end in heard]

    def problems(self) -> list[str]:
        """List why the arm may not be started: quality of service, publishers, refused messages, silence."""
        found = [
            m for role, topic in self._connected.items() for m in mismatches(self.node, role, topic, publishes=False)
        ]
        now, dogs = time.monotonic(), self.wiring.watchdogs
        for role in [r for r, at in self._refused_at.items() if not now - at <= ALIVE]:
            self.refused.pop(role, None)  # keys come rarely, and one wrong one must not block a reset for good
        found += [*self.refused.values(), *self._undescribed(), *self._states.unheard(list(self._heard))]
        for publishers in self._publishers.values():
            found += publishers.problems(self._graph(publishers.role), now)
        seen = (*self.inputs.cameras, *self.inputs.depths)
        patience = {"features": dogs["features"], **dict.fromkeys(seen, dogs["images"])}
        patience |= {GRIPPER: dogs[GRIPPER]} if GRIPPER in dogs else {}
        for role, topic in self._connected.items():
            if role not in patience or role in self.refused:
                continue
            if role not in self._heard:
                found.append(f"{role}: nothing has come on {topic.name!r}")
            elif not self.arm.clock.follow:  # the wall clock does not count in simulated time
                age = now - self._heard[role]
                if age > min(patience[role].hold, patience[role].fault):
                    found.append(f"{role}: the newest on {topic.name!r} is {age:.2f} s old")
        return found

    def bystanders(self) -> list[str]:
        """List nodes that publish on an input and cannot reach us, one sentence each."""
        return [
            s for role, topic in self._connected.items() for s in bystanders(self.node, role, topic, publishes=False)
        ]

    def _undescribed(self) -> list[str]:
        """List why the arm's own description contradicts the limits in force, where the wiring has one."""
        topic = self.wiring.topics["robot_description"]
        if topic is None:
            return []
        if self._description is None:
            return [f"robot_description: nothing has come on {topic.name!r}; is robot_state_publisher running?"]
        found = contradictions(self.arm.chain.profile, self._description, self.wiring.joints)
        return [f"robot_description: {problem}" for problem in found]

    def close(self) -> None:
        self._depth.close()
        for subscription in self._entities:
            self.node.destroy_subscription(subscription)
        self._entities, self._connected = [], {}

    # -- messages ---------------------------------------------------------------------------------------------------
    def _on_commanded(self, message: JointState, at: float) -> None:
        q = self._commands.arrange(list(message.name), message.position)
        self.arm.on_commanded(q, stamp_of(message), at, alone=message.header.frame_id == messages.ALONE)

    def _on_features(self, message: JointState, at: float) -> None:
        self.arm.stamps["features"].take(stamp_of(message), at)
        self.inputs.take(list(message.name), message.position, Moment(stamp_of(message), self.arm.log))
        self.arm.hear("features", at)

    def _on_image(self, key: str, reader: ImageReader, message: Image | CompressedImage, at: float) -> None:
        self.arm.stamps[key].take(stamp_of(message), at)
        self.inputs.take_image(key, reader.read(message))
        self.arm.hear(key, at)

    def _on_description(self, message: String, at: float) -> None:
        del at
        self._description = message.data

    def _on_key(self, message: String, at: float) -> None:
        assert self.inputs.press is not None
        if (age := time.monotonic() - at) > FRESH and message.data not in STOPS:
            raise SafetyError(
                f"keys: {message.data[:20]!r} waited {age:.2f} s, expected at most {FRESH} s. Press it again"
            )
        self.inputs.press(message.data)

    def _on_enable(self, message: Bool, at: float) -> None:
        self.arm.on_enable(bool(message.data), at)

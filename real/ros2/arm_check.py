"""Listen to a running arm, for `robopolicy arm check`. Nothing is published."""

from __future__ import annotations

import time
from typing import Any

import rclpy
from rclpy.experimental import EventsExecutor
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_msgs.msg import String

from robopolicy.doctor.checks import Check
from robopolicy.real.ros2.arm_findings import Heard, findings, measured_delay
from robopolicy.real.ros2.channels import LineDelay
from robopolicy.real.ros2.messages import StateReader
from robopolicy.real.ros2.qos import mismatches, missing, profile_of
from robopolicy.real.ros2.spin import start
from robopolicy.real.ros2.wiring import Topic, Wiring


def listen(node: Node, wiring: Wiring, seconds: float) -> tuple[Heard, list[Check]]:
    """Hear a wiring's topics of the arm for so many s; returns the messages, and findings on the graph."""
    heard, reader = Heard(), StateReader(wiring, wiring.profile())
    topics = {t.name: t for role in ("joint_states", "gripper_states") if (t := wiring.topics[role]) is not None}

    def on_state(message: JointState) -> None:
        heard.take(reader, message, time.time())

    def on_description(message: String) -> None:
        heard.description = message.data

    for topic in topics.values():
        node.create_subscription(JointState, topic.name, on_state, profile_of(topic))
    if (described := wiring.topics["robot_description"]) is not None:
        node.create_subscription(String, described.name, on_description, profile_of(described))
    executor: Any = EventsExecutor()
    executor.add_node(node)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        executor.spin_once(timeout_sec=min(left, 0.1))
    checks = [_passes(node, role, wiring.topics[role]) for role in ("joint_states", "robot_description")]
    why = missing(node, "trajectory", wiring.output, other=wiring.output.node)
    checks.append(Check("driver", not why, "; ".join(why) or "listens to commands", "start its controller"))
    executor.remove_node(node)
    executor.shutdown(timeout_sec=1.0)
    return heard, [c for c in checks if c is not None]


def _passes(node: Node, role: str, topic: Topic | None) -> Check | None:
    why = [] if topic is None else mismatches(node, role, topic, publishes=False)
    return Check(f"quality of service of {role}", False, "; ".join(why), "as it says") if why else None


def checks_of(wiring: Wiring, seconds: float) -> tuple[list[Check], LineDelay | None]:
    """Listen to a running arm for so many s; returns how it fits, and the measured delay of its states."""
    own = not rclpy.ok()
    if own:
        start([])
    node = Node("arm_check")
    try:
        heard, graph = listen(node, wiring, seconds)
    finally:
        node.destroy_node()
        if own and rclpy.ok():
            rclpy.shutdown()
    return [*findings(heard, wiring), *graph], measured_delay(heard)

"""Listen to a running arm, for `robopolicy arm check`. Nothing is published."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import rclpy
from rclpy.experimental import EventsExecutor
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_msgs.msg import String

from robopolicy.doctor.checks import Check
from robopolicy.real.ros2.arm_findings import Heard, findings, measured_delay
from robopolicy.real.ros2.arm_publishers import Graph, publisher_findings, role_names
from robopolicy.real.ros2.channels import LineDelay
from robopolicy.real.ros2.joint_states import ARM
from robopolicy.real.ros2.messages import StateReader
from robopolicy.real.ros2.publishers import gid_of, with_info
from robopolicy.real.ros2.qos import mismatches, missing, profile_of
from robopolicy.real.ros2.spin import start
from robopolicy.real.ros2.wiring import GRIPPER, Topic, Wiring

LOOK_S = 0.5  # s between two looks at the graph


def listen(node: Node, wiring: Wiring, seconds: float) -> tuple[Heard, list[Check]]:
    """Hear a wiring's topics of the arm for so many s; returns the messages, and findings on the graph."""
    heard, graph = Heard(), Graph()
    _subscribe(node, wiring, heard)
    executor: Any = EventsExecutor()
    executor.add_node(node)
    now = time.monotonic()
    end, look = now + seconds, now + LOOK_S
    while (left := min(end, look) - time.monotonic()) > 0 or look < end:
        if left > 0:
            executor.spin_once(timeout_sec=min(left, 0.1))
        else:
            graph.look(node, wiring)
            look = time.monotonic() + LOOK_S
    graph.look(node, wiring)
    checks = [_passes(node, role, wiring.topics[role]) for role in ("joint_states", "robot_description")]
    why = missing(node, "trajectory", wiring.output, other=wiring.output.node)
    checks.append(Check("driver", not why, "; ".join(why) or "listens to commands", "start its controller"))
    executor.remove_node(node)
    executor.shutdown(timeout_sec=1.0)
    return heard, [*(c for c in checks if c is not None), *publisher_findings(heard.publishers, graph, wiring)]


def _subscribe(node: Node, wiring: Wiring, heard: Heard) -> None:
    """Subscribe once to each topic of states, and to the arm's description."""
    reader, roles, topics = StateReader(wiring, wiring.profile()), dict[str, set[str]](), dict[str, Topic]()
    for role in role_names(wiring):
        topic = wiring.topic(role)
        name = node.resolve_topic_name(topic.name)
        topics[name] = topic
        roles.setdefault(name, set()).add(role)
    if GRIPPER not in role_names(wiring):  # it comes in the arm's messages
        roles[node.resolve_topic_name(wiring.topic(ARM).name)].add(GRIPPER)

    def on_state(name: str, message: JointState, info: Any) -> None:
        heard.take(reader, message, time.time(), gid=gid_of(info), roles=roles[name])

    def on_description(message: String) -> None:
        heard.description = message.data

    for name, topic in topics.items():
        node.create_subscription(JointState, topic.name, with_info(partial(on_state, name)), profile_of(topic))
    if (described := wiring.topics["robot_description"]) is not None:
        node.create_subscription(String, described.name, on_description, profile_of(described))


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

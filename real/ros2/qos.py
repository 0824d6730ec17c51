"""Quality of service: chosen in the wiring, checked against the nodes on the other side."""

from __future__ import annotations

from typing import Any

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from robopolicy.real.ros2.wiring import Topic


def profile_of(topic: Topic) -> QoSProfile:
    """Keep-last, as deep, reliable and durable as the wiring says."""
    return QoSProfile(
        depth=topic.depth, reliability=ReliabilityPolicy[topic.reliability.upper()],
        durability=DurabilityPolicy[topic.durability.upper()],
    )  # fmt: skip


def mismatches(node: Node, role: str, topic: Topic, *, publishes: bool, other: str = "") -> list[str]:
    """List why no message would pass on `topic`, one sentence for each on the other side; none where it passes for one.

    Args:
        other: name of the node that counts; "": any. The rest are bystanders, which need not receive messages.
    """
    found = []
    for there, why in _endpoints(node, topic, publishes=publishes):
        if other and there.node_name != other:
            continue
        if not why:
            return []
        found.append(f"qos: {role} ({topic.name!r}): {why}. Change topics.{role} in the wiring, or the other side.")
    return found


def missing(node: Node, role: str, topic: Topic, *, other: str = "") -> list[str]:
    """List why messages on `topic` would not reach the node that needs them; empty where they would.

    Args:
        other: name of the node that must subscribe; "": any.
    """
    if found := mismatches(node, role, topic, publishes=True, other=other):
        return found
    heard = [there.node_name for there, _ in _endpoints(node, topic, publishes=True)]
    if other and other not in heard:
        return [f"{role}: node {other!r} (topics.{role}.node) does not listen on {topic.name!r}, found {heard}; "
                "is the driver running?"]  # fmt: skip
    return [] if heard else [f"{role}: no node listens on {topic.name!r}; is the driver running?"]


def bystanders(node: Node, role: str, topic: Topic, *, publishes: bool) -> list[str]:
    """Nodes on the other side of `topic` with which no message passes, one sentence each."""
    return [f"qos: {role} ({topic.name!r}): {why}" for _, why in _endpoints(node, topic, publishes=publishes) if why]


def publishers_heard(node: Node, topic: Topic) -> list[Any]:
    """Return the publishers on `topic` whose messages can pass, as the graph knows them (rclpy's TopicEndpointInfo)."""
    return [other for other, why in _endpoints(node, topic, publishes=False) if not why]


def _endpoints(node: Node, topic: Topic, *, publishes: bool) -> list[tuple[Any, str]]:
    """List the endpoints on the other side of `topic`, and why no message would pass; "" where it would."""
    mine, found, name = profile_of(topic), [], node.resolve_topic_name(topic.name)
    look = node.get_subscriptions_info_by_topic if publishes else node.get_publishers_info_by_topic
    for other in look(name):
        offered, asked = (mine, other.qos_profile) if publishes else (other.qos_profile, mine)
        why = [
            f"{what}: this node has {getattr(mine, what).name}, {other.node_name!r} has "
            f"{getattr(other.qos_profile, what).name}, so no message would pass"
            for what, strong, weak in (
                ("reliability", ReliabilityPolicy.RELIABLE, ReliabilityPolicy.BEST_EFFORT),
                ("durability", DurabilityPolicy.TRANSIENT_LOCAL, DurabilityPolicy.VOLATILE),
            )
            if getattr(asked, what) == strong and getattr(offered, what) == weak
        ]
        found.append((other, "; ".join(why)))
    return found

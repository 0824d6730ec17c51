"""Quality of service: chosen in the wiring, checked against whoever is on the other side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from real.ros2.wiring import Topic

_DURABILITY = {"volatile": DurabilityPolicy.VOLATILE, "transient_local": DurabilityPolicy.TRANSIENT_LOCAL}
_RELIABILITY = {"reliable": ReliabilityPolicy.RELIABLE, "best_effort": ReliabilityPolicy.BEST_EFFORT}


def profile_of(topic: Topic) -> QoSProfile:
    """Keep-last, as deep, reliable and durable as the wiring says."""
    return QoSProfile(
        depth=topic.depth, reliability=_RELIABILITY[topic.reliability], durability=_DURABILITY[topic.durability]
    )


def mismatches(node: Node, role: str, topic: Topic, *, publishes: bool) -> list[str]:
    """Whoever is on the other side of `topic` and cannot be connected with, one sentence each."""
    mine, found = profile_of(topic), []
    if publishes:
        others = node.get_subscriptions_info_by_topic(node.resolve_topic_name(topic.name))
    else:
        others = node.get_publishers_info_by_topic(node.resolve_topic_name(topic.name))
    for other in others:
        offered, asked = (mine, other.qos_profile) if publishes else (other.qos_profile, mine)
        for what, strong, weak in (
            ("reliability", ReliabilityPolicy.RELIABLE, ReliabilityPolicy.BEST_EFFORT),
            ("durability", DurabilityPolicy.TRANSIENT_LOCAL, DurabilityPolicy.VOLATILE),
        ):
            if getattr(asked, what) == strong and getattr(offered, what) == weak:
                here, there = (weak, strong) if publishes else (strong, weak)
                found.append(
                    f"qos: {role} ({topic.name!r}): {what}: this node has {here.name}, {other.node_name!r} has "
                    f"{there.name}, so no message would pass. Change topics.{role} in the wiring, or the other side."
                )
    return found


def on_subscription(role: str, refuse: Callable[[str], None]) -> SubscriptionEventCallbacks:
    """Events that call `refuse` with a sentence when a publisher's quality of service does not fit."""
    return SubscriptionEventCallbacks(incompatible_qos=_teller(role, refuse), use_default_callbacks=False)


def on_publisher(role: str, refuse: Callable[[str], None]) -> PublisherEventCallbacks:
    """The same for a subscription on the other side of what is published."""
    return PublisherEventCallbacks(incompatible_qos=_teller(role, refuse), use_default_callbacks=False)


def _teller(role: str, refuse: Callable[[str], None]) -> Callable[[Any], None]:
    def tell(event: Any) -> None:
        refuse(f"qos: {role}: the other side does not fit in {event.last_policy_kind!s}")

    return tell

"""Reasons not to start that only time or the other side's quality of service gives."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("rclpy")

from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from robopolicy.real.ros2.qos import mismatches
from robopolicy.real.safety import SafetyError
from tests.real.ros2.test_trajectory_stream import WIRING, Wire


def test_an_enable_that_fell_silent_does_not_start_an_arm():
    """It had come, and all else goes on: its age alone is the reason."""
    wire = Wire()
    wire.run(5)
    assert wire.stream.arm.refusals(wire.now) == []
    wire.run(1500, enable=False)  # 6 s
    with pytest.raises(SafetyError, match="enable"):
        wire.stream.start(seed=0, now=wire.now)
    assert len(wire.stream.arm.refusals(wire.now)) == 1
    wire.step()
    wire.stream.start(seed=0, now=wire.now)


class Graph:
    """A node that sees one publisher of this quality of service on every topic."""

    def __init__(self, **qos) -> None:
        self.qos = QoSProfile(depth=1, **qos)

    def resolve_topic_name(self, name: str) -> str:
        return name

    def get_publishers_info_by_topic(self, name: str) -> list:
        return [SimpleNamespace(node_name="other", qos_profile=self.qos)]


VOLATILE, LATCHED = DurabilityPolicy.VOLATILE, DurabilityPolicy.TRANSIENT_LOCAL


@pytest.mark.parametrize(
    ("mine", "theirs", "fits"),
    [("volatile", VOLATILE, True), ("volatile", LATCHED, True), ("transient_local", LATCHED, True),
     ("transient_local", VOLATILE, False)],
)  # fmt: skip
def test_a_publisher_of_another_durability_is_named(mine, theirs, fits):
    """What we want repeated to late-comers must be offered so; other differences connect."""
    topic = replace(WIRING.topic("joint_states"), durability=mine, reliability="reliable")
    node = Graph(durability=theirs, reliability=ReliabilityPolicy.RELIABLE)
    found = mismatches(node, "joint_states", topic, publishes=False)
    assert (not found) == fits and all("durability" in why and "'other'" in why for why in found)

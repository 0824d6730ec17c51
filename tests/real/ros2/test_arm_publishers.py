"""Who publishes a running arm's states: makers' own set-ups pass, a second publisher of the same joints does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy")

from sensor_msgs.msg import JointState

from robopolicy.core.untrusted import read_yaml
from robopolicy.real.ros2 import messages
from robopolicy.real.ros2.arm_findings import Heard, findings
from robopolicy.real.ros2.arm_publishers import Graph, publisher_findings, role_names
from robopolicy.real.ros2.channels import Topic
from robopolicy.real.ros2.command_sources import Commander
from robopolicy.real.ros2.messages import StateReader
from robopolicy.real.ros2.wiring import GRIPPER, load_wiring

MAKERS = Path(__file__).parent / "makers"
UR, FR3 = load_wiring("ur5e"), load_wiring("fr3")
APART = replace(
    UR, gripper={"finger": 1.0}, topics=UR.topics | {GRIPPER: Topic(UR.topic("joint_states").name, 30.0, depth=10)}
)


class Cell:
    """Publishers on the topics of a wiring, for some s."""

    def __init__(self, wiring, seconds: float = 2.0) -> None:
        self.wiring, self.seconds, self.graph, self.plan = wiring, seconds, Graph(), []
        self.home = dict(zip(wiring.joints, wiring.profile().data["home"], strict=True))
        self.topics = {role: wiring.topic(role).name for role in role_names(wiring)}

    def node(
        self, name: str, topic: str, joints: Sequence[str], rate: float, *, begin=0.0, end=None, stays=True, known=True
    ):
        """Add a publisher of these joints [rad, m]; `stays`: it is in the graph at the end."""
        gid = f"{name}{len(self.graph.nodes)}".encode()
        if known:
            self.graph.nodes[gid] = f"/{name}"
        for role in [role for role, its in self.topics.items() if its == topic]:
            self.graph.present.setdefault(role, set()).update({gid} if stays else ())
        end = self.seconds if end is None else end
        self.plan += [(t, topic, gid, list(joints)) for t in np.arange(begin, end - 1e-9, 1 / rate)]
        return self

    def checks(self, *, tells=True) -> dict[str, str]:
        """What fails, with the details; `tells`: rclpy says who sent a message."""
        self.heard, reader = Heard(), StateReader(self.wiring, self.wiring.profile())
        for t, topic, gid, joints in sorted(self.plan):
            roles = {role for role, its in self.topics.items() if its == topic}
            if not roles:
                continue  # nothing subscribes to it
            values = np.array([self.home.get(joint, 0.02) for joint in joints])
            made = messages.joint_state(tuple(joints), round((1000 + t) * 1e9), values, np.zeros(len(joints)))
            self.heard.take(reader, made, 1000.001 + t, gid=gid if tells else None, roles=roles)
        self.heard.description = ""
        every = [
            *findings(self.heard, self.wiring),
            *publisher_findings(self.heard.publishers, self.graph, self.wiring),
        ]
        self.said = {check.name: check.detail for check in every}
        return {c.name: c.detail for c in every if not c.ok and c.name not in ("description", "lead")}


@pytest.mark.parametrize("robot", ["fr3", "ur5e"])
def test_what_a_makers_launch_file_starts_passes(robot):
    wiring = load_wiring(robot)
    cell = Cell(wiring)
    for states in read_yaml(MAKERS / f"{robot}.yaml", error=ValueError)["states"]:
        cell.node("of_the_maker", states["topic"], states["names"], states["rate_hz"])
    assert cell.checks() == {}
    assert "alone speaks of the arm's joints" in cell.said["publishers of joint_states"]


def test_a_broadcaster_a_gripper_and_a_mobile_base_may_share_a_topic():
    cell = Cell(APART)
    name = cell.topics["joint_states"]
    cell.node("joint_state_broadcaster", name, UR.joints[::-1], 500)
    cell.node("gripper_driver", name, ["finger"], 30).node("base", name, ["left_wheel"], 50)
    assert cell.checks() == {}
    assert "'/gripper_driver' (60 messages) alone" in cell.said["publishers of gripper_states"]


def test_a_node_that_merges_states_may_be_the_publisher_of_all():
    cell = Cell(APART)
    cell.node("joint_state_publisher", cell.topics["joint_states"], [*UR.joints, "finger"], 500)
    assert set(cell.checks()) == {"gripper"}, "as it says 500 Hz of a wiring's 30"
    at_its_rate = replace(APART, topics=APART.topics | {GRIPPER: replace(APART.topics[GRIPPER], rate_hz=500.0)})
    cell = Cell(at_its_rate).node("joint_state_publisher", "/joint_states", [*UR.joints, "finger"], 500)
    assert cell.checks() == {}


def test_a_gripper_of_the_merged_topic_says_nothing_of_the_arm():
    """The arm's own topic is another one, so the arm's joints in the merged one are none of ours."""
    apart = replace(FR3, topics=FR3.topics | {GRIPPER: Topic("/joint_states", 30.0, depth=10)})
    cell = Cell(apart).node("joint_state_broadcaster", "/franka/joint_states", FR3.joints, 1000)
    cell.node("joint_state_publisher", "/joint_states", [*FR3.joints, *FR3.gripper], 30)
    assert cell.checks() == {}
    assert len(cell.heard.states) == 2000


def test_a_second_publisher_of_the_arm_is_named_and_what_to_stop():
    cell = Cell(UR).node("joint_state_broadcaster", "/joint_states", UR.joints, 500)
    cell.node("old_driver", "/joint_states", UR.joints, 500)
    found = cell.checks()
    assert set(found) == {"publishers of joint_states", "rate"}
    why = found["publishers of joint_states"]
    assert "found 2: '/joint_state_broadcaster' (1000 messages), '/old_driver' (1000 messages)" in why
    assert "Hz of 500, expected 750 at most" in found["rate"]


@pytest.mark.parametrize(
    ("joints", "rate", "how"),
    [
        ((*UR.joints, "finger"), 10, {}),  # joint_state_publisher of a URDF, beside the broadcaster
        (UR.joints, 1, {"begin": 1.0, "end": 1.1}),  # `ros2 topic pub --once`
        (UR.joints, 100, {"end": 0.5, "stays": False}),  # it has ended since
        (UR.joints[:3], 100, {}),  # half an arm is refused, and has a publisher all the same
    ],
)
def test_a_second_publisher_counts_however_rarely_it_speaks(joints, rate, how):
    cell = Cell(UR).node("joint_state_broadcaster", "/joint_states", UR.joints, 500)
    cell.node("other", "/joint_states", joints, rate, **how)
    assert "'/other'" in cell.checks()["publishers of joint_states"]


def test_a_publisher_that_the_graph_does_not_name_counts():
    cell = Cell(UR).node("joint_state_broadcaster", "/joint_states", UR.joints, 500)
    cell.node("ghost", "/joint_states", UR.joints, 500, stays=False, known=False)
    assert "a node that the graph does not name" in cell.checks()["publishers of joint_states"]


def test_a_silent_publisher_counts_as_at_activation_unless_it_has_left():
    cell = Cell(UR).node("joint_state_broadcaster", "/joint_states", UR.joints, 500)
    cell.node("left", "/joint_states", [], 1, end=0.0, stays=False)
    assert cell.checks() == {}
    cell.node("silent", "/joint_states", [], 1, end=0.0)
    assert "'/silent' (none yet)" in cell.checks()["publishers of joint_states"]


def test_a_driver_that_was_started_again_meanwhile_is_one():
    cell = Cell(UR).node("joint_state_broadcaster", "/joint_states", UR.joints, 500, end=0.9, stays=False)
    cell.node("joint_state_broadcaster", "/joint_states", UR.joints, 500, begin=1.2)
    assert "publishers of joint_states" not in cell.checks()


def test_a_second_publisher_of_the_gripper_is_named():
    cell = Cell(APART).node("joint_state_broadcaster", "/joint_states", [*UR.joints, "finger"], 500)
    cell.node("gripper_driver", "/joint_states", ["finger"], 30)
    found = cell.checks()
    assert set(found) == {"publishers of gripper_states", "gripper"}
    assert "'/gripper_driver' (60 messages)" in found["publishers of gripper_states"]


def test_where_rclpy_does_not_say_who_spoke_the_graph_decides_as_at_activation():
    cell = Cell(UR).node("joint_state_broadcaster", "/joint_states", UR.joints, 500)
    assert cell.checks(tells=False) == {}
    cell.node("old_driver", "/joint_states", UR.joints, 5)
    assert "'/old_driver'" in cell.checks(tells=False)["publishers of joint_states"]


def test_too_many_messages_of_one_publisher_are_said_with_the_bound():
    """As of a relay that merges a bag into the states of the arm."""
    for rate, fails in ((500, False), (700, False), (1000, True)):
        found = Cell(UR).node("relay", "/joint_states", UR.joints, rate).checks()
        assert ("rate" in found) == fails, found
    assert "Hz of 500, expected 750 at most" in found["rate"]
    for rate, fails in ((15, False), (13, False), (30, True)):
        cell = Cell(FR3).node("driver", "/franka/joint_states", FR3.joints, 1000)
        found = cell.node("hand", "/franka_gripper/joint_states", FR3.gripper, rate).checks()
        assert ("gripper" in found) == fails, found
    assert "Hz of 15, expected 22.5 at most" in found["gripper"]


@pytest.mark.parametrize(("rate", "said"), [(5, "5.0 Hz of 15"), (1, "1.0 Hz of 15"), (0.4, "0.5 Hz of 15")])
def test_a_gripper_that_speaks_too_rarely_is_named(rate, said):
    """Its watchdog would hold the arm between two of its messages."""
    cell = Cell(FR3, 2.1).node("driver", "/franka/joint_states", FR3.joints, 1000)
    found = cell.node("hand", "/franka_gripper/joint_states", FR3.gripper, rate).checks()
    assert set(found) == {"gripper"} and said in found["gripper"]


def test_a_few_messages_of_a_gripper_make_no_rate():
    heard = Heard()
    for k in range(3):
        heard.take(StateReader(FR3, FR3.profile()), JointState(name=list(FR3.gripper), position=[0.02, 0.02]), k * 1e-3)
    assert heard.publishers.rate(GRIPPER, 0.4) is None and heard.publishers.rate(GRIPPER, 0.001) == pytest.approx(1000)
    assert heard.publishers.rate("joint_states", 0.4) is None


def test_nodes_that_can_command_are_listed_also_those_that_have_ended():
    cell = Cell(UR).node("joint_state_broadcaster", "/joint_states", UR.joints, 500)
    cell.graph.sources["trajectory"] = cell.graph.still["trajectory"] = set()
    assert cell.checks() == {} and "no node can send any" in cell.said["commands to the arm"]
    moveit, pub = (
        Commander("/move_group", "/c/follow_joint_trajectory", True),
        Commander("/_ros2cli_7", "/c/x", False),
    )
    cell.graph.sources["trajectory"], cell.graph.still["trajectory"] = {moveit, pub}, {moveit}
    why = cell.checks()["commands to the arm"]
    assert "'/move_group' sends goals to '/c/follow_joint_trajectory' (MoveIt)" in why
    assert "'/_ros2cli_7' publishes on '/c/x' (a `ros2` command), and has ended since" in why

"""Other nodes that can command the arm: which of them count, on graphs as MoveIt, drivers and recorders make them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("rclpy")

from robopolicy.real.ros2.command_sources import (
    NAMELESS,
    SETTLES,
    OtherSources,
    command_topics,
    full_name,
    other_sources,
)
from robopolicy.real.ros2.wiring import WiringError, load_wiring, parse
from tests.real.ros2.test_messages import changed
from tests.real.ros2.test_outputs import ACTION, STREAM

UR, FR3 = load_wiring("ur5e"), load_wiring("fr3")
TOPIC = "/scaled_joint_trajectory_controller/joint_trajectory"
GOALS = "/scaled_joint_trajectory_controller/follow_joint_trajectory"


class Graph:
    """A node that sees publishers by topic, and clients and mere listeners to feedback by action."""

    def __init__(self, publishers=None, clients=None, recorders=None, namespace="/") -> None:
        self.publishers, self.clients, self.recorders = publishers or {}, clients or {}, recorders or {}
        self.namespace = namespace

    def get_name(self) -> str:
        return "policy_node"

    def get_namespace(self) -> str:
        return self.namespace

    def resolve_topic_name(self, name: str) -> str:
        return name if name.startswith("/") else full_name(name, self.namespace)

    def get_publishers_info_by_topic(self, name: str) -> list:
        return [end(who) for who in self.publishers.get(name, ())]

    def get_subscriptions_info_by_topic(self, name: str) -> list:
        action = name.removesuffix("/_action/feedback")
        assert action != name, "clients are known by the feedback that they hear"
        return [end(who) for who in (*self.clients.get(action, ()), *self.recorders.get(action, ()))]

    def get_client_names_and_types_by_node(self, name: str, namespace: str) -> list:
        if name == NAMELESS:
            raise RuntimeError("no such node")
        who = full_name(name, namespace)
        return [(f"{action}/_action/send_goal", ["x"]) for action, names in self.clients.items() if who in names]

    def count_publishers(self, name: str) -> int:
        return len(self.publishers.get(name, ()))

    def count_clients(self, service: str) -> int:
        return len(self.clients.get(service.removesuffix("/_action/send_goal"), ()))


def end(who: str) -> SimpleNamespace:
    namespace, _, name = who.rpartition("/")
    return SimpleNamespace(node_name=name, node_namespace=namespace or "/")


def found(graph: Graph, wiring=UR, role: str = "trajectory", *, connected: bool = True) -> set[str]:
    """Names of the nodes that count."""
    return {source.node for source in other_sources(graph, command_topics(wiring)[role], connected=connected)}


OURS = "/policy_node"


@pytest.mark.parametrize(
    "graph",
    [
        Graph(),
        Graph({TOPIC: [OURS]}),
        Graph({TOPIC: [OURS]}, {GOALS: ["/trajectory_until_node"]}),  # ur_control.launch.py
        Graph({TOPIC: [OURS]}, {}, {GOALS: ["/rosbag2_recorder"]}),
        Graph({TOPIC: [OURS], "/other_controller/joint_trajectory": ["/rqt"]}),
    ],
    ids=["nothing", "ours", "the driver's own relay", "a recorder of hidden topics", "another arm's controller"],
)
def test_what_drivers_and_recorders_start_is_no_other_source(graph):
    assert found(graph) == set()


@pytest.mark.parametrize(
    ("graph", "who"),
    [
        (Graph({TOPIC: [OURS, "/teleop"]}), "/teleop"),
        (Graph({TOPIC: [OURS, OURS]}), OURS),  # a node that was left over has our name
        (Graph({TOPIC: [OURS, "/cell1/policy_node"]}), "/cell1/policy_node"),
        (Graph({TOPIC: [OURS, f"/{NAMELESS}"]}), f"/{NAMELESS}"),
        (Graph({TOPIC: [OURS]}, {GOALS: ["/move_group"]}), "/move_group"),
        (Graph({TOPIC: [OURS]}, {}, {GOALS: [f"/{NAMELESS}"]}), f"/{NAMELESS}"),
        (Graph({TOPIC: [OURS]}, {GOALS: [OURS]}), OURS),  # goals of a namesake: this node publishes
        (Graph({TOPIC: [OURS, "/trajectory_until_node"]}), "/trajectory_until_node"),  # it has goals alone
    ],
)
def test_another_node_that_can_command_counts(graph, who):
    assert found(graph) == {who}
    (why,) = OtherSources(graph, UR).problems()
    assert why.startswith("publishers: trajectory: ") and repr(who) in why and "topics.trajectory.shared_with" in why


def test_without_a_publisher_of_ours_a_policy_node_counts():
    """As arm check sees it, which commands nothing."""
    assert found(Graph({TOPIC: [OURS]}), connected=False) == {OURS}


def test_the_node_of_a_namespace_knows_itself():
    wiring = parse(changed())
    assert found(Graph({"/cell1/trajectory": ["/cell1/policy_node"]}, namespace="/cell1"), wiring) == set()
    assert found(Graph({"/cell1/trajectory": ["/cell1/policy_node", OURS]}, namespace="/cell1"), wiring) == {OURS}


def test_goals_and_their_topic_are_one_controller():
    wiring = parse(changed(**ACTION, topics__joint_commands=None))
    goals, topic = "/arm/follow_joint_trajectory", "/arm/joint_trajectory"
    assert found(Graph({}, {goals: [OURS]}), wiring) == set()
    assert found(Graph({}, {goals: [OURS, "/move_group"]}), wiring) == {"/move_group"}
    assert found(Graph({topic: ["/servo_node"]}, {goals: [OURS]}), wiring) == {"/servo_node"}


def test_positions_and_grippers_are_looked_at():
    assert found(Graph({"/positions": [OURS, "/servo_node"]}), parse(changed(**STREAM))) == {"/servo_node"}
    hand = FR3.grip.name
    assert found(Graph({}, {hand: [OURS]}), FR3, "gripper") == set()
    assert found(Graph({}, {hand: [OURS, "/move_group"]}), FR3, "gripper") == {"/move_group"}
    assert found(Graph({"/gripper": [OURS, "/teleop"]}), parse(changed()), "gripper") == {"/teleop"}
    assert set(command_topics(UR)) == {"trajectory"}, "a bare flange"


@pytest.mark.parametrize("name", ["homing", "/cell1/homing"])
def test_a_node_that_the_wiring_names_may_command_too(name):
    wiring = replace(UR, topics=UR.topics | {"trajectory": replace(UR.output, shared_with=[name])})
    graph = Graph({TOPIC: [OURS, "/cell1/homing"]}, {GOALS: ["/cell1/homing"]})
    assert found(graph) == {"/cell1/homing"} and found(graph, wiring) == set()
    assert found(Graph({TOPIC: [OURS, "/homing2"]}), wiring) == {"/homing2"}


def test_shared_with_is_a_list_of_names():
    shared = {"name": "x", "rate_hz": 250, "points": "control"}
    assert parse(changed(topics__trajectory={**shared, "shared_with": ["homing"]})).output.shared_with == ["homing"]
    with pytest.raises(WiringError, match=r"topics\.trajectory\.shared_with"):
        parse(changed(topics__trajectory={**shared, "shared_with": "homing"}))


def test_a_node_that_comes_while_the_arm_runs_is_told_once_the_graph_has_settled():
    """Its name comes after its end: until then it might be one that the wiring names. Once it is there, at once."""
    graph = Graph({TOPIC: [OURS]})
    others = OtherSources(graph, UR)
    assert others.problems() == [] and others.newcomers(0.0) == []
    graph.get_publishers_info_by_topic = pytest.fail  # no look without a change
    for now in (1.0, 2.0):
        assert others.newcomers(now) == []
    del graph.get_publishers_info_by_topic
    graph.clients[GOALS] = ["/trajectory_until_node"]
    assert others.newcomers(3.0) == [] and others.newcomers(3.0 + SETTLES) == []
    graph.publishers[TOPIC] = [OURS, f"/{NAMELESS}"]
    assert others.newcomers(4.0) == []
    assert others.newcomers(4.0 + 0.4 * SETTLES) == []
    graph.publishers[TOPIC] = [OURS, "/teleop"]
    (why,) = others.newcomers(4.0 + 0.5 * SETTLES)
    assert "'/teleop' publishes on" in why and others.newcomers(4.0 + SETTLES) == [], "once"
    graph.publishers[TOPIC] = [OURS]
    assert others.newcomers(9.0) == [] == others.newcomers(9.0 + SETTLES)
    graph.publishers[TOPIC] = []
    assert others.problems() == [], "a reset between two looks"
    graph.publishers[TOPIC] = ["/teleop"]  # as many as before
    assert others.newcomers(11.0)


@pytest.mark.parametrize("name", ["/teleop", f"/{NAMELESS}"])
def test_a_node_that_commands_and_leaves_at_once_is_told_too(name):
    """As `ros2 topic pub --once` does, within a few tenths of a second; the graph may never have known its name."""
    graph = Graph({TOPIC: [OURS]})
    others = OtherSources(graph, UR)
    assert others.problems() == []
    graph.publishers[TOPIC] = [OURS, name]
    told = [*others.newcomers(1.0), *others.newcomers(1.05)]
    graph.publishers[TOPIC] = [OURS]
    told += [*others.newcomers(1.1), *others.newcomers(1.15), *others.newcomers(1.1 + SETTLES)]
    assert len(told) == 1 and repr(name) in told[0]


def test_a_node_of_no_name_that_still_stays_is_told_once_the_graph_has_settled():
    graph = Graph({TOPIC: [OURS]})
    others = OtherSources(graph, UR)
    assert others.problems() == []
    graph.publishers[TOPIC] = [OURS, f"/{NAMELESS}"]
    assert others.newcomers(1.0) == [] == others.newcomers(1.0 + 0.9 * SETTLES)
    assert len(others.newcomers(1.0 + SETTLES)) == 1 and others.newcomers(2.0 + SETTLES) == []


def test_a_topic_that_was_renamed_at_the_start_is_watched_too():
    """ROS's graph counts by the names that are in use: `--ros-args -r a:=b`."""
    graph = Graph({"/renamed": [OURS]})
    graph.resolve_topic_name = lambda name: "/renamed" if name == TOPIC else name
    others = OtherSources(graph, UR)
    assert others.problems() == []
    graph.publishers["/renamed"] = [OURS, "/teleop"]
    assert [why for now in (1.0, 1.0 + SETTLES) for why in others.newcomers(now)]

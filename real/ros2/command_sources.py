"""Nodes beside ours that can command the arm or its gripper, as ROS's graph knows them: none, or no arm is started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from rclpy.node import Node

from robopolicy.real.ros2.channels import GripperTopic, OutputTopic
from robopolicy.real.ros2.publishers import FORGETS
from robopolicy.real.ros2.wiring import Wiring

GOALS = ("action", "gripper_command")  # types whose commands are goals of an action
TOPIC, ACTION = "joint_trajectory", "follow_joint_trajectory"  # both of every joint_trajectory_controller
RELAYS = ("trajectory_until_node",)  # ur_robot_driver starts it; it sends a goal only where it is asked for one
SETTLES = 0.5  # s without a change of the graph
NAMELESS = "_NODE_NAME_UNKNOWN_"  # rmw's, of a node that is not discovered in full, or is none of ROS
KNOWN = {
    "_ros2cli": "a `ros2` command", "move_group": "MoveIt", "moveit": "MoveIt", "servo_node": "MoveIt Servo",
    "rosbag2_player": "a bag that is played", "policy_node": "a policy node", "rqt": "rqt",
    "joint_state_publisher": "sliders, or a merger of states",
}  # by the begin of a node's name  # fmt: skip


class Commander(NamedTuple):
    """A node that can command, and by which topic or action."""

    node: str  # with its namespace
    name: str
    goals: bool

    def __str__(self) -> str:
        how = "sends goals to" if self.goals else "publishes on"
        return f"{self.node!r} {how} {self.name!r}{hint(self.node)}"


def command_topics(wiring: Wiring) -> dict[str, OutputTopic | GripperTopic]:
    """Return the topics of commands to the arm, and to the gripper where there is one, by role."""
    return {"trajectory": wiring.output} | ({} if wiring.grip is None else {"gripper": wiring.grip})


def full_name(node: str, namespace: str) -> str:
    """Return a node's name with its namespace."""
    return f"{namespace.rstrip('/')}/{node}"


def hint(node: str) -> str:
    """Say what a node of this name is, " (…)"; "" where that is unknown."""
    bare = node.rpartition("/")[2]
    if bare == NAMELESS:
        return " (a node that the graph has no name of)"
    return next((f" ({what})" for begin, what in KNOWN.items() if bare.startswith(begin)), "")


def other_sources(node: Node, topic: OutputTopic | GripperTopic, *, connected: bool) -> set[Commander]:
    """Return the nodes beside `node` that can command by a topic of the wiring, without those that may.

    A joint_trajectory_controller takes trajectories and goals: both are looked at, whichever of them is ours.

    Args:
        connected: whether `node` has a publisher, or a client, of its own there.
    """
    own, found = full_name(node.get_name(), node.get_namespace()), set()
    for name, goals, ours in _ways(topic):
        resolved = node.resolve_topic_name(name)
        ends = Counter(_clients(node, resolved) if goals else _publishers(node, resolved))
        ends[own] -= int(connected and ours)  # a second node of our name is another one
        allowed = {*topic.shared_with, *(RELAYS if goals else ())}
        found |= {
            Commander(who, resolved, goals) for who, count in ends.items()
            if count > 0 and allowed.isdisjoint((who, who.rpartition("/")[2]))
        }  # fmt: skip
    return found


class OtherSources:
    """Watch for other nodes that can command, from a node that commands itself.

    Args:
        node: which has one publisher, or one client, on each topic of commands.
        wiring: names of these topics, and of nodes that may command too.
    """

    def __init__(self, node: Node, wiring: Wiring) -> None:
        self.node, self.topics = node, command_topics(wiring)
        self._looked: tuple[int, ...] = ()  # ends of the graph, of which the answer is known
        self._new: tuple[int, ...] = ()  # others, which are not settled yet
        self._since = 0.0  # s, when `_new` were seen first
        self._nameless: list[str] = []  # problems with those of them whose nodes have no names yet

    def problems(self) -> list[str]:
        """List other nodes that can command, one sentence for each topic. It takes some ms."""
        self._settle(self._count())
        return _sentences(self._sources())

    def newcomers(self, now: float) -> list[str]:
        """As `problems` where the graph has changed since; called again and again, at `now` s of a steady clock.

        The graph knows an end before the name of its node. So it is looked at at once, while there are ends without a
        name, and once it has settled. An end that has gone by then, still without a name, may have commanded.
        """
        ends, nameless = self._count(), self._nameless
        if ends == self._looked:
            self._settle(ends)
            return nameless
        if changed := ends != self._new:
            self._new, self._since = ends, now
        settled = now - self._since >= SETTLES
        if not (changed or nameless or settled):
            return []
        found = self._sources()
        if settled or any(not s.node.endswith(NAMELESS) for sources in found.values() for s in sources):
            self._settle(ends)
            return _sentences(found)
        self._nameless = _sentences(found)
        return []

    def _settle(self, ends: tuple[int, ...]) -> None:
        """Take the answer for `ends` of the graph for known."""
        self._looked, self._new, self._nameless = ends, (), []

    def _sources(self) -> dict[str, set[Commander]]:
        return {role: other_sources(self.node, topic, connected=True) for role, topic in self.topics.items()}

    def _count(self) -> tuple[int, ...]:
        """Return the number of publishers and clients by each name. It takes some µs."""
        node, found = self.node, []
        for topic in self.topics.values():
            for name, goals, _ in _ways(topic):
                at = node.resolve_topic_name(name)  # counts know no remapping
                found.append(node.count_clients(f"{at}/_action/send_goal") if goals else node.count_publishers(at))
        return tuple(found)


def _sentences(found: dict[str, set[Commander]]) -> list[str]:
    return [
        f"publishers: {role}: expected no node but this one to command, found "
        f"{', and '.join(sorted(map(str, sources)))}. {remedy(role)}"
        for role, sources in found.items() if sources
    ]  # fmt: skip


def remedy(role: str) -> str:
    """Say what helps against another node that can command."""
    return (
        f"Stop it, or name it in topics.{role}.shared_with where it never commands while a policy runs; one that died "
        f"is forgotten after {FORGETS} s"
    )


def _ways(topic: OutputTopic | GripperTopic) -> Iterator[tuple[str, bool, bool]]:
    """Yield the names by which a driver is commanded: name, whether it is an action's, whether it is the wiring's."""
    goals = topic.type in GOALS
    yield topic.name, goals, True
    head, slash, tail = topic.name.rpartition("/")
    if tail == (ACTION if goals else TOPIC):
        yield f"{head}{slash}{TOPIC if goals else ACTION}", not goals, False


def _publishers(node: Node, topic: str) -> list[str]:
    return [full_name(end.node_name, end.node_namespace) for end in node.get_publishers_info_by_topic(topic)]


def _clients(node: Node, action: str) -> list[str]:
    """Return the nodes with a client of an action. What merely hears its feedback, such as a recorder, has none."""
    ends = node.get_subscriptions_info_by_topic(f"{action}/_action/feedback")
    return [
        full_name(end.node_name, end.node_namespace) for end in ends
        if _sends(node, end.node_name, end.node_namespace, f"{action}/_action/send_goal")
    ]  # fmt: skip


def _sends(node: Node, name: str, namespace: str, service: str) -> bool:
    try:
        known = node.get_client_names_and_types_by_node(name, namespace)
    except RuntimeError:  # NodeNameNonExistentError: it is there, and says nothing of itself
        return True
    return any(found == service for found, _ in known)

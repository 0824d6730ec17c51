"""Who publishes the states of a running arm, and who beside us can command it: for `robopolicy arm check`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rclpy.node import Node

from robopolicy.doctor.checks import Check
from robopolicy.real.ros2.command_sources import Commander, command_topics, full_name, hint, other_sources, remedy
from robopolicy.real.ros2.joint_states import ARM
from robopolicy.real.ros2.publishers import FORGETS
from robopolicy.real.ros2.qos import publishers_heard
from robopolicy.real.ros2.wiring import GRIPPER, Wiring

COMMANDS = {"trajectory": "the arm", "gripper": "the gripper"}  # by role


def role_names(wiring: Wiring) -> tuple[str, ...]:
    """Return the roles of topics with states: the gripper has one where its states come apart."""
    return (ARM, GRIPPER) if wiring.topics[GRIPPER] is not None else (ARM,)


@dataclass
class MessageSpan:
    """Messages of the joints of one role, by one publisher."""

    first: float  # s of receipt
    last: float
    count: int = 0


@dataclass
class StatePublishers:
    """Publishers of states, by their messages."""

    spans: dict[str, dict[bytes | None, MessageSpan]] = field(default_factory=dict)  # by role, and publisher
    heard: set[bytes] = field(default_factory=set)  # also those that speak of other joints

    def take(self, role: str, gid: bytes | None, at: float) -> None:
        """Note a message of the joints of a role by publisher `gid`, None: unknown, received at `at` s."""
        span = self.spans.setdefault(role, {}).setdefault(gid, MessageSpan(at, at))
        span.last, span.count = at, span.count + 1

    def together(self, role: str) -> list[bytes | None]:
        """Return the publishers that spoke of the joints of a role while another did; one that was replaced did not."""
        spans = self.spans.get(role, {})
        return [
            gid for gid, mine in spans.items()
            if any(mine.first <= their.last and their.first <= mine.last for k, their in spans.items() if k != gid)
        ]  # fmt: skip

    def rate(self, role: str, shortest: float) -> float | None:
        """Return the messages a second of a role, by all publishers; None below `shortest` s of them."""
        spans = self.spans.get(role, {}).values()
        if not spans:
            return None
        lasted = max(s.last for s in spans) - min(s.first for s in spans)
        return (sum(s.count for s in spans) - 1) / lasted if lasted >= shortest else None


@dataclass
class Graph:
    """What ROS's graph said while messages were heard: nodes come late into it, and some leave again."""

    nodes: dict[bytes, str] = field(default_factory=dict)  # names of all publishers of states
    present: dict[str, set[bytes]] = field(default_factory=dict)  # publishers that reach us in the last look, by role
    sources: dict[str, set[Commander]] = field(default_factory=dict)  # all nodes that could command, by role
    still: dict[str, set[Commander]] = field(default_factory=dict)  # of the last look

    def look(self, node: Node, wiring: Wiring) -> None:
        """Ask the graph once."""
        for role in role_names(wiring):
            ends = publishers_heard(node, wiring.topic(role))
            self.nodes |= {bytes(end.endpoint_gid): full_name(end.node_name, end.node_namespace) for end in ends}
            self.present[role] = {bytes(end.endpoint_gid) for end in ends}
        for role, topic in command_topics(wiring).items():
            self.still[role] = other_sources(node, topic, connected=False)
            self.sources.setdefault(role, set()).update(self.still[role])


def publisher_findings(publishers: StatePublishers, graph: Graph, wiring: Wiring) -> Iterator[Check]:
    """Yield a finding on the publishers of each role: those of its states, then those of commands."""
    for role in role_names(wiring):
        yield from _of_states(role, publishers, graph, wiring)
    for role, sources in graph.sources.items():
        shared = command_topics(wiring)[role].shared_with
        said = [f"{source}{'' if source in graph.still[role] else ', and has ended since'}" for source in sources]
        yield Check(
            f"commands to {COMMANDS[role]}", not sources,
            "; ".join(sorted(said)) or f"no node can send any{f' but {shared}, by the wiring' if shared else ''}",
            f"{remedy(role)}. A policy node that is configured counts: end it while you check",
        )  # fmt: skip


def _of_states(role: str, publishers: StatePublishers, graph: Graph, wiring: Wiring) -> Iterator[Check]:
    """Find out whether one publisher alone speaks of the joints of a role; others may speak of other joints there."""
    name, spans, present = wiring.topic(role).name, publishers.spans.get(role, {}), graph.present.get(role, set())
    whose = "the arm's joints" if role == ARM else "the gripper's joints"
    if None in spans:  # an rclpy that does not say who sent a message: the node cannot tell either
        said = [f"{_named(gid, graph)}" for gid in present]
        yield Check(
            f"publishers of {role}", len(said) <= 1,
            f"expected 1 on {name!r}, found {_listed(said)}; this rclpy does not say which of them sent a message",
            f"stop all but the driver, or give {whose} a topic of their own; one that died is forgotten after "
            f"{FORGETS} s",
        )  # fmt: skip
        return
    if not spans:
        return  # that there are no states is said elsewhere
    together = publishers.together(role)
    silent = sorted(present - publishers.heard)
    said = [f"{_named(gid, graph)} ({spans[gid].count} messages)" for gid in together or [*spans][-1:]]
    said += [f"{_named(gid, graph)} (none yet)" for gid in silent]
    yield Check(
        f"publishers of {role}", len(said) == 1,
        f"{said[0]} alone speaks of {whose} on {name!r}" if len(said) == 1
        else f"expected 1 of {whose} on {name!r}, found {_listed(said)}",
        f"stop all but the driver of {whose}: a driver that was left over, a bag, or joint_state_publisher; one that "
        f"died is forgotten after {FORGETS} s. Of one that is slow, listen for longer (seconds=)",
    )  # fmt: skip


def _named(gid: bytes | None, graph: Graph) -> str:
    node = graph.nodes.get(gid) if gid is not None else None
    return "a node that the graph does not name" if node is None else f"{node!r}{hint(node)}"


def _listed(said: list[str]) -> str:
    return f"{len(said)}: {', '.join(sorted(said))}" if said else "none"

"""When a message reached this process, and from whom, as the subscriptions see it. No DDS."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("rclpy")

from std_msgs.msg import Bool, String

from robopolicy.real.ros2 import messages
from robopolicy.real.ros2 import subscriptions as subscriptions_module
from robopolicy.real.ros2.publishers import ALIVE
from robopolicy.real.ros2.qos import profile_of
from robopolicy.real.ros2.teleop_keys import FRESH, LOST
from tests.real.ros2.test_images import Watched
from tests.real.ros2.test_messages import WIRING

SYSTEM = 1.7e18  # ns of the system's clock at 0 s of ours


class Inbox(Watched):
    """Subscriptions of a node that takes keys too; both clocks of the machine can be set."""

    def __init__(self, monkeypatch) -> None:
        self.system = 0.0  # s by which the system's clock was set
        super().__init__(monkeypatch)
        monkeypatch.setattr(subscriptions_module.time, "time_ns", lambda: int(SYSTEM + (self.now + self.system) * 1e9))
        self.camera.press = self.pressed = []
        self.camera.press = self.pressed.append
        self.subscriptions._hear("keys", String, WIRING.topic("keys"), self.subscriptions._on_key, lambda: None)
        self.enabled, self.strangers = [], []
        self.arm.on_enable = lambda enabled, at: self.enabled.append((enabled, at))
        self.arm.on_second_publisher = self.strangers.append

    def hear(self, role: str, message, *, waited: float = 0.0, gid: bytes | None = b"a") -> None:
        """A message is handled that came `waited` s ago."""
        came = int(SYSTEM + (self.now - waited) * 1e9)
        who = None if gid is None else {"data": gid}
        self.node.heard[WIRING.topic(role).name]((message, {"received_timestamp": came, "publisher_gid": who}))


@pytest.mark.parametrize(
    ("waited", "drained", "system", "age"),
    [
        (0.0, 3.0, 0.0, 0.0),
        (2.0, 3.0, 0.0, 2.0),  # the node was held up, and what waited is as old as it is
        (2.0, 0.002, 0.0, 2.0),  # in a queue that never emptied too
        (0.0, 0.002, 3600.0, 0.002),  # a system's clock that is set changes next to nothing
        (0.0, 0.002, -3600.0, 0.0),
    ],
)
def test_a_message_is_as_old_as_its_receipt(waited, drained, system, age, monkeypatch):
    inbox = Inbox(monkeypatch)
    inbox.now -= drained
    inbox.subscriptions.empty(inbox.now)
    inbox.now, inbox.system = inbox.now + drained, system
    inbox.hear("enable", Bool(data=True), waited=waited)
    (enabled, at), = inbox.enabled  # fmt: skip
    assert enabled and inbox.now - at == pytest.approx(age, abs=1e-3)


def test_keys_that_waited_move_nothing_but_a_stop_always_counts(monkeypatch):
    inbox = Inbox(monkeypatch)
    for text in ("w", "x", LOST, "stick 1 0 0 0"):
        inbox.hear("keys", String(data=text), waited=FRESH + 0.1)
    assert inbox.pressed == ["x", LOST] and inbox.subscriptions.refused["keys"].startswith("keys")
    assert inbox.arm.counts["keys_refused"] == 2
    assert inbox.subscriptions.refused["keys"] in inbox.subscriptions.problems()
    inbox.now += ALIVE + 0.01
    assert not [p for p in inbox.subscriptions.problems() if p.startswith("keys: ")], "it blocks no reset for good"
    inbox.hear("keys", String(data="w"), waited=FRESH - 0.1)
    assert inbox.pressed[-1] == "w"


def test_features_of_another_moment_are_not_used(monkeypatch):
    """They carry stamps as pictures do."""
    inbox = Inbox(monkeypatch)
    taken = []
    inbox.camera.take = lambda names, values, moment: taken.append((list(values), moment))
    values = lambda stamp: messages.joint_state(("x",), round(stamp * 1e9), subscriptions_module.np.zeros(1))  # noqa: E731
    inbox.subscriptions._hear(
        "features", object, WIRING.topic("features"), inbox.subscriptions._on_features, lambda: None
    )
    there = inbox.now + 1000.0
    for stamp, reason in ((0.0, "unstamped"), (there + 3600.0, "ahead"), (there - 0.2, "late")):
        inbox.hear("features", values(stamp))
        assert inbox.subscriptions.refused.get("features", "").startswith("features: stamp")
        assert inbox.arm.counts[f"features_{reason}"] == 1
    inbox.hear("features", values(there))
    inbox.hear("features", values(there))
    assert len(taken) == 1 and taken[0][1] == (there, inbox.arm.log) and inbox.arm.counts["features_repeated"] == 1
    assert inbox.arm.inputs == ["features"]


@pytest.mark.parametrize("gid", [b"b", None])
def test_another_publisher_is_not_listened_to_while_the_arm_runs(gid, monkeypatch):
    """Known by its messages or, where the middleware does not say whose they are, by the graph."""
    inbox = Inbox(monkeypatch)
    both = [
        SimpleNamespace(node_name=n, endpoint_gid=[0], qos_profile=profile_of(WIRING.topic("enable"))) for n in "ab"
    ]
    inbox.node.get_publishers_info_by_topic = lambda name: both
    first = b"a" if gid is not None else None
    inbox.hear("enable", Bool(data=True), gid=first)
    inbox.arm.running = True
    inbox.hear("enable", Bool(data=True), gid=gid)
    assert len(inbox.enabled) == 1 and inbox.subscriptions.refused["enable"].startswith("publishers: enable")
    assert inbox.strangers == [inbox.subscriptions.refused["enable"]]
    loose = replace(WIRING.topic("enable"), reliability="best_effort")
    if gid is None:  # a bystander, whose messages cannot pass, does not count
        inbox.strangers.clear()
        both[1].qos_profile = profile_of(loose)
        inbox.hear("enable", Bool(data=True), gid=gid)
        assert not inbox.strangers and len(inbox.enabled) == 2
    inbox.arm.running = False
    inbox.hear("enable", Bool(data=False), gid=gid)
    assert inbox.enabled[-1][0] is False and "enable" not in inbox.subscriptions.refused


def test_a_description_that_comes_late_stops_no_arm(monkeypatch):
    inbox = Inbox(monkeypatch)
    topic = replace(WIRING.topic("enable"), name="description")
    inbox.subscriptions._hear("robot_description", String, topic, inbox.subscriptions._on_description, lambda: None)
    inbox.arm.running = True
    both = [SimpleNamespace(node_name=n, endpoint_gid=[0], qos_profile=profile_of(topic)) for n in "ab"]
    inbox.node.get_publishers_info_by_topic = lambda name: both
    for gid in (b"a", b"b", None):
        who = None if gid is None else {"data": gid}
        inbox.node.heard["description"]((String(data="urdf"), {"received_timestamp": 0, "publisher_gid": who}))
    assert not inbox.strangers and not inbox.subscriptions.refused

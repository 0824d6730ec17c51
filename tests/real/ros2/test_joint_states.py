"""`/joint_states` as it is found: arm and gripper apart, other rates, joints of others, an empty first message."""

from __future__ import annotations

import time

import numpy as np
import pytest

pytest.importorskip("rclpy")

from sensor_msgs.msg import JointState

from robopolicy.real.ros2 import messages
from robopolicy.real.ros2.joint_states import ARM
from robopolicy.real.ros2.messages import StateReader
from robopolicy.real.ros2.publishers import Endpoint, PublisherError, Publishers
from robopolicy.real.ros2.wiring import GRIPPER, WiringError, parse
from robopolicy.real.safety import SafetyError, load_profile
from tests.real.ros2.test_images import Watched
from tests.real.ros2.test_messages import HOME, NAMES, WIRING, changed, message

APART = {
    "topics__gripper_states": {"name": "gripper_states", "rate_hz": 30.0},
    "watchdogs__gripper_states": {"hold": 0.2, "fault": 1.0},
}
FINGERS = list(WIRING.gripper)


def fingers(opening: float, stamp: float = 1.0) -> JointState:
    return messages.joint_state(tuple(FINGERS), round(stamp * 1e9), np.full(2, opening / 2))


def test_joints_of_others_are_left_out():
    names = ["mobile_base_wheel", *NAMES[:3], "other_arm_joint1", *NAMES[3:]]
    q = np.array([np.nan, *HOME[:3], 9.0, *HOME[3:], 0.03, 0.04])
    state = StateReader(WIRING, load_profile("panda")).read(message(names, q, np.zeros(11)))
    assert np.array_equal(state.q, HOME) and state.opening == pytest.approx(0.07)


def test_half_an_arm_is_no_state_and_a_changed_prefix_is_named():
    reader = StateReader(WIRING, load_profile("panda"))
    with pytest.raises(SafetyError, match=r"'panda_joint7' is missing; beside them came \['left_panda_joint7'"):
        reader.read(message([*NAMES[:6], "left_panda_joint7", *NAMES[7:]]))
    with pytest.raises(SafetyError, match="'panda_joint2' comes 2 times"):
        reader.read(message([*NAMES, "panda_joint2"], [*HOME, 0.04, 0.04, 0.0]))


def test_a_gripper_in_messages_of_its_own_is_joined():
    wiring = parse(changed(**APART))
    reader = StateReader(wiring, load_profile("panda"))
    alone = message(NAMES[:7], HOME, np.zeros(7))
    assert reader.has_arm(alone) and not reader.has_gripper(alone)
    assert np.isnan(reader.read(alone).opening), "nothing has come of the gripper"
    assert reader.read_gripper(fingers(0.05)) == pytest.approx(0.05)
    assert reader.read(alone).opening == pytest.approx(0.05)
    with pytest.raises(SafetyError, match="gripper_states: position of"):
        reader.read_gripper(fingers(np.nan))
    assert reader.opening == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"topics__gripper_states": APART["topics__gripper_states"]}, "watchdogs.gripper_states: expected seconds"),
        ({"watchdogs__gripper_states": {"hold": 0.2}}, "watchdogs.gripper_states: expected none"),
        ({**APART, "gripper": {}}, "topics.gripper_states: expected null, as `gripper` names no joint"),
        ({**APART, "watchdogs__gripper_states": {"hold": 0.05}}, "watchdogs.gripper_states: 0.05 s is less than two"),
    ],
)
def test_a_wiring_of_a_gripper_apart_is_whole(changes, what):
    with pytest.raises(WiringError, match=what):
        parse(changed(**changes))


class Shared(Watched):
    """A node's subscriptions, whose topic of states is shared with others."""

    def __init__(self, monkeypatch, wiring=WIRING) -> None:
        super().__init__(monkeypatch, wiring)
        self.states, self.others = [], []
        self.arm.on_state = lambda state, stamp, at: self.states.append(state)
        self.arm.on_second_publisher = self.others.append

    def hear(self, role: str, sent: JointState, gid: bytes = b"arm") -> None:
        info = {"received_timestamp": time.time_ns(), "publisher_gid": {"data": gid}}
        self.node.heard[self.subscriptions.wiring.topic(role).name]((sent, info))

    def problems(self, role: str) -> list[str]:
        return [p for p in self.subscriptions.problems() if p.startswith(role) or role in p.split(":")[1]]


def test_an_empty_first_message_and_those_of_others_are_counted_and_refuse_nothing(monkeypatch):
    it = Shared(monkeypatch)
    it.hear(ARM, JointState())
    it.hear(ARM, message(["wheel"], [1.0], [0.0]))
    assert it.arm.counts[f"{ARM}_empty"] == 1 and it.arm.counts[f"{ARM}_ignored"] == 1
    assert not it.states and not it.subscriptions.refused
    assert "name none of ['panda_joint1'" in it.problems(ARM)[0] and "newest names ['wheel']" in it.problems(ARM)[0]
    it.hear(ARM, message())
    assert len(it.states) == 1 and it.problems(ARM) == []


def test_who_speaks_of_other_joints_on_the_topic_is_no_second_driver(monkeypatch):
    it = Shared(monkeypatch)
    it.arm.running = True
    it.hear(ARM, message())
    it.hear(ARM, message(["wheel"], [1.0], [0.0]), gid=b"base")
    assert not it.others
    it.hear(ARM, message(), gid=b"base")
    assert it.others and len(it.states) == 1, "of the arm's joints one may speak"


def test_the_graph_counts_those_alone_who_may_speak_of_the_arm():
    one, graph = Publishers("joint_states", "/joint_states"), [Endpoint(b"arm", "driver"), Endpoint(b"base", "base")]
    one.take(b"arm", 1.0, False)
    assert one.problems(graph, 1.1), "the other has not said yet of what it speaks"
    one.leave(b"base")
    assert one.problems(graph, 1.1) == []
    one.take(b"base", 1.2, False)
    assert one.problems(graph, 1.3), "and then it speaks of the arm"
    with pytest.raises(PublisherError):
        one.take(b"arm", 1.4, True)


def test_a_gripper_that_is_silent_or_of_another_moment_is_said(monkeypatch):
    it = Shared(monkeypatch, parse(changed(**APART)))
    it.hear(ARM, message(NAMES[:7], HOME, np.zeros(7)))
    assert it.problems(GRIPPER) == [f"{GRIPPER}: nothing has come on 'gripper_states'"]
    it.hear(GRIPPER, fingers(0.05, stamp=1090.0))
    assert "10.000 s old" in it.problems(GRIPPER)[0] and it.arm.counts[f"{GRIPPER}_late"] == 1
    it.hear(GRIPPER, fingers(0.05, stamp=1099.99))
    assert it.problems(GRIPPER) == [] and it.arm.inputs == [GRIPPER]
    it.now += 0.5
    assert "0.50 s old" in it.problems(GRIPPER)[0]
    it.hear(ARM, message(NAMES[:7], HOME, np.zeros(7)))
    assert it.states[-1].opening == pytest.approx(0.05)

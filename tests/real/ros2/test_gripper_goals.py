"""Goals of GripperCommand: one at a time, the newest opening wins, and which endings are faults."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("rclpy")

from rclpy.task import Future

from robopolicy.real.ros2 import commands
from robopolicy.real.ros2.gripper_goals import ANSWER_S, GripperGoals
from robopolicy.real.ros2.wiring import WiringError, load_wiring, parse
from tests.real.ros2.test_messages import changed
from tests.real.ros2.test_outputs import Node

PLAIN = {"name": "gripper", "rate_hz": 20, "low": 0.0, "high": 0.08, "speed": None, "squeeze": None}


class Client:
    """An action client whose server answers when it is told to."""

    def __init__(self, node, type, name) -> None:
        self.goals, self.canceled, self.ready, self.destroyed = [], [], True, False

    def server_is_ready(self) -> bool:
        return self.ready

    def send_goal_async(self, goal):
        self.goals.append((goal.command, Future()))
        return self.goals[-1][1]

    def answer(self, accepted: bool = True) -> Future:
        """Accept or reject the newest goal; its result."""
        result, number = Future(), len(self.goals)
        handle = SimpleNamespace(
            accepted=accepted, get_result_async=lambda: result,
            cancel_goal_async=lambda: self.canceled.append(number),
        )  # fmt: skip
        self.goals[-1][1].set_result(handle)
        return result

    def destroy(self) -> None:
        self.destroyed = True


def gripper_command(monkeypatch) -> None:
    """Install a package control_msgs with as much of the action as is used."""
    goal = lambda: SimpleNamespace(command=SimpleNamespace(position=0.0, max_effort=0.0))  # noqa: E731
    action = SimpleNamespace(GripperCommand=SimpleNamespace(Goal=goal))
    monkeypatch.setitem(sys.modules, "control_msgs", SimpleNamespace(action=action))
    monkeypatch.setitem(sys.modules, "control_msgs.action", action)


@pytest.fixture
def rig(monkeypatch):
    gripper_command(monkeypatch)
    said, now = [], [10.0]
    goals = GripperGoals(SimpleNamespace(), load_wiring("fr3").grip, said.append, client=Client, clock=lambda: now[0])
    return SimpleNamespace(goals=goals, client=goals._client, said=said, now=now)


def test_an_opening_is_sent_once_in_the_units_of_the_driver(rig):
    for _ in range(3):
        rig.goals.publish(0.06)
    rig.client.answer()
    rig.goals.publish(0.0603)
    assert [(c.position, c.max_effort) for c, _ in rig.client.goals] == [(0.03, 20.0)]


def test_a_new_opening_waits_for_the_end_of_the_goal_that_it_cancels(rig):
    rig.goals.publish(0.06)
    result = rig.client.answer()
    for opening in (0.04, 0.02, 0.0):
        rig.goals.publish(opening)
    assert rig.client.canceled == [1] and len(rig.client.goals) == 1
    result.set_result(SimpleNamespace(status=5))
    rig.goals.publish(0.0)
    assert [c.position for c, _ in rig.client.goals] == [0.03, 0.0], "the newest one, and none between"


def test_a_goal_that_ended_on_an_object_is_no_fault(rig):
    rig.goals.publish(0.0)
    rig.client.answer().set_result(SimpleNamespace(status=6))  # aborted: it holds something
    rig.goals.publish(0.0)
    assert len(rig.client.goals) == 1 and rig.said == [] and rig.client.canceled == []


def test_rejected_and_unanswered_goals_are_faults(rig):
    rig.goals.publish(0.06)
    rig.client.answer(accepted=False)
    assert rig.said == ["gripper: the goal of 0.060 m on '/franka_gripper/gripper_action' was rejected"]
    rig.goals.publish(0.02)
    rig.now[0] += ANSWER_S + 0.1
    rig.goals.publish(0.02)
    rig.goals.publish(0.02)
    assert rig.said[1:] == ["gripper: '/franka_gripper/gripper_action' has not answered a goal for 1.0 s"], "once"


def test_a_canceled_goal_that_goes_on_is_said_and_may_end_later(rig):
    rig.goals.publish(0.06)
    result = rig.client.answer()
    rig.goals.publish(0.02)
    rig.now[0] += ANSWER_S + 0.1
    rig.goals.publish(0.02)
    name = "'/franka_gripper/gripper_action'"
    assert rig.said == [f"gripper: {name} has not ended the canceled goal of 0.060 m within 1.0 s"]
    assert len(rig.client.goals) == 1, "a second goal beside the first would fight with it"
    result.set_result(SimpleNamespace(status=5))
    rig.goals.publish(0.02)
    assert [c.position for c, _ in rig.client.goals] == [0.03, 0.01] and len(rig.said) == 1


def test_a_missing_server_is_named(rig):
    rig.client.ready = False
    assert "no action server '/franka_gripper/gripper_action'" in rig.goals.problems()[0]
    rig.goals.close()
    assert rig.client.destroyed


def test_a_gripper_that_gives_up_is_not_taken_for_the_arm_s_driver(monkeypatch):
    made, said = [], []
    monkeypatch.setattr(
        commands, "GripperGoals", lambda *given: made.append(given[2]) or SimpleNamespace(publish=pytest.fail)
    )
    commands.Commands(
        Node(), load_wiring("fr3"), dry_run=False, on_mismatch=pytest.fail, on_failure=pytest.fail,
        on_gripper_failure=said.append,
    )  # fmt: skip
    made[0]("gripper: the goal was rejected")
    assert said == ["gripper: the goal was rejected"]


@pytest.mark.parametrize(
    ("topic", "what"),
    [
        ({"type": "gripper_command"}, "max_effort"),
        ({"type": "gripper_command", "max_effort": 20.0, "speed": 0.1}, "speed and squeeze must be null"),
        ({"factor": 0.5}, "for type gripper_command"),
        ({"low": 0.08, "high": 0.08}, "low: expected less than high"),
    ],
)
def test_keys_that_contradict_one_another_are_named(topic, what):
    with pytest.raises(WiringError, match=f"topics.gripper: .*{what}"):
        parse(changed(topics__gripper={**PLAIN, **topic}))


@pytest.mark.parametrize("rejected", [True, False])
def test_after_a_fault_of_the_gripper_the_next_episode_asks_again(rig, rejected):
    rig.goals.publish(0.02)
    if rejected:
        rig.client.answer(accepted=False)
    rig.now[0] += ANSWER_S + 0.1
    for _ in range(3):
        rig.goals.publish(0.02)
    assert len(rig.said) == 1 and len(rig.client.goals) == 1, "not while the arm stands in FAULT"
    rig.goals.begin()
    rig.goals.publish(0.02)
    assert len(rig.client.goals) == 2
    rig.client.answer()
    rig.goals.begin()
    rig.goals.publish(0.02)
    assert len(rig.client.goals) == 2, "what was accepted is kept"

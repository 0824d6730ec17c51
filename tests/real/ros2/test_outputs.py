"""Ways to a driver: positions that are played as they come, and trajectories as goals of an action. No DDS."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("rclpy")

from rclpy.serialization import deserialize_message
from trajectory_msgs.msg import JointTrajectory

from robopolicy.real.control.joint_order import JointOrder
from robopolicy.real.ros2 import messages
from robopolicy.real.ros2.outputs import (
    ABORTED,
    CANCELED,
    ActionOutput,
    PositionOutput,
    TrajectoryOutput,
    output_of,
)
from robopolicy.real.ros2.wiring import WiringError, parse
from robopolicy.real.safety import Mode, SafetyError
from robopolicy.real.safety.audit import joint_violations
from tests.real.ros2 import test_trajectory_stream as lines
from tests.real.ros2.test_messages import changed
from tests.real.ros2.test_trajectory_stream import DT, HOME, Sweep, Wire
from tests.real.streams import stream_of

STREAM = {
    "topics__trajectory": {
        "name": "positions", "rate_hz": 250, "type": "positions", "upsampling": "bspline", "driver_hz": 1000,
        "timeout_s": 0.1,
    },
    "topics__joint_commands": None, "lead_ticks": 1,
}  # fmt: skip
ACTION = {
    "topics__trajectory": {"name": "arm/follow_joint_trajectory", "rate_hz": 50, "type": "action", "points": "control"},
    "lead_ticks": 8,
}  # fmt: skip


class Node:
    """A node that only hands out publishers, which keep what is published."""

    def __init__(self) -> None:
        self.sent, self.kinds = [], []

    def create_lifecycle_publisher(self, kind, name, quality, event_callbacks):
        self.kinds.append((kind.__name__, name))
        return SimpleNamespace(publish=self.sent.append)

    def destroy_publisher(self, publisher) -> None:
        self.sent.append("destroyed")


def trajectory(**more):
    return {"topics__trajectory": {"name": "x", "rate_hz": 250, "points": "control", **more}}


def stream(**more):
    return {"topics__trajectory": {**STREAM["topics__trajectory"], **more}}


# -- wiring ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "what"),
    [
        (trajectory(type="velocities"), "topics.trajectory.type: .*'trajectory', 'action' or 'positions'"),
        (trajectory(type="positions"), r"only to a driver that declares .*upsampling=''.*timeout_s=0.0"),
        ({**STREAM, **trajectory(type="positions", timeout_s=0.1)}, "declares how it fills the time between two"),
        ({**STREAM, **trajectory(type="positions", upsampling="linear")}, "after how long a silence it stops"),
        ({**STREAM, **trajectory(type="positions", upsampling="cubic", timeout_s=0.1)}, "upsampling: .*found 'cubic'"),
        ({**STREAM, **stream(driver_hz=0)}, "driver_hz"),
        ({**STREAM, **stream(driver_hz=600)}, "driver_hz"),
        ({**STREAM, **stream(driver_hz=125)}, "driver_hz"),
        ({**STREAM, **stream(timeout_s=5)}, "timeout_s: expected 0.008 to"),
        ({**STREAM, **stream(timeout_s="x")}, "timeout_s: .* valid number"),
        (trajectory(points="linear"), "points"),
        (trajectory(points="spline"), "points"),
        (trajectory(driver_hz=1000), "driver_hz"),
        ({**STREAM, "lead_ticks": 3}, "lead_ticks 1, found lead_ticks 3"),
        ({**STREAM, "topics__joint_commands": {"name": "c", "rate_hz": 250}}, "topics.joint_commands must be null"),
        (trajectory(timeout_s=0.1), "timeout_s is for type positions"),
        ({**ACTION, "lead_ticks": 6}, "a goal every 5 ticks needs lead_ticks of 7 or more, found 6"),
    ],
)
def test_a_way_to_the_driver_that_cannot_work_is_refused(changes, what):
    with pytest.raises(WiringError, match=what):
        parse(changed(**changes))


def test_the_wiring_chooses():
    for changes, kind, message in (
        (STREAM, PositionOutput, "Float64MultiArray"),
        ({}, TrajectoryOutput, "JointTrajectory"),
    ):
        wiring, node = parse(changed(**changes)), Node()
        found = output_of(node, wiring, on_mismatch=pytest.fail, on_failure=pytest.fail)
        assert type(found) is kind and node.kinds == [(message, wiring.output.name)]


def test_a_controller_is_sent_splines_and_never_nothing():
    """An empty trajectory is no message for it: it plays what it has, which ends at rest."""
    wiring, node = parse(changed(topics__trajectory={"name": "x", "rate_hz": 250}, topics__joint_commands=None)), Node()
    output = output_of(node, wiring, on_mismatch=pytest.fail, on_failure=pytest.fail)
    output.send(7, np.zeros((0, 7)), 0)
    assert not node.sent
    output.send(7, np.tile(HOME, (5, 1)), 1)
    message = deserialize_message(node.sent[0], JointTrajectory)
    assert len(message.points) == 5 and all(list(p.velocities) == list(p.accelerations) == [0.0] * 7
                                            for p in message.points)  # fmt: skip
    assert messages.to_ns(message.header.stamp) == 10 * wiring.dt_ns


def test_the_simulated_arm_plays_trajectories_alone(monkeypatch):
    from robopolicy.real.ros2.sim_arm_node import ArmNode

    monkeypatch.setattr("rclpy.node.Node.__init__", lambda self, name: None)
    with pytest.raises(SafetyError, match=r"expects type: trajectory .* found type 'positions'"):
        ArmNode(None, parse(changed(**STREAM)))
    spline = parse(changed(topics__trajectory={"name": "x", "rate_hz": 250}, topics__joint_commands=None))
    with pytest.raises(SafetyError, match=r"topics\.trajectory: .* with points 'spline'"):
        ArmNode(None, spline)


# -- positions ------------------------------------------------------------------------------------------------------
class Stream(Wire):
    """A driver that holds the last positions that came, and stops for good after the declared silence."""

    def __init__(self, monkeypatch, **how) -> None:
        self.wiring, self.node = parse(changed(**STREAM)), Node()
        monkeypatch.setattr(lines, "WIRING", self.wiring)
        super().__init__(**{"echo": False, **how})
        self.output = PositionOutput(self.node, self.wiring, pytest.fail, sleep=lambda s: self.wait())
        self.stream = stream_of(self.chain, how.get("make_loop", Sweep), self.wiring, send=self.output.send)
        self.silent, self.timed_out, self.seen = 0, False, 0

    def tick_driver(self) -> None:
        """One tick of the driver."""
        new, self.node.sent[:] = self.node.sent[:], []
        assert len(new) <= 1, "one a tick"
        self.silent = 0 if new else self.silent + 1
        self.timed_out |= self.silent * DT > self.wiring.output.timeout_s and self.seen > 0
        self.seen += len(new)
        assert not (self.timed_out and new), "who has stopped by himself must not be told to go on"
        self.played.append(np.array(new[0].data) if new else self.played[-1] if self.played else HOME)

    def wait(self) -> None:
        """A tick passes in which the stream plays a stop."""
        self.tick_driver()
        self.tick, self.now = self.tick + 1, self.now + DT

    def step(self, *, node=True, states=True, enable=True) -> None:
        self.tick_driver()
        state = lines.State(self.played[-1].copy(), np.zeros(7), 0.08)
        self.stream.arm.on_state(state, self.tick * DT, self.now)
        if enable:
            self.stream.arm.on_enable(True, self.now)
        if node:
            self.stream.pump(self.now)
        self.tick, self.now = self.tick + 1, self.now + DT

    def violations(self) -> int:
        """Of what was played, but for the ticks in which nothing came: how those are filled is the driver's."""
        new = [self.played[0]] * 4
        for q in self.played:
            if not np.array_equal(q, new[-1]):
                new.append(q)
        return sum(joint_violations(np.array(new)[:, None], self.chain.profile, DT).values())


def test_positions_are_the_commands_in_the_wiring_s_order(monkeypatch):
    wire = Stream(monkeypatch)
    wire.begin()
    wire.run(130)
    assert wire.stream.arm.mode is Mode.RUN and wire.speed > 0.1
    assert np.array_equal(wire.played[-1], wire.chain.limiter.c[0, -2]), "the last but the one on its way"
    wire.stream.pump(wire.now)
    sent = wire.node.sent[-1]
    assert sent.layout.dim[0].label.split(",") == list(wire.wiring.joints) and len(sent.data) == 7
    commands = np.array([wire.played[0]] * 4 + wire.played)[:, None]
    assert sum(joint_violations(commands, wire.chain.profile, DT).values()) == 0


def test_what_was_not_sent_is_not_jumped_over(monkeypatch):
    """A tick missed: the driver stayed, and the next position goes on from there."""
    wire = Stream(monkeypatch)
    wire.begin()
    wire.run(110)
    assert wire.speed > 0.3
    before = wire.stream.arm.counts["missed"]
    for _ in range(5):
        wire.run(1, node=False)
        wire.run(20)
    assert wire.stream.arm.counts["missed"] - before == 5 and wire.stream.arm.mode is Mode.RUN and not wire.timed_out
    assert wire.violations() == 0


def test_two_missed_in_motion_are_a_fault_for_the_driver_stood_meanwhile(monkeypatch):
    wire = Stream(monkeypatch)
    wire.begin()
    wire.run(110)
    wire.run(2, node=False)
    where = wire.played[-1]
    wire.run(100)
    assert wire.stream.arm.mode is Mode.FAULT and "stream_gap" in "; ".join(wire.stream.reasons)
    assert np.array_equal(wire.played[-1], where), "nothing more was sent"


def test_a_stop_is_not_streamed_to_a_driver_that_has_stopped(monkeypatch):
    """Deactivated after a stall, before the silence was noticed."""
    wire = Stream(monkeypatch)
    wire.begin()
    wire.run(110)
    assert wire.speed > 0.3 and len(wire.output._left)
    wire.output.clock = lambda: time.monotonic() + 0.16
    wire.stream.stop()
    assert not wire.node.sent


def test_what_a_fault_has_ended_is_not_played_when_a_start_fails(monkeypatch):
    wire = Stream(monkeypatch)
    wire.begin()
    wire.run(110)
    wire.run(30, node=False)
    wire.run(200)
    assert wire.stream.arm.mode is Mode.FAULT

    def refuse(seed: int) -> None:
        raise SafetyError("no planner")

    monkeypatch.setattr(wire.stream.loop, "start", refuse)
    with pytest.raises(SafetyError, match="no planner"):
        wire.stream.start(seed=0, now=wire.now)
    wire.stream.stop()
    assert not wire.node.sent


def test_a_silence_beyond_the_time_out_is_a_fault_and_nothing_more_is_sent(monkeypatch):
    """The driver has stopped by itself; what the limits decide on then must not reach it."""
    wire = Stream(monkeypatch)
    wire.begin()
    wire.run(110)
    where = wire.played[-1]
    wire.run(30, node=False)
    assert wire.timed_out
    wire.run(200)
    assert wire.stream.arm.mode is Mode.FAULT and "stream_timeout" in "; ".join(wire.stream.reasons)
    assert np.abs(wire.played[-1] - where).max() < 0.02 and wire.speed == 0.0
    wire.timed_out, wire.seen = False, 0
    wire.stream.start(seed=0, now=wire.now)
    wire.run(50)
    assert wire.stream.arm.mode is Mode.RUN and wire.speed > 0.0


def test_deactivating_in_full_motion_ends_in_the_certified_stop(monkeypatch):
    """The driver knows of no stop: it is sent, a position a tick, before nothing more comes."""
    wire = Stream(monkeypatch)
    wire.begin()
    wire.run(110)
    assert wire.speed > 0.3
    stop = wire.output._left.copy()
    before = len(wire.played)
    wire.stream.stop()
    wire.tick_driver()
    assert len(wire.played) - before == len(stop) + 1 and np.array_equal(wire.played[-len(stop) :], stop)
    wire.run(3)
    assert wire.speed == 0.0 and wire.violations() == 0
    wire.stream.stop()
    assert not wire.node.sent, "once"


def test_a_stop_is_streamed_as_evenly_as_all_else(monkeypatch):
    """What a message takes to send is not added to the ticks: the driver would have none for a cycle, at speed."""
    wire, now, sent = Stream(monkeypatch), [10.0], []

    def sleep(seconds: float) -> None:
        assert seconds >= 0.0
        now[0] += seconds + 0.0002

    def publish(message) -> None:
        sent.append(now[0])
        now[0] += 0.0005 if len(sent) != 20 else 0.02  # a stall: what it delays is not sent in a rush

    wire.output.sleep, wire.output.clock = sleep, lambda: now[0]
    monkeypatch.setattr(wire.output._out, "publish", publish)
    wire.output.send(0, np.tile(HOME, (40, 1)), 0)
    wire.output.send(0, np.zeros((0, 7)), 0)
    assert len(sent) == 40
    gaps = np.diff(sent)
    assert gaps[:19] == pytest.approx(DT, abs=0.0003) and gaps[20:] == pytest.approx(DT, abs=0.0003)
    assert sent[19] - sent[0] == pytest.approx(19 * DT, abs=0.0003)


def test_a_gripper_that_gives_up_leaves_the_arm_its_stop(monkeypatch):
    """The arm's driver has not given up: without positions it would stop in its own way, from full speed."""
    wire = Stream(monkeypatch)
    wire.begin()
    wire.run(110)
    assert wire.speed > 0.3
    wire.stream.arm.on_gripper_failure("gripper: the goal of 0.060 m was rejected")
    wire.run(150)
    assert wire.stream.arm.mode is Mode.FAULT and "fault:gripper" in "; ".join(wire.stream.reasons)
    assert not wire.timed_out and wire.speed == 0.0 and wire.violations() == 0
    assert wire.stream.arm.counts["gripper_failed"] == 1 and not wire.stream.arm.counts["driver_failed"]


def test_an_emergency_stop_is_streamed_too(monkeypatch):
    wire = Stream(monkeypatch)
    wire.begin()
    wire.run(110)
    wire.stream.arm.on_enable(False, wire.now)
    wire.run(150, enable=False)
    assert wire.stream.arm.mode is Mode.FAULT and wire.speed == 0.0 and wire.violations() == 0


# -- goals ----------------------------------------------------------------------------------------------------------
class Future:
    def __init__(self, value) -> None:
        self.value = value
        self.callbacks = []

    def add_done_callback(self, call) -> None:
        self.callbacks.append(call)

    def result(self):
        return self.value

    def done(self) -> None:
        for call in self.callbacks:
            call(self)


class Client:
    """A controller's action server, by what a client sees of it."""

    def __init__(self, node, kind, name) -> None:
        self.name, self.goals, self.ready, self.destroyed = name, [], True, False

    def server_is_ready(self) -> bool:
        return self.ready

    def send_goal_async(self, goal):
        self.goals.append((goal, Future(None)))
        return self.goals[-1][1]

    def answer(self, k: int, *, accepted: bool = True) -> Future:
        """The k-th goal's; the future of its result."""
        result = Future(None)
        self.goals[k][1].value = SimpleNamespace(accepted=accepted, get_result_async=lambda: result)
        self.goals[k][1].done()
        return result

    def destroy(self) -> None:
        self.destroyed = True


@pytest.fixture
def control_msgs(monkeypatch):
    """A package of that name with as much of the action as is used."""
    goal = type("Goal", (), {"trajectory": None})
    kind = type("FollowJointTrajectory", (), {"Goal": goal})
    module = SimpleNamespace(FollowJointTrajectory=kind)
    monkeypatch.setitem(sys.modules, "control_msgs", SimpleNamespace(action=module))
    monkeypatch.setitem(sys.modules, "control_msgs.action", module)


class GoalWire(Wire):
    """The line of test_trajectory_stream whose trajectories come as goals."""

    def __init__(self, monkeypatch, **how) -> None:
        self.wiring = parse(changed(**ACTION))
        monkeypatch.setattr(lines, "WIRING", self.wiring)
        super().__init__(**how)
        self.output = ActionOutput(None, self.wiring, self.driver_gave_up, client=Client)
        self.client = self.output._client
        self.stream.arm.send, self.taken = self.output.send, 0

    answers = True  # every goal is accepted as it comes

    def driver_gave_up(self, why: str) -> None:
        self.stream.arm.on_driver_failure(why)

    def step(self, **how) -> None:
        for goal, _ in self.client.goals[self.taken :]:
            if self.answers:
                self.client.answer(self.taken)
            self.taken += 1
            first, points = messages.points_of(goal.trajectory, JointOrder(self.wiring.joints), self.wiring.dt_ns)
            self._send(first, points)
        super().step(**how)


@pytest.fixture
def goal_wire(monkeypatch, control_msgs):
    return lambda **how: GoalWire(monkeypatch, **how)


@pytest.mark.parametrize("delay", [0, 2])
def test_the_arm_plays_every_command_though_goals_are_rarer(goal_wire, delay):
    """Five ticks a goal, and up to two on its way: no fallback to a stop, nothing lost, no limit broken."""
    wire = goal_wire(delay=delay)
    wire.begin()
    wire.run(450)
    wire.check()
    assert 88 <= len(wire.client.goals) <= 92, len(wire.client.goals)
    assert not wire.refused and wire.stream.arm.counts["lost"] == wire.stream.arm.counts["foreign"] == 0
    assert np.ptp(np.array(wire.played), axis=0).max() > 0.3
    wire.stream.stop()
    wire.run(150)
    assert wire.speed == 0.0, "the last goal ends in the certified stop"
    wire.check()


@pytest.mark.parametrize(
    ("status", "which", "broken"),
    [(ABORTED, -1, True), (ABORTED, -3, True), (CANCELED, -1, True), (CANCELED, -3, False), (4, -1, False)],
)
def test_a_driver_that_gives_up_is_a_fault(goal_wire, status, which, broken):
    """Aborted in any case; canceled unless it is the one before, which a new goal replaces."""
    wire = goal_wire()
    wire.begin()
    wire.run(100)
    number = len(wire.client.goals)
    result = wire.client.answer(which)
    assert wire.stream.arm.mode is Mode.RUN
    result.value = SimpleNamespace(status=status, result=SimpleNamespace(error_string="path tolerance"))
    result.done()
    wire.run(5)
    assert (wire.stream.arm.mode is Mode.FAULT) is broken
    if broken:
        reasons = "; ".join(wire.stream.reasons)
        assert "driver: goal" in reasons and "path tolerance" in reasons
        assert wire.stream.arm.counts["driver_failed"] == 1
        wire.run(20)
        assert len(wire.client.goals) == number, "a driver that has given up is left alone"


def test_a_rejected_goal_is_a_fault_and_a_missing_server_refuses(goal_wire):
    wire = goal_wire()
    wire.client.ready = False
    assert "no action server 'arm/follow_joint_trajectory'" in wire.output.problems()[0]
    wire.client.ready = True
    assert wire.output.problems() == []
    wire.begin()
    wire.run(50)
    wire.client.answer(-1, accepted=False)
    wire.step()
    assert wire.stream.arm.mode is Mode.FAULT and "was rejected" in "; ".join(wire.stream.reasons)
    wire.output.close()
    assert wire.client.destroyed


def test_a_driver_that_never_answers_is_a_fault(goal_wire):
    wire = goal_wire()
    wire.begin()
    wire.run(100)
    assert wire.stream.arm.mode is Mode.RUN
    wire.answers = False
    wire.run(45)
    assert wire.stream.arm.mode is Mode.RUN, "0.18 s"
    wire.run(15)
    assert wire.stream.arm.mode is Mode.FAULT and "has had no answer for 0.2 s" in "; ".join(wire.stream.reasons)


def test_what_was_not_answered_in_one_episode_is_no_fault_of_the_next(goal_wire, monkeypatch):
    wire = goal_wire()
    wire.begin()
    wire.run(50)
    wire.answers = False
    wire.run(20)
    wire.stream.stop()
    assert len(wire.client.goals) > 2
    monkeypatch.setattr(wire.output, "on_failure", pytest.fail)
    wire.output.send(10**7, np.tile(HOME, (5, 1)), 1)


def test_without_control_msgs_it_says_what_to_source(monkeypatch):
    monkeypatch.setitem(sys.modules, "control_msgs", None)
    wiring = parse(changed(**ACTION))
    with pytest.raises(WiringError, match=r"control_msgs.*source /opt/ros/\$ROS_DISTRO/setup.bash"):
        output_of(Node(), wiring, on_mismatch=pytest.fail, on_failure=pytest.fail)

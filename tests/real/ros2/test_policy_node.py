"""The policy node in this process, over real DDS on a domain of its own: life, faults, parameters, ways out, Ctrl-C.

A driver that plays what comes exactly waits for every command, so that a busy machine changes nothing.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("rclpy")

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.experimental import EventsExecutor
from rclpy.lifecycle import LifecycleNode, TransitionCallbackReturn
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, Float64, Float64MultiArray, String
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from robopolicy.core.rng import SPLIT_BITS, SPLITS
from robopolicy.real.control.joint_order import JointOrder
from robopolicy.real.recording.recorder import RecordedChain, Recorder
from robopolicy.real.recording.recording import read
from robopolicy.real.recording.records import describe
from robopolicy.real.recording.replay import reproduce
from robopolicy.real.ros2 import messages, pipeline
from robopolicy.real.ros2.command_sources import SETTLES
from robopolicy.real.ros2.parameters import put_in_force
from robopolicy.real.ros2.pipeline import compiled
from robopolicy.real.ros2.policy_node import PolicyNode
from robopolicy.real.ros2.qos import profile_of
from robopolicy.real.ros2.spin import run
from robopolicy.real.ros2.teleop_keys import RemoteKeys
from robopolicy.real.ros2.timeline import Timeline
from robopolicy.real.ros2.wiring import parse
from robopolicy.real.safety import Mode, Profile, SafetyChain, SafetyError, load_profile
from robopolicy.real.safety.decision import Measured
from robopolicy.real.safety.settings import Box, Plane
from tests.real.control.test_joints import urdf
from tests.real.ros2 import test_messages as inputs
from tests.real.ros2.test_joint_state_adapter import SPEC
from tests.real.ros2.test_messages import changed
from tests.real.ros2.test_outputs import STREAM
from tests.real.ros2.test_trajectory_stream import DT, FAST, HOME, Sweep
from tests.real.ros2_graph import private_domain

pytestmark = pytest.mark.timeout(240)
OK, NO = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE


@pytest.fixture
def ros(monkeypatch):
    """Starts ROS with arguments; ends it afterwards."""
    for key, value in private_domain().items():
        monkeypatch.setenv(key, value)
    yield lambda *args: rclpy.init(args=list(args), signal_handler_options=SignalHandlerOptions.NO)
    if rclpy.ok():
        rclpy.shutdown()


class Toy:
    """A policy runtime that drives a joint to and fro, and remembers which episodes began and ended."""

    names, cameras, depths, dry_run = (), {}, {}, False

    def __init__(self, wiring, recorder=None) -> None:
        self.wiring, self.recorder, self.told, self.pressed = wiring, recorder, [], []
        self.press, self.ended, self.seeds = self.pressed.append, [], []

    def ended_by_keys(self):
        return self.ended

    def chain(self):
        dogs, profile = self.wiring.watchdogs, load_profile("panda", **FAST)
        how = {"dt": DT, "state": dogs["state"], "enable": dogs["enable"]}
        return SafetyChain(profile, **how) if self.recorder is None else RecordedChain(
            profile, put=self.recorder.put, **how
        )  # fmt: skip

    def loop(self, robot, chain, clock):
        return Sweep(robot, chain, clock)

    def warm_up(self, state) -> None: ...

    def begin(self, chain, seed) -> None:
        self.told.append("begin")
        self.seeds.append(seed)
        if self.recorder is not None:
            self.recorder.begin(describe(chain, observation={}, policy=SPEC, seed=seed))

    def end(self, success, **outcome) -> None:
        self.told.append(("end", success))
        if self.recorder is not None:
            self.recorder.end(success=success, **outcome)

    def close(self) -> None:
        self.end(None)


class Driver(Node):
    """An arm that is exactly where it is told to be."""

    def __init__(self, wiring) -> None:
        super().__init__("driver")
        self.wiring, self.tick, self.enabling = wiring, 1_000_000, True
        self.line, self.order = Timeline(HOME, self.tick), JointOrder(wiring.joints)
        self.played, self.answers = [], []
        self.pub = {
            role: self.create_publisher(kind, topic.name, profile_of(topic))
            for role, kind in (("joint_states", JointState), ("joint_commands", JointState), ("enable", Bool))
            if (topic := wiring.topics[role]) is not None
        }
        self.listen()

    def listen(self) -> None:
        """Subscribe to what is commanded."""
        output = self.wiring.output
        kind = Float64MultiArray if output.type == "positions" else JointTrajectory
        self.commands = self.create_subscription(
            kind, output.name, lambda m: self.answers.append(m), profile_of(output)
        )

    def play(self) -> None:
        """A tick: take what has come, move, say so."""
        came, self.answers = self.answers, []
        for message in came:
            if isinstance(message, Float64MultiArray):
                self.line.rest(np.array(message.data), self.tick)
            elif message.points:
                assert not (why := self.line.offer(*messages.points_of(message, self.order, self.wiring.dt_ns))), why
        q = self.line.play()
        self.played.append(q)
        ns, names = self.tick * self.wiring.dt_ns, (*self.wiring.joints, *self.wiring.gripper)
        self.pub["enable"].publish(Bool(data=self.enabling))
        if "joint_commands" in self.pub:
            self.pub["joint_commands"].publish(messages.joint_state(self.wiring.joints, ns, q))
        state = np.array([*q, 0.04, 0.04])
        self.pub["joint_states"].publish(messages.joint_state(names, ns, state, np.zeros(9)))
        self.tick += 1

    @property
    def speed(self) -> float:
        return float(np.abs(self.played[-1] - self.played[-2]).max() / DT)


PATIENT = {"watchdogs__enable": {"fault": 2.0}}  # with a machine that is busy: an enable must be alive at a start


class Rig:
    """Node and driver, one step after the other."""

    def __init__(self, wiring=None, recorder=None) -> None:
        self.wiring = wiring or parse(changed(**PATIENT))
        self.runtime = Toy(self.wiring, recorder)
        self.node, self.driver = PolicyNode(self.wiring, lambda: self.runtime, lockstep=True), Driver(self.wiring)
        self.executor = EventsExecutor()
        for node in (self.node, self.driver):
            self.executor.add_node(node)

    @property
    def stream(self):
        return self.node.pipeline.stream

    @property
    def arm(self):
        return self.stream.arm

    def until(self, condition, what: str) -> None:
        end = time.monotonic() + 60.0
        while not condition():
            assert time.monotonic() < end, f"in vain: {what}"
            self.executor.spin_once(timeout_sec=0.02)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            tick = self.driver.tick
            self.driver.play()
            stream = self.stream
            expected = tick * DT
            self.until(lambda: stream.arm.clock.newest >= expected - 1e-6, "the state")  # noqa: B023
            if self.node.pump() and stream.arm.active:
                self.until(lambda: bool(self.driver.answers), "a command")

    def quiet(self, count: int) -> None:
        """Ticks of an arm that is not commanded."""
        for _ in range(count):
            self.driver.play()
            expected = (self.driver.tick - 1) * DT
            self.until(lambda: self.arm.clock.newest >= expected - 1e-6, "the state")  # noqa: B023
            self.node.pump()

    def close(self) -> None:
        self.executor.shutdown(timeout_sec=1.0)
        self.node.destroy_node()
        self.driver.destroy_node()

    def meet(self) -> None:
        """Until everybody has found everybody."""
        assert self.node.trigger_configure() == OK, self.node.why
        pubs = list(self.driver.pub.values())
        self.until(lambda: all(p.get_subscription_count() for p in pubs), "subscriptions")
        self.until(lambda: self.node.pipeline.commands.output._out.get_subscription_count() > 0, "the driver")
        self.step(3)

    def reset(self) -> str:
        answer = self.node._on_reset(Trigger.Request(), Trigger.Response())
        return "" if answer.success else answer.message


@pytest.fixture
def rig(ros):
    ros()
    made = Rig()
    yield made
    made.close()


# -- faults ---------------------------------------------------------------------------------------------------------
def test_an_activation_that_fails_after_a_fault_leaves_nothing_half_begun(rig):
    """Refused while the reason lasts, by reset and by activate; the arm stands, and the next one succeeds."""
    rig.meet()
    assert rig.node.trigger_activate() == OK, rig.node.why
    rig.step(110)
    assert rig.driver.speed > 0.3 and rig.runtime.told == [("end", None), "begin"]
    rig.driver.enabling = False
    rig.step(5)
    assert rig.arm.mode is Mode.FAULT
    assert "still braking" in rig.reset()
    rig.step(150)
    assert rig.driver.speed == 0.0
    assert "the operator must enable" in rig.reset()
    assert rig.arm.mode is Mode.FAULT and rig.runtime.told[-1] == "begin", "the episode goes on, faulted"

    rig.driver.enabling = True
    rig.step(2)
    start, rig.stream.loop.start = rig.stream.loop.start, lambda seed=0: 1 / 0
    assert "reset: ZeroDivisionError" in rig.reset(), "it began, and failed on the way"
    assert not rig.arm.active and rig.runtime.told[-2:] == ["begin", ("end", None)]
    still = rig.driver.played[-1]
    rig.step(20)
    assert np.array_equal(rig.driver.played[-1], still), "an activation that failed moves nothing"
    assert rig.node.trigger_deactivate() == OK
    assert rig.node.trigger_activate() == NO and "ZeroDivisionError" in rig.node.why
    assert rig.runtime.told[-2:] == ["begin", ("end", None)] and not rig.arm.active

    rig.stream.loop.start = start
    assert rig.node.trigger_activate() == OK, rig.node.why
    rig.step(60)
    assert rig.arm.mode is Mode.RUN and rig.driver.speed > 0.1
    begun, ended = rig.runtime.told.count("begin"), sum(t[0] == "end" for t in rig.runtime.told if t != "begin")
    assert begun == 4 and ended >= 3
    assert len(set(rig.runtime.seeds)) == 4, "data is held out by seeds, so that each episode has another one"
    assert all(seed >> SPLIT_BITS == SPLITS["train"] for seed in rig.runtime.seeds)


def test_a_state_that_is_wrong_moves_nothing_and_one_of_no_numbers_holds_at_once(rig):
    """Foreign, missing and doubled joints, degrees, swapped joints, numbers that are none."""
    wrong = next(m.args[1] for m in inputs.test_a_state_that_is_wrong_is_refused.pytestmark if m.name == "parametrize")

    def say(made) -> None:
        heard = rig.node.handled
        rig.driver.pub["joint_states"].publish(made)
        rig.until(lambda: rig.node.handled > heard, "the state")

    rig.meet()
    still = rig.driver.played[-1]
    for make, what in wrong:
        say(make())
        assert rig.node.trigger_activate() == NO and what in rig.node.why
        assert not rig.driver.answers
    rig.step(3)
    assert np.array_equal(rig.driver.played[-1], still)
    assert rig.node.trigger_activate() == OK, rig.node.why
    rig.step(110)
    assert rig.arm.mode is Mode.RUN and rig.driver.speed > 0.3
    say(next(make() for make, what in wrong if "'panda_joint7' is not finite" in what))
    rig.step()
    assert rig.arm.mode is Mode.HOLD and "state_unreadable" in rig.stream.decision.reasons
    assert rig.arm.counts["joint_states_refused"] == 1
    rig.step(150)
    assert rig.arm.mode is Mode.RUN, "it went on by itself"


# -- publishers -----------------------------------------------------------------------------------------------------
@pytest.fixture
def others(ros, rig):
    """Makes publishers of another node on the node's inputs."""
    node, kinds = Node("other"), {"joint_states": JointState, "joint_commands": JointState, "enable": Bool}
    rig.executor.add_node(node)

    def make(role):
        topic = rig.wiring.topics[role]
        made = node.create_publisher(kinds[role], topic.name, profile_of(topic))
        rig.until(made.get_subscription_count, "the node")
        return made

    make.node, make.unmake = node, node.destroy_publisher
    yield make
    node.destroy_node()


def second(rig, role):
    """What another driver would say: that it is elsewhere, a moment later."""
    ns = (rig.driver.tick - 1) * rig.wiring.dt_ns + 1_000_000
    q = rig.driver.played[-1] + 0.01
    names = (*rig.wiring.joints, *rig.wiring.gripper) if role == "joint_states" else rig.wiring.joints
    values = np.array([*q, 0.04, 0.04])[: len(names)]
    return Bool(data=True) if role == "enable" else messages.joint_state(names, ns, values, np.zeros(len(names)))


def alone_again(rig, role) -> None:
    """Until a publisher that has gone does not count any more."""
    publishers, end = rig.node.pipeline.subscriptions._publishers[role], time.monotonic() + 20.0
    while publishers.problems(rig.node.pipeline.subscriptions._graph(publishers.role), time.monotonic()):
        assert time.monotonic() < end, role
        rig.step()
    rig.step(30)


def test_no_arm_is_started_that_two_publishers_speak_to(rig, others):
    """On any input; silent ones count too, as they may speak at any time. It starts once there is one again."""
    rig.meet()
    for role in ("joint_states", "joint_commands", "enable"):
        other = others(role)
        rig.until(lambda: rig.node.count_publishers(rig.wiring.topics[role].name) == 2, "the graph")  # noqa: B023
        for speaks in (False, True):
            if speaks:
                heard = rig.node.handled
                other.publish(second(rig, role))
                rig.until(lambda: rig.node.handled > heard, "a message")  # noqa: B023
            assert rig.node.trigger_activate() == NO, role
            assert f"publishers: {role}" in rig.node.why and "'driver', 'other'" in rig.node.why
        others.unmake(other)
        alone_again(rig, role)
    assert not rig.driver.answers
    assert rig.node.trigger_activate() == OK, rig.node.why


def test_a_second_publisher_faults_a_running_arm_and_nothing_that_it_says_is_used(rig, others):
    """By name; a reset is refused while it speaks, and works once it is gone."""
    rig.meet()
    for role in ("joint_states", "joint_commands", "enable"):
        if rig.arm.active:
            assert not (why := rig.reset()), why
        else:
            assert rig.node.trigger_activate() == OK, rig.node.why
        rig.step(60)
        assert rig.arm.mode is Mode.RUN and rig.driver.speed > 0.05
        stream, other = rig.stream, others(role)
        newest, commanded, heard = stream.arm.newest, stream.arm.commanded, rig.node.handled
        other.publish(second(rig, role))
        rig.until(lambda: rig.node.handled > heard, "a message")  # noqa: B023
        assert stream.arm.newest is newest and stream.arm.commanded is commanded, "it is not used"
        rig.step()
        assert stream.arm.mode is Mode.FAULT
        assert any(reason.startswith(f"fault:publishers: {role}") for reason in stream.decision.reasons)
        rig.step(150)
        assert rig.driver.speed == 0.0 and f"publishers: {role}" in rig.reset()
        others.unmake(other)
        alone_again(rig, role)


COMMANDED = {"name": "arm/joint_trajectory", "rate_hz": 250, "depth": 100, "points": "control"}


def settle(rig) -> None:
    """Ticks until the node has looked at a graph that has changed."""
    end = time.monotonic() + 3 * SETTLES
    while time.monotonic() < end:
        rig.step(5)


def test_no_arm_is_started_that_another_node_can_command(ros):
    """By its topic, by goals for its controller, or by the gripper's topic; also a second node of our own name.

    It starts once none is left, and with those that the wiring names. One that comes later is a fault.
    """
    from rclpy.action import ActionClient

    Fibonacci = pytest.importorskip("test_msgs.action").Fibonacci
    ros()
    rig = Rig(parse(changed(topics__trajectory={**COMMANDED, "shared_with": ["homing"]}, **PATIENT)))
    other, namesake, homing = (Node(name) for name in ("teleop", "policy_node", "homing"))
    topic, grip = rig.wiring.output.name, rig.wiring.grip.name
    made = {
        "publisher": (other, lambda node: node.create_publisher(JointTrajectory, topic, 10)),
        "goals": (other, lambda node: ActionClient(node, Fibonacci, "arm/follow_joint_trajectory")),
        "gripper": (other, lambda node: node.create_publisher(Float64, grip, 10)),
        "namesake": (namesake, lambda node: node.create_publisher(JointTrajectory, topic, 10)),
    }

    def others() -> list[str]:
        return rig.node.pipeline.commands.others.problems()

    try:
        rig.meet()
        assert others() == []
        for what, (node, make) in made.items():
            end = make(node)
            rig.until(others, what)
            rig.step()
            assert rig.node.trigger_activate() == NO, what
            role = "gripper" if what == "gripper" else "trajectory"
            assert f"publishers: {role}" in rig.node.why and f"'/{node.get_name()}'" in rig.node.why
            assert f"topics.{role}.shared_with" in rig.node.why
            end.destroy() if what == "goals" else node.destroy_publisher(end)
            rig.until(lambda: not others(), f"the end of {what}")
        assert not rig.driver.answers
        homing.create_publisher(JointTrajectory, topic, 10)
        rig.until(lambda: rig.node.count_publishers(topic) == 2, "the node that may")
        rig.step(3)
        assert rig.node.trigger_activate() == OK, rig.node.why
        rig.step(20)
        assert rig.arm.mode is Mode.RUN
        later = homing.create_publisher(JointTrajectory, topic, 10)
        rig.until(lambda: rig.node.count_publishers(topic) == 3, "the node that may")
        settle(rig)
        assert rig.arm.mode is Mode.RUN, rig.stream.decision.reasons
        homing.destroy_publisher(later)
        other.create_publisher(JointTrajectory, topic, 10)
        rig.until(others, "the other")
        rig.node.pipeline.commands.others._looked = ()  # the node has not seen it yet
        settle(rig)
        assert rig.arm.mode is Mode.FAULT
        assert any(reason.startswith("fault:publishers: trajectory") for reason in rig.stream.decision.reasons)
        rig.step(150)
        assert rig.driver.speed == 0.0 and "'/teleop'" in rig.reset()
    finally:
        for node in (other, namesake, homing):
            node.destroy_node()
        rig.close()


# -- dry runs ---------------------------------------------------------------------------------------------------------
class Shadow(Sweep):
    """What a loop in the shadow does: it writes nothing. It fails now and then."""

    broken = 60

    def tick(self):
        state, now = self.robot.read(), self.clock()
        self.step += 1
        if self.step > self.broken:
            raise ZeroDivisionError("of a bug")
        return self.chain.filter(self.home + 0.3, None if state is None else Measured(state.q), now)


@pytest.mark.parametrize("output", ["trajectory", "spline", "positions"])
def test_a_dry_run_can_publish_nothing_that_moves_anything(ros, output):
    """Not when it begins, in an exception of the loop, in a fault, at a reset and in the end: no publisher exists."""
    ros()
    changes = {
        "trajectory": {},
        "spline": {"topics__trajectory": {"name": "trajectory", "rate_hz": 250}, "topics__joint_commands": None},
        "positions": STREAM,
    }[output]
    rig = Rig(parse(changed(**changes)))
    rig.runtime.dry_run, rig.runtime.loop = True, lambda *parts: Shadow(*parts)
    gripped = []
    rig.driver.create_subscription(Float64, rig.wiring.grip.name, gripped.append, profile_of(rig.wiring.grip))
    teleop = Node("teleop")  # drives the arm, while the policy is watched
    kind = Float64MultiArray if output == "positions" else JointTrajectory
    driving = teleop.create_publisher(kind, rig.wiring.output.name, profile_of(rig.wiring.output))
    try:
        assert rig.node.trigger_configure() == OK, rig.node.why
        rig.until(driving.get_subscription_count, "the driver")
        rig.until(lambda: all(p.get_subscription_count() for p in rig.driver.pub.values()), "subscriptions")
        rig.quiet(3)
        assert rig.node.trigger_activate() == OK, rig.node.why
        rig.until(lambda: rig.quiet(5) or rig.stream.ticks > 20, "commands")
        assert rig.arm.mode is Mode.RUN
        rig.until(lambda: rig.quiet(5) or rig.arm.mode is Mode.FAULT, "the exception")
        rig.quiet(100)
        rig.arm.write(HOME, 0.01, np.tile(HOME, (3, 1)))  # even so
        assert rig.reset() == "", "the arm stands"
        rig.quiet(10)
        assert rig.node.trigger_deactivate() == OK
        rig.quiet(3)
        assert not rig.driver.answers and not gripped
        for topic, count in ((rig.wiring.output.name, 1), (rig.wiring.grip.name, 0)):
            assert rig.driver.count_publishers(topic) == count, "of the teleoperator alone"
    finally:
        teleop.destroy_node()
        rig.close()


def test_an_action_has_no_client_in_a_dry_run(ros):
    """Nor is the action's package needed."""
    ros()
    topic = {"name": "go", "rate_hz": 50, "type": "action"}
    rig = Rig(parse(changed(topics__trajectory=topic, topics__joint_commands=None, lead_ticks=8)))
    rig.runtime.dry_run = True
    try:
        assert rig.node.trigger_configure() == OK, rig.node.why
    finally:
        rig.close()


# -- bystanders -------------------------------------------------------------------------------------------------------
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def test_a_bystander_cannot_stop_the_arm(rig):
    """It listens with another durability, and hears nothing. That is its own affair."""
    rig.meet()
    assert rig.node.trigger_activate() == OK, rig.node.why
    rig.step(60)
    other = Node("bystander")
    rig.executor.add_node(other)
    try:
        heard = other.create_subscription(JointTrajectory, rig.wiring.output.name, lambda _: None, LATCHED)
        rig.until(lambda: rig.node.bystanders, "the news of it")
        assert "trajectory" in rig.node.bystanders[0] and "DURABILITY" in rig.node.bystanders[0].upper()
        rig.step(50)
        assert rig.arm.mode is Mode.RUN and rig.driver.speed > 0.1
        rig.driver.enabling = False
        rig.step(150)
        assert rig.arm.mode is Mode.FAULT and rig.driver.speed == 0.0
        rig.driver.enabling = True
        rig.step(3)
        assert rig.reset() == "", "nor does it speak against a reset"
        other.destroy_subscription(heard)
    finally:
        rig.executor.remove_node(other)
        other.destroy_node()


def test_a_driver_that_cannot_hear_is_refused_and_taken_once_it_can(ros):
    """Another durability, or another node: named, though a bystander hears all of it; then without a restart."""
    ros()
    latched = {"name": "trajectory", "rate_hz": 250, "depth": 100, "points": "control", "node": "driver"}
    rig = Rig(parse(changed(topics__trajectory=latched)))
    rig.driver.destroy_subscription(rig.driver.commands)
    other = Node("bystander")
    rig.executor.add_node(other)
    name = rig.wiring.output.name
    other.create_subscription(JointTrajectory, name, lambda _: None, profile_of(rig.wiring.output))
    try:
        assert rig.node.trigger_configure() == OK, rig.node.why
        rig.until(lambda: rig.node.pipeline.commands.output._out.get_subscription_count() > 0, "the bystander")
        rig.until(lambda: all(p.get_subscription_count() for p in rig.driver.pub.values()), "subscriptions")
        rig.quiet(3)
        assert rig.node.trigger_activate() == NO and "'driver'" in rig.node.why and "trajectory" in rig.node.why
        wrong = rig.driver.create_subscription(JointTrajectory, name, lambda _: None, LATCHED)
        rig.until(lambda: rig.node.count_subscribers(name) == 2, "the driver")
        rig.quiet(3)
        assert rig.node.trigger_activate() == NO and "durability" in rig.node.why and "trajectory" in rig.node.why
        rig.driver.destroy_subscription(wrong)
        rig.driver.listen()
        rig.until(lambda: rig.node.pipeline.commands.output._out.get_subscription_count() > 1, "the driver")
        rig.until(lambda: not rig.node.pipeline.commands.output.problems(), "the end of the wrong one")
        rig.quiet(3)
        assert rig.node.trigger_activate() == OK, rig.node.why
        rig.step(20)
        assert rig.arm.mode is Mode.RUN
    finally:
        rig.executor.remove_node(other)
        other.destroy_node()
        rig.close()


def test_nobody_who_listens_is_refused(ros):
    ros()
    rig = Rig()
    rig.driver.destroy_subscription(rig.driver.commands)
    try:
        assert rig.node.trigger_configure() == OK
        rig.until(lambda: all(p.get_subscription_count() for p in rig.driver.pub.values()), "subscriptions")
        rig.quiet(3)
        assert rig.node.trigger_activate() == NO and "trajectory" in rig.node.why
    finally:
        rig.close()


# -- what is said at activation ---------------------------------------------------------------------------------------
def test_an_arm_without_a_scene_says_so(rig, monkeypatch):
    """In its log and in its diagnostics; with a table it does not."""
    said = []
    monkeypatch.setattr(rig.node, "get_logger", lambda: SimpleNamespace(warning=said.append, error=said.append))
    heard = []
    rig.driver.create_subscription(DiagnosticArray, rig.wiring.topic("diagnostics").name, heard.append, 10)
    rig.meet()
    assert rig.node.trigger_activate() == OK, rig.node.why
    assert any("workspace" in s and "planes" in s for s in said)
    values = {}

    def told() -> bool:
        rig.node.report()
        for message in heard:
            values.update(messages.values_of(message, rig.node.get_name()) or {})
        return "workspace" in values.get("claims", "")

    rig.until(told, "the diagnostics")
    assert rig.node.trigger_deactivate() == OK
    rig.until(lambda: rig.step(1) or rig.driver.speed == 0.0, "standstill")
    said.clear()
    table = Plane((0.0, 0.0, 1.0), -0.5)
    rig.stream.chain.tighten(planes=(table,), tracking_error=None)
    assert rig.node.trigger_activate() == OK, rig.node.why
    assert not said and rig.node.claims == []
    assert rig.node.trigger_deactivate() == OK
    rig.stream.chain.tighten(planes=(table,), tracking_error=0.2)
    assert rig.node.trigger_activate() == NO and "tracking_error" in rig.node.why


def test_a_driver_that_would_break_the_maker_s_limits_refuses_to_configure(ros):
    ros()
    linear = {**STREAM["topics__trajectory"], "upsampling": "linear"}
    rig = Rig(parse(changed(**{**STREAM, "topics__trajectory": linear})))
    try:
        assert rig.node.trigger_configure() == NO
        assert "topics.trajectory" in rig.node.why and "acceleration" in rig.node.why and rig.node.pipeline is None
    finally:
        rig.close()


def test_nor_may_limits_be_loosened_until_it_would(ros):
    """While inactive they may be loosened; then it is not activated."""
    ros("--ros-args", "-p", "safety.acceleration:=0.1")
    linear = {**STREAM["topics__trajectory"], "upsampling": "linear", "depth": 100}
    rig = Rig(parse(changed(**{**STREAM, "topics__trajectory": linear})))
    try:
        rig.meet()
        assert rig.node.set_parameters([Parameter("safety.acceleration", value=0.5)])[0].successful
        assert rig.node.trigger_activate() == NO and "acceleration" in rig.node.why
        assert rig.node.set_parameters([Parameter("safety.acceleration", value=0.1)])[0].successful
        assert rig.node.trigger_activate() == OK, rig.node.why
        assert any("claim" in sentence for sentence in rig.node.claims), "of positions less is claimed"
    finally:
        rig.close()


def test_the_gripper_is_told_again_and_again_and_who_comes_late_hears_it(rig):
    """Over DDS, of an active node; a fault changes nothing about it."""
    rig.meet()
    assert rig.node.trigger_activate() == OK, rig.node.why
    rig.step(30)
    heard = []
    rig.driver.create_subscription(
        Float64, rig.wiring.grip.name, lambda m: heard.append(m.data), profile_of(rig.wiring.grip)
    )
    rig.until(lambda: rig.executor.spin_once(timeout_sec=0.02) or heard, "the last opening")
    assert heard[0] == 0.04
    rig.driver.enabling = False
    rig.step(60)
    assert rig.arm.mode is Mode.FAULT
    before = len(heard)
    rig.until(lambda: rig.step(1) or len(heard) > before + 1, "it, again and again")
    assert set(heard) == {0.04}
    rig.step(150)
    rig.driver.enabling, begun = True, []
    rig.step(3)
    rig.node.pipeline.commands.gripper.begin = lambda: begun.append(1)
    assert rig.reset() == "" and begun == [1], "it is told that another episode begins"


# -- life -----------------------------------------------------------------------------------------------------------
def test_a_hundred_lives_and_not_a_word_between_them(rig):
    """Nothing is published but by an active node, and what cannot be done now is refused."""
    rig.meet()
    for life in range(100):
        assert rig.node.trigger_activate() == OK, rig.node.why
        rig.step(2)
        assert 1 <= len(rig.driver.answers) <= 2
        if life % 10 == 0:
            for refused in (rig.node.trigger_activate, rig.node.trigger_configure, rig.node.trigger_cleanup):
                assert refused() != OK
        assert rig.node.trigger_deactivate() == OK
        rig.until(lambda: any(not m.points for m in rig.driver.answers), "the farewell")
        rig.driver.answers.clear()
        rig.step(3)
        assert not rig.driver.answers, "it says nothing more"
    assert rig.node.trigger_deactivate() != OK
    assert rig.node.trigger_cleanup() == OK and rig.node.pipeline is None


def test_the_arm_s_own_description_must_bear_out_the_limits(ros):
    """None yet, another arm's, and a slower arm's: refused; its own: activated. Whoever comes late hears it too."""
    ros()
    own = load_profile("panda")
    rig = Rig(parse(changed(**PATIENT, topics__robot_description={
        "name": "description", "rate_hz": 1, "durability": "transient_local"
    })))  # fmt: skip
    try:
        said = rig.driver.create_publisher(String, "description", profile_of(rig.wiring.topics["robot_description"]))
        rig.meet()
        assert rig.node.trigger_activate() == NO and "is robot_state_publisher running" in rig.node.why
        for profile, change, what in (
            (load_profile("ur5e"), {}, "panda_joint1: is not in it"),
            (own, {"j4": ("velocity", 0.5)}, "panda_joint5: velocity is 0.5 rad/s"),
            (own, {"j3": ("axis", (0, 0, -1))}, "panda_joint4: its axis lies elsewhere"),  # turns the other way
        ):
            heard = rig.node.handled
            said.publish(String(data=urdf(profile, **change)))
            rig.until(lambda: rig.node.handled > heard, "the description")  # noqa: B023
            rig.step()
            assert rig.node.trigger_activate() == NO and what in rig.node.why
        assert rig.node.trigger_cleanup() == OK
        said.publish(String(data=urdf(own)))
        rig.meet()
        rig.until(lambda: rig.node.pipeline.subscriptions._description is not None, "the description")
        rig.step()
        assert rig.node.trigger_activate() == OK, rig.node.why
    finally:
        rig.close()


# -- parameters -----------------------------------------------------------------------------------------------------
def test_parameters_given_on_the_command_line_are_in_force(ros):
    ros("--ros-args", "-p", "safety.tcp_speed:=0.11", "-p", "seed:=7")
    rig = Rig()
    try:
        rig.meet()
        assert rig.stream.chain.profile.settings.tcp_speed == 0.11
        assert rig.stream.chain.profile.digest == load_profile("panda", **{**FAST, "tcp_speed": 0.11}).digest
        assert rig.node.get_parameter("seed").value == 7
        assert rig.node.trigger_activate() == OK and rig.runtime.seeds == [7], rig.node.why
        rig.step(200)
        body = rig.stream.chain.limiter.body
        speed = np.linalg.norm(np.diff(body.at(np.array(rig.driver.played)).points[:, body.tcp], axis=0), axis=1)
        assert 0.05 < speed.max() / DT <= 0.11, "of the tool"
        loosened = rig.node.set_parameters([Parameter("safety.tcp_speed", value=1.0)])[0]
        assert not loosened.successful and "loosened only while inactive" in loosened.reason
        assert rig.node.trigger_deactivate() == OK
        assert rig.node.set_parameters([Parameter("safety.tcp_speed", value=0.2)])[0].successful
        assert rig.stream.chain.profile.settings.tcp_speed == 0.2
    finally:
        rig.close()


def test_a_joint_speed_of_a_cell_may_be_tightened_by_a_parameter_and_never_loosened(ros):
    ros("--ros-args", "-p", "safety.joint_speed:=0.3")
    rig = Rig(parse(changed(**PATIENT, safety={"joint_speed": 0.4})))

    def set_to(value):
        return rig.node.set_parameters([Parameter("safety.joint_speed", value=value)])[0]

    try:
        rig.meet()
        assert rig.stream.chain.profile.velocity.max() == 0.3
        assert set_to([0.3, 0.2, 0.4, 0.3, 0.3, 0.3, 0.1]).successful
        assert rig.stream.chain.profile.velocity.tolist() == [0.3, 0.2, 0.4, 0.3, 0.3, 0.3, 0.1]
        for value in (0.5, [0.5] * 7, [0.1], "fast"):
            found = set_to(value)
            assert not found.successful and "joint_speed" in found.reason
        assert rig.stream.chain.profile.velocity.max() == 0.4
    finally:
        rig.close()


def test_a_node_that_would_be_faster_than_its_cell_is_not_configured(ros):
    ros("--ros-args", "-p", "safety.joint_speed:=0.5")
    rig = Rig(parse(changed(**PATIENT, safety={"joint_speed": 0.4})))
    try:
        assert rig.node.trigger_configure() == NO and "joint_speed" in rig.node.why
    finally:
        rig.close()


@pytest.mark.parametrize("value", ["-1.0", ".nan", "1", "fast"])
def test_a_parameter_that_makes_no_sense_refuses_to_configure(ros, value):
    ros("--ros-args", "-p", f"safety.tcp_speed:={value}")
    rig = Rig()
    try:
        assert rig.node.trigger_configure() == NO
        assert "tcp_speed" in rig.node.why and rig.node.pipeline is None
    finally:
        rig.close()


@pytest.mark.parametrize(
    ("name", "why"), [("tcp_sped", "Did you mean 'tcp_speed'"), ("planes", "wiring"), ("energy", "wiring")]
)
def test_a_limit_that_is_no_parameter_refuses_to_configure(ros, name, why):
    """ROS itself says nothing of such, and the arm would move without the limit."""
    ros("--ros-args", "-p", f"safety.{name}:=0.05")
    rig = Rig()
    try:
        assert rig.node.trigger_configure() == NO
        assert f"safety.{name}" in rig.node.why and why in rig.node.why
    finally:
        rig.close()


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_limit_that_is_unset_otherwise_may_be_given_by_a_parameter(ros, dry_run):
    ros("--ros-args", "-p", "safety.stall:=0.2", "-p", "safety.tracking_error:=0.05")
    given = SafetyChain(load_profile("panda", **{**FAST, "stall": None, "tracking_error": None}), dt=DT)
    node = LifecycleNode("limits")
    try:
        put_in_force(node, given, {}, dry_run=dry_run)
        assert given.profile.settings.tracking_error == 0.05
        assert given.profile.settings.stall == (None if dry_run else 0.2), "no arm follows a dry run"
    finally:
        node.destroy_node()


def test_a_configuration_that_fails_half_way_hears_nothing(ros):
    """Or messages would reach a node that has nothing to handle them."""
    ros()
    rig = Rig()
    try:
        before = len(list(rig.node.subscriptions))
        odd = SimpleNamespace(
            names=("cube",),
            cameras={},
            depths={},
            dry_run=False,
            chain=rig.runtime.chain,
            loop=rig.runtime.loop,
            close=lambda: None,
            end=lambda _: None,
        )
        rig.node.make_runtime = lambda: odd  # it has no `press`
        assert rig.node.trigger_configure() == NO and "press" in rig.node.why
        assert len(list(rig.node.subscriptions)) == before and rig.node.pipeline is None
        rig.node.make_runtime = lambda: Toy(rig.wiring)
        assert rig.node.trigger_configure() == OK
    finally:
        rig.close()


# -- ways out -------------------------------------------------------------------------------------------------------
def test_positions_over_dds_end_at_rest(ros):
    """Streamed a tick at a time; a deactivation at speed plays the certified stop before it returns."""
    ros()
    stream = {**STREAM, "topics__trajectory": {**STREAM["topics__trajectory"], "depth": 100}}
    rig = Rig(parse(changed(**PATIENT, **stream)))
    try:
        rig.meet()
        rig.node.pipeline.commands.output.clock = lambda: (
            rig.driver.tick * DT
        )  # it waits, and hears no silence of a busy machine
        assert rig.node.trigger_activate() == OK, rig.node.why
        rig.step(110)
        assert rig.driver.speed > 0.3 and rig.arm.mode is Mode.RUN
        left = len(rig.node.pipeline.commands.output._left)
        assert rig.node.trigger_deactivate() == OK
        rig.until(lambda: len(rig.driver.answers) >= left, "the stop")
        stop = np.array([m.data for m in rig.driver.answers])
        assert np.array_equal(stop[-1], stop[-2]) or np.abs(stop[-1] - stop[-2]).max() / DT < 0.05
    finally:
        rig.close()


def test_keys_come_in_and_who_drives_goes_out(rig):
    """Over DDS: a key reaches the policy runtime, one that is none is named, and bags can tell when a human drove."""
    keys = rig.driver.create_publisher(String, "keys", profile_of(rig.wiring.topic("keys")))
    heard = []
    rig.driver.create_subscription(
        Bool, "intervention", lambda m: heard.append(m.data), profile_of(rig.wiring.topic("intervention"))
    )
    operator = RemoteKeys()
    rig.runtime.press = lambda text: rig.runtime.pressed.append(text) or operator.press(text)
    rig.meet()
    rig.until(lambda: keys.get_subscription_count() and rig.driver.count_publishers("intervention"), "each other")
    assert rig.node.trigger_activate() == OK, rig.node.why
    rig.until(lambda: rig.step(2) or heard, "that the policy drives")
    assert set(heard) == {False}
    keys.publish(String(data="t"))
    rig.until(lambda: rig.runtime.pressed == ["t"], "the key")
    rig.stream.loop.driver = "rewind"
    rig.until(lambda: rig.step(2) or True in heard, "that a human drives")
    keys.publish(String(data="fire"))
    rig.until(lambda: "keys" in rig.node.pipeline.subscriptions.refused, "the refusal")
    assert (
        "'fire' is no key" in rig.node.pipeline.subscriptions.refused["keys"]
        and operator() == "t"
        and operator() is None
    )
    assert rig.node.trigger_deactivate() == OK
    rig.runtime.ended = ["keys: x ended all episodes"]
    assert rig.node.trigger_activate() == NO and "keys: x ended all episodes" in rig.node.why, "it would never move"


# -- Ctrl-C ---------------------------------------------------------------------------------------------------------
def test_ctrl_c_ends_a_recording_as_it_should(ros, tmp_path):
    """In the middle of a motion: the arm is left its stop, the file has its footer and replays."""
    ros()
    rig = Rig(recorder=Recorder(tmp_path / "r"))
    rig.meet()
    assert rig.node.trigger_activate() == OK, rig.node.why
    rig.step(110)
    assert rig.driver.speed > 0.3
    rig.executor.remove_node(rig.node)
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    timer.start()
    try:
        run(rig.node)
    finally:
        timer.join()
        for name, handler in before.items():
            signal.signal(name, handler)
    assert not rclpy.ok()
    found = read(tmp_path / "r" / "episode_000000.mcap")
    assert found.footer["success"] is None and found.footer["mode"] == "RUN" and not found.lost
    result = reproduce(found)
    assert not result.difference and result.reproduced >= 109
    rig.executor.shutdown(timeout_sec=1.0)
    rig.driver.destroy_node()


# -- the client of an action, over DDS --------------------------------------------------------------------------------
def test_goals_are_answered_over_dds(ros):
    """With another action, as no wheel has FollowJointTrajectory: accepted, rejected, canceled, aborted."""
    Fibonacci = pytest.importorskip("test_msgs.action").Fibonacci
    from rclpy.action import ActionClient, ActionServer, GoalResponse

    from robopolicy.real.ros2.outputs import ActionOutput, DriverTrajectory

    ros()
    node, server = Node("client"), Node("server")

    class Goal(Fibonacci.Goal):
        trajectory = None

    wiring = parse(
        changed(topics__trajectory={"name": "go", "rate_hz": 50, "type": "action", "points": "control"}, lead_ticks=8)
    )
    accept, end, said = [True], ["abort"], []
    made = ActionServer(
        server, Fibonacci, "go", goal_callback=lambda goal: GoalResponse.ACCEPT if accept[0] else GoalResponse.REJECT,
        execute_callback=lambda handle: getattr(handle, end[0])() or Fibonacci.Result(),
    )  # fmt: skip
    goals = ActionOutput.__new__(ActionOutput)
    goals.wiring, goals.on_failure, goals.type, goals.every = wiring, said.append, SimpleNamespace(Goal=Goal), 5
    goals._client, goals._number, goals._due = ActionClient(node, Fibonacci, "go"), 0, 0
    goals._unanswered, goals._trajectory = {}, DriverTrajectory(wiring)
    executor = EventsExecutor()
    executor.add_node(node)
    executor.add_node(server)

    def until(condition) -> None:
        limit = time.monotonic() + 60.0
        while not condition():
            assert time.monotonic() < limit
            executor.spin_once(timeout_sec=0.02)

    try:
        until(lambda: not goals.problems())
        goals.send(100, np.tile(HOME, (9, 1)), 3)
        until(lambda: said)
        assert said[0].startswith("driver: goal 1 on 'go' was aborted")
        accept[0] = False
        goals.send(105, np.tile(HOME, (9, 1)), 3)
        until(lambda: len(said) == 2)
        assert "goal 2 on 'go' was rejected" in said[1]
    finally:
        goals.close()
        made.destroy()
        executor.shutdown(timeout_sec=1.0)
        node.destroy_node()
        server.destroy_node()


def test_a_scene_that_excludes_the_preset_s_home_does_not_keep_the_node_from_its_arm():
    """The arm is not there: its own place is checked where it begins."""
    chain = SafetyChain(load_profile("ur5e", workspace=Box((0.2, -0.4, 0.02), (0.7, 0.4, 0.6)), tracking_error=None))
    home = np.array(chain.profile.data["home"])
    with pytest.raises(SafetyError, match="stands where workspace would not allow it"):
        chain.limiter.start(home[None])
    compiled(chain, home)


@pytest.mark.parametrize(
    ("robot", "settings", "at", "limit"),
    [
        ("ur5e", {"self_distance": 0.1}, None, "self_collision"), ("panda", {"condition": 8.5}, None, "singularity"),
        ("ur5e", {}, np.zeros(6), "singularity"),  # as of `arm new home=[0,0,0,0,0,0]`
    ],
)  # fmt: skip
def test_nor_do_other_limits_that_exclude_it(robot, settings, at, limit):
    chain = SafetyChain(load_profile(robot, **settings))
    home = np.array(chain.profile.data["home"]) if at is None else at
    with pytest.raises(SafetyError, match=f"stands where {limit} would not allow it"):
        chain.limiter.start(home[None])
    compiled(chain, home)


def test_every_kind_of_scene_is_compiled_before_an_arm_is_started(monkeypatch):
    """Else the first activation would wait for it, and find its inputs silent."""
    scene = {"workspace": Box((0.2, -0.4, 0.02), (0.7, 0.4, 0.6)), "planes": (Plane((0.0, 0.0, 1.0), 0.3),),
             "keep_out": (Box((0.3, 0.0, 0.0), (0.4, 0.1, 0.1)),)}  # fmt: skip
    made = list[Profile]()
    limiter = pipeline.CommandLimiter
    monkeypatch.setattr(
        pipeline, "CommandLimiter", lambda profile, **kw: made.append(profile) or limiter(profile, **kw)
    )
    chain = SafetyChain(load_profile("ur5e", tracking_error=None, **scene))
    compiled(chain, np.array(chain.profile.data["home"]))
    kinds = [[type(limit) for limit in limiter(profile).limits] for profile in (made[0], chain.profile)]
    assert kinds[0] == kinds[1] and len(kinds[0]) > len(limiter(load_profile("ur5e")).limits)

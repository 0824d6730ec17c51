"""`robopolicy arm check`: what a running arm's messages say against its wiring. One test over DDS, with the command."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("rclpy")

import rclpy
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory

from robopolicy.cli.main import main
from robopolicy.core.errors import ConfigError
from robopolicy.real.arms.check import arm_check
from robopolicy.real.arms.new import arm_new
from robopolicy.real.arms.wiring_text import with_delay
from robopolicy.real.ros2 import messages
from robopolicy.real.ros2.arm_findings import Heard, findings, measured_delay
from robopolicy.real.ros2.messages import StateReader
from robopolicy.real.ros2.wiring import WiringError, load_wiring
from robopolicy.real.safety import SafetyError
from tests.real.arms.robots import simple
from tests.real.ros2_graph import private_domain

NAMES = tuple(f"j{i}" for i in range(1, 7))


@pytest.fixture
def wired(tmp_path):
    (tmp_path / "arm.urdf").write_text(simple())
    return load_wiring(str(arm_new(urdf=tmp_path / "arm.urdf", out=tmp_path)))


def heard_of(wiring, *, rate=100.0, seconds=2.0, q=None, qd=None, late=0.004, names=NAMES, text=None, first=()):
    """What an arm says whose joints are at `q` [T n], by default the first of them swinging."""
    heard, reader = Heard(description=simple() if text is None else text), StateReader(wiring, wiring.profile())
    t = np.arange(round(seconds * rate)) / rate
    swing = np.zeros((len(t), 6))
    swing[:, 0] = 0.2 * np.sin(2 * t)
    speed = np.zeros((len(t), 6))
    speed[:, 0] = 0.4 * np.cos(2 * t)
    q, qd = swing if q is None else q, speed if qd is None else qd
    for message in first:
        heard.take(reader, message, 1000.0)
    for k, now in enumerate(t):
        heard.take(reader, messages.joint_state(names, round((1000.0 + now) * 1e9), q[k], qd[k]), 1000.0 + now + late)
    return heard


def failed(wiring, heard) -> dict[str, str]:
    return {check.name: check.detail for check in findings(heard, wiring) if not check.ok}


def test_an_arm_that_fits_passes_and_says_what_was_not_seen(wired):
    heard = heard_of(wired, first=(JointState(), messages.joint_state(("wheel",), 0, np.ones(1))))
    assert failed(wired, heard) == {}
    found = {check.name: check.detail for check in findings(heard, wired)}
    assert found["joints of others"].startswith("wheel; 1 empty")
    assert "100.0 Hz of 100" in found["rate"] and found["latency"].startswith("4.0 ms")
    assert "went 0.3" in found["direction of j1"] and "j2, j3, j4, j5, j6" in found["directions"]


T = np.arange(200)[:, None] / 100


@pytest.mark.parametrize(
    ("change", "name", "why"),
    [
        ({"names": ("left_j1", *NAMES[1:])}, "joint states", "'j1' is missing; beside them came .'left_j1'"),
        ({"names": tuple(f"left_{n}" for n in NAMES)}, "joint states", "no state of.*joints of others: .'left_j1'"),
        ({"q": np.full((200, 6), 60.0)}, "joint states", "look like degrees"),
        ({"rate": 60.0}, "rate", "60.0 Hz of 100"),
        ({"rate": 200.0}, "rate", "200.0 Hz of 100, expected 150 at most"),
        ({"late": 0.5}, "latency", "500.0 ms"),
        ({"late": -0.5}, "latency", "-500.0 ms"),
        ({"late": -0.015}, "latency", "-15.0 ms"),  # the arm's clock is ahead
        ({"qd": -0.4 * np.cos(2 * T) * np.eye(6)[:1]}, "direction of j1", "-1.00 times"),
        ({"qd": np.rad2deg(0.4) * np.cos(2 * T) * np.eye(6)[:1]}, "direction of j1", "57.* times"),
        ({"q": np.round(0.2 * np.sin(2 * T) / 0.1) * 0.1 * np.eye(6)[:1]}, "resolution", "1.0e-01"),
        ({"q": np.zeros((200, 6)), "qd": np.full((200, 6), 0.2)}, "rest", "0.200 rad/s at rest"),
        ({"text": simple(6, j3={"xyz": (0.05, 0, 0.3)})}, "description", "j2 and j3: axes"),
        ({"text": simple(6, j3={"limit": 'lower="-1" upper="1" velocity="2"'})}, "description", "j3: upper is 1"),
        ({"text": "<robot/>"}, "description", "j1: is not in it"),
    ],
)
def test_what_does_not_fit_is_named(wired, change, name, why):
    found = failed(wired, heard_of(wired, **change))
    with_why = pytest.raises(AssertionError, match=why)
    with with_why:
        raise AssertionError(found[name])


def test_the_delay_is_measured(wired):
    heard = heard_of(wired, late=0.004)
    rng = np.random.default_rng(0)
    kept = [k for k in range(len(heard.states)) if k % 10 != 5]  # a tenth never comes
    late = rng.exponential(0.002, len(heard.states))
    heard.states = [(a + late[k], *rest) for k, (a, *rest) in enumerate(heard.states) if k in kept]
    delay = measured_delay(heard)
    assert delay.latency_s == pytest.approx(0.004 + 0.002 * np.log(2), abs=5e-4)
    assert delay.jitter_s == pytest.approx(0.002 * (np.log(100) - np.log(2)), rel=0.5)
    assert delay.lost == pytest.approx(0.1, abs=0.01)
    assert 0.0 < delay.resolution_rad < 1e-3, "of the joint that swings"
    assert failed(wired, heard_of(wired, late=0.009)) == {
        "lead": "a state and its command need 18.0 ms, of 12 by lead_ticks"
    }
    assert "lead" not in {c.name for c in findings(heard_of(wired, late=-0.015), wired)}, "nothing is known of it"
    for late, fix in ((0.009, "set lead_ticks: 5,"), (0.06, "lead_ticks may be 25 at most")):
        assert fix in next(c.fix for c in findings(heard_of(wired, late=late), wired) if c.name == "lead")


@pytest.mark.parametrize("heard", [
    lambda wiring: Heard(),
    lambda wiring: heard_of(wiring, seconds=0.1),
    lambda wiring: Heard(states=[(s[0], 5.0, *s[2:]) for s in heard_of(wiring).states]),
    lambda wiring: Heard(states=[(s[0], 0.0, *s[2:]) for s in heard_of(wiring).states]),
    lambda wiring: heard_of(wiring, late=-0.015),
], ids=["none", "few", "equal stamps", "no stamps", "stamps in the future"])  # fmt: skip
def test_no_delay_is_made_up(wired, heard):
    assert measured_delay(heard(wired)) is None


def test_the_delay_is_written_into_the_wiring(wired, tmp_path, monkeypatch, capsys):
    file = tmp_path / "robot.yaml"
    before, delay = file.read_text(), measured_delay(heard_of(wired))
    monkeypatch.setattr("robopolicy.real.ros2.arm_check.checks_of", lambda *_: ([], delay))
    for _ in range(2):  # the second replaces the first
        arm_check(wiring=str(file), write=True)
        assert file.read_text().startswith(before) and file.read_text().count("delay:") == 1
    found = load_wiring(str(file))
    assert found.delay.latency_s == pytest.approx(delay.latency_s, abs=1e-6)
    assert found.answer_s == pytest.approx(0.032)
    assert "latency=[0.64,0.64]" in capsys.readouterr().out
    slow = replace(found, delay=replace(found.delay, latency_s=0.04, jitter_s=0.01))
    assert slow.answer_s == pytest.approx(0.12), "a state and its command need longer than lead_ticks"
    block = before + "delay:  # by hand\n  latency_s: 0.1\n  jitter_s: 0.0\n  lost: 0.0\n# the end\n"
    assert with_delay(block, delay).startswith(before + "# the end\ndelay: {latency_s: 0.0")
    for wrong, why in (("{latency_s: 0.1}", "delay.jitter_s"), ("{latency_s: -1, jitter_s: 0, lost: 0}", "latency_s"),
                       ("{latency_s: 0, jitter_s: 0, lost: 1.0}", "delay.lost")):  # fmt: skip
        file.write_text(before + f"delay: {wrong}\n")
        with pytest.raises(WiringError, match=why):
            load_wiring(str(file))


def test_a_delay_is_written_to_files_of_your_own_alone(wired, tmp_path, monkeypatch):
    monkeypatch.setattr("robopolicy.real.ros2.arm_check.checks_of", lambda *_: ([], None))
    with pytest.raises(ConfigError, match="found the preset 'fr3'"):
        arm_check(wiring="fr3", write=True)
    before = (tmp_path / "robot.yaml").read_text()
    with pytest.raises(SafetyError, match="no delay could be measured"):
        arm_check(wiring=str(tmp_path / "robot.yaml"), write=True)
    assert (tmp_path / "robot.yaml").read_text() == before


def test_an_arm_that_says_nothing_is_said(wired):
    assert set(failed(wired, Heard())) == {"joint states"}


@contextlib.contextmanager
def running(monkeypatch, *drivers: tuple[str, tuple[str, ...], float]):
    """Nodes that publish states of joints at rest every so many s: name, joints, s; yields the nodes by name."""
    for key, value in private_domain().items():
        monkeypatch.setenv(key, value)
    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
    nodes, ended = {name: Node(name) for name, *_ in drivers}, threading.Event()
    latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    described = next(iter(nodes.values())).create_publisher(String, "/robot_description", latched)
    described.publish(String(data=simple()))

    def publish(node: Node, joints: tuple[str, ...], every: float) -> None:
        out, zeros = node.create_publisher(JointState, "/joint_states", 10), np.zeros(len(joints))
        while not ended.wait(every):
            out.publish(messages.joint_state(joints, node.get_clock().now().nanoseconds, zeros, zeros))

    threads = [threading.Thread(target=publish, args=(nodes[name], *rest)) for name, *rest in drivers]
    for thread in threads:
        thread.start()
    try:
        yield nodes
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        for node in nodes.values():
            node.destroy_node()
        rclpy.shutdown()


GRIPPER = ("gripper_driver", ("finger",), 1 / 30)  # shares the topic, and is no second driver


@pytest.mark.timeout(120)
def test_the_command_hears_a_running_arm_and_names_what_is_not_there(wired, tmp_path, monkeypatch, capfd):
    with running(monkeypatch, ("driver", NAMES[::-1], 0.009), GRIPPER):
        assert main(["arm", "check", f"wiring={tmp_path}/robot.yaml", "seconds=4"]) == 1
    shown = capfd.readouterr()
    found = set(shown.err.strip().rpartition(": ")[2].split(", "))
    assert "driver" in found, "nothing listens to commands"
    assert found <= {"driver", "rate", "latency", "lead"}, "the rest is well; a busy machine is slow"
    assert "with all 6 joints, in rad" in " ".join(shown.out.split())


@pytest.mark.timeout(120)
def test_the_command_names_a_second_driver_and_who_else_can_command(wired, tmp_path, monkeypatch, capfd):
    from rclpy.action import ActionClient

    Fibonacci = pytest.importorskip("test_msgs.action").Fibonacci
    topic = wired.output.name
    with running(monkeypatch, ("driver", NAMES, 0.009), ("old_driver", NAMES, 0.1), GRIPPER) as nodes:
        nodes["old_driver"].create_publisher(JointTrajectory, topic, 10)
        moveit = nodes["move_group"] = Node("move_group")
        client = ActionClient(moveit, Fibonacci, topic.removesuffix("joint_trajectory") + "follow_joint_trajectory")
        assert main(["arm", "check", f"wiring={tmp_path}/robot.yaml", "seconds=4"]) == 1
        client.destroy()
    shown = capfd.readouterr()
    found = set(shown.err.strip().rpartition(": ")[2].split(", "))
    assert {"publishers of joint_states", "commands to the arm"} <= found
    said = "".join(shown.out.split())
    assert "found2:'/driver'(" in said and "'/old_driver'(" in said and "gripper_driver" not in said
    assert "'/old_driver'publisheson" in said and "'/move_group'sendsgoalsto" in said

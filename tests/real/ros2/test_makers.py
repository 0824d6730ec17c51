"""Presets against the messages that the makers' own launch files give, at their rates: makers/*.yaml.

The preset is used as it stands, but for the patience with the operator's sign of life, which is in wall time. A
joint_trajectory_controller of the maker's name plays the commands.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

pytest.importorskip("rclpy")

import rclpy.action
from rclpy.experimental import EventsExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, String
from trajectory_msgs.msg import JointTrajectory

from robopolicy.core.untrusted import read_yaml
from robopolicy.real.deploy.deploy_config import DeployConfig
from robopolicy.real.ros2 import messages
from robopolicy.real.ros2 import policy_runtime as runtime_module
from robopolicy.real.ros2.policy_node import PolicyNode
from robopolicy.real.ros2.policy_runtime import PolicyRuntime
from robopolicy.real.ros2.qos import profile_of
from robopolicy.real.ros2.wiring import load_wiring
from robopolicy.real.safety import Mode
from robopolicy.real.safety.decision import Patience
from tests.real.arms.robots import frames, joint, robot
from tests.real.controllers import TrajectoryController
from tests.real.ros2.test_arms import Turn
from tests.real.ros2.test_gripper_goals import Client, gripper_command
from tests.real.ros2.test_policy_node import OK, Rig, ros  # noqa: F401
from tests.real.ros2.test_trajectory_stream import DT

pytestmark = pytest.mark.timeout(240)
FOLDER = Path(__file__).parent / "makers"
OPENING = 0.05  # m


def described(limits: dict[str, list[float]], profile) -> str:
    """The URDF of a maker's arm: its own limits, and the axes of the profile."""
    joints = [
        joint(name, f"l{i}", f"l{i + 1}", limit=f'lower="{low}" upper="{high}" velocity="{speed}" effort="80"', **frame)
        for i, ((name, (low, high, speed)), frame) in enumerate(zip(limits.items(), frames(profile), strict=True))
    ]
    return robot(*joints)


class Maker(Node):
    """Publishes as the maker's nodes do, and plays trajectories as its controller does."""

    def __init__(self, given, wiring) -> None:
        super().__init__(given["controller"]["node"])
        self.given, self.wiring, self.tick, self.enabling = given, wiring, 1_000_000, True
        self.home = np.array(wiring.profile().data["home"])
        self.arm = TrajectoryController(wiring.joints, self.home)
        self.played, self.answers, self.taken = [self.home], [], 0
        self.states = [(s, self.create_publisher(JointState, s["topic"], QoSProfile(depth=s["depth"])))
                       for s in given["states"]]  # fmt: skip
        self.enable = self.create_publisher(Bool, "enable", profile_of(wiring.topic("enable")))
        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self.description = self.create_publisher(String, "/robot_description", latched)
        self.description.publish(String(data=described(given["description"], wiring.profile())))
        for states, publisher in self.states:
            if "first" in states:
                publisher.publish(JointState(name=states["first"]))
        self.create_subscription(
            JointTrajectory, given["controller"]["topic"], self.answers.append, QoSProfile(depth=10)
        )
        self.pub = {"enable": self.enable, "joint_states": self.states[0][1]}

    def play(self) -> None:
        ns = self.tick * self.wiring.dt_ns
        for message in self.answers[self.taken :]:
            self.arm.take(message, ns)
        self.taken = len(self.answers)
        q = self.arm.cycle(ns)
        self.played.append(q)
        self.enable.publish(Bool(data=self.enabling))
        for states, publisher in self.states:
            for due in self.due(states["rate_hz"]):
                publisher.publish(self.message(states, due, q))
        self.tick += 1

    def due(self, rate_hz: float) -> list[int]:
        """Return the ns at which messages of this rate lie in this tick; the last one is at its end."""
        begin, end = (self.tick - 1) * self.wiring.dt_ns, self.tick * self.wiring.dt_ns
        step = 1e9 / rate_hz
        return [round(k * step) for k in range(int(begin // step) + 1, int(end // step) + 1)]

    def message(self, states, ns: int, q) -> JointState:
        known = {**dict(zip(self.wiring.joints, q, strict=True)), **dict.fromkeys(self.wiring.gripper, OPENING / 2)}
        values = {"position": [float(known[name]) for name in states["names"]]}
        values |= {field: [0.0] * len(states["names"]) for field in states["fields"] if field != "position"}
        message = JointState(name=states["names"], **values)
        message.header.stamp = messages.to_time(ns)
        return message


class MakerRig(Rig):
    def __init__(self, given, wiring, runtime) -> None:
        self.wiring, self.runtime = wiring, runtime
        self.node, self.driver = PolicyNode(wiring, lambda: runtime, lockstep=True), Maker(given, wiring)
        self.executor = EventsExecutor()
        for node in (self.node, self.driver):
            self.executor.add_node(node)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            expected, before = self.driver.tick * DT, len(self.driver.answers)
            self.driver.play()
            arm = self.stream.arm
            self.until(lambda: arm.clock.newest >= expected - 1e-6, "the state")  # noqa: B023
            self.node.pump()
            end = time.monotonic() + 0.05  # a controller that has just been greeted gets no command for a while
            while arm.active and len(self.driver.answers) == before and time.monotonic() < end:
                self.executor.spin_once(timeout_sec=0.01)


@pytest.mark.parametrize("robot", [path.stem for path in sorted(FOLDER.glob("*.yaml"))])
def test_a_preset_fits_what_its_makers_start(robot, ros, monkeypatch, tmp_path):  # noqa: F811
    given, preset = read_yaml(FOLDER / f"{robot}.yaml", error=ValueError), load_wiring(robot)
    wiring = replace(preset, watchdogs={**preset.watchdogs, "enable": Patience(fault=2.0)})
    if "gripper" in given:
        gripper_command(monkeypatch)
        monkeypatch.setattr(rclpy.action, "ActionClient", Client)
        assert wiring.grip.name == given["gripper"]["action"]
        assert wiring.grip.factor == given["gripper"]["position_of_an_opening"]
    policy = Turn(tuple(f"{joint}.pos" for joint in wiring.joints), gripper=bool(wiring.gripper))
    monkeypatch.setattr(runtime_module, "load_policy", lambda *_, **__: policy)
    config = DeployConfig(checkpoint=tmp_path, safety={"tcp_speed": 0.25}, lockstep=True, process=False)
    ros()
    rig = MakerRig(given, wiring, PolicyRuntime(config, wiring))
    try:
        rig.meet()
        policy.goal = None  # the warm-up saw the home pose
        rig.step(60)
        described = lambda: not any("robot_description" in p for p in rig.node.pipeline.subscriptions.problems())  # noqa: E731
        rig.until(described, "the arm's description, which comes on its own way")
        assert rig.node.trigger_activate() == OK, rig.node.why
        rig.step(450)
        assert rig.arm.mode is Mode.RUN, (rig.stream.reasons, rig.arm.counts)
        assert rig.driver.played[-1][0] - rig.driver.home[0] == pytest.approx(0.3, abs=0.03)
        assert rig.driver.arm.rejected == [] and rig.arm.counts["joint_states_refused"] == 0, rig.arm.counts
        if wiring.gripper:
            assert policy.openings[-1] == pytest.approx(OPENING)
        assert rig.node.trigger_deactivate() == OK
    finally:
        rig.close()


def test_a_preset_of_another_rate_would_be_held_for_good():
    """The 30 Hz of /joint_states do not feed the watchdog of the state, which is why the preset takes another topic."""
    from robopolicy.real.ros2.wiring import FOLDER as PRESETS
    from robopolicy.real.ros2.wiring import WiringError, parse

    data = yaml.safe_load((PRESETS / "fr3.yaml").read_text())
    data["topics"]["joint_states"] |= {"name": "/joint_states", "rate_hz": 30}
    with pytest.raises(WiringError, match=r"watchdogs\.state: .*less than two messages of topics\.joint_states at 30"):
        parse(data)


def test_control_msgs_is_asked_for_by_name(monkeypatch):
    from robopolicy.real.ros2.gripper_goals import GripperGoals
    from robopolicy.real.ros2.wiring import WiringError

    monkeypatch.setitem(sys.modules, "control_msgs", None)
    with pytest.raises(WiringError, match=r"topics\.gripper: .*ros-\$ROS_DISTRO-control-msgs"):
        GripperGoals(SimpleNamespace(), load_wiring("fr3").grip, pytest.fail)

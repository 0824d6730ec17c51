"""Arms of six and of five joints over real DDS: a policy of their own data, the node, a driver that plays its commands.

Their states come as drivers send them: an empty first message, joints of others, a gripper apart at 30 Hz.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import yaml

pytest.importorskip("rclpy")

from rclpy.experimental import EventsExecutor
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool

from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import STATE, ActionSpec, Feature
from robopolicy.policies.base import Policy
from robopolicy.real.deploy.deploy_config import DeployConfig
from robopolicy.real.ros2 import messages
from robopolicy.real.ros2 import policy_runtime as runtime_module
from robopolicy.real.ros2.policy_node import PolicyNode
from robopolicy.real.ros2.policy_runtime import PolicyRuntime
from robopolicy.real.ros2.qos import profile_of
from robopolicy.real.ros2.timeline import Timeline
from robopolicy.real.ros2.wiring import FOLDER, parse
from robopolicy.real.safety import Mode
from robopolicy.real.safety.audit import joint_violations, space_violations
from tests.real.ros2.test_policy_node import OK, Driver, Rig, ros  # noqa: F401
from tests.real.ros2.test_trajectory_stream import DT

pytestmark = pytest.mark.timeout(240)


class Turn(Policy):
    """Turns the first joint by 0.3 rad from where the arm stood at its first picture of the state."""

    def __init__(self, names: tuple[str, ...], *, gripper: bool = True) -> None:
        super().__init__()
        n = len(names)
        action = ActionSpec(
            names=names, units=("rad",) * n, low=(-7.0,) * n, high=(7.0,) * n, frame="joint", tcp="tcp",
            rotation="joint", reference="absolute", gripper=None, gripper_meaning="",
        )  # fmt: skip
        state = Feature((n + gripper,), names=(*names, "gripper.pos")[: n + gripper])
        self.spec = PolicySpec({STATE: state}, action, 0.05, 1, 8, 4, ("go",))
        self.goal, self.openings = None, []

    def act(self, obs, *, noise=None, deterministic=False):
        seen = obs[STATE][:, -1]
        self.openings.append(float(seen[0, -1]))
        if self.goal is None:
            self.goal = seen[:, : self.spec.action.dim].clone()
            self.goal[:, 0] += 0.3
        return self.goal[:, None].expand(1, self.spec.horizon, -1).clone()


def wiring_of(name: str):
    """The preset, behind a driver that plays control points and says so, with a gripper of its own."""
    data = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    data["gripper"] = {"finger": 1.0}
    data["topics"] |= {
        "joint_commands": {"name": "joint_commands", "rate_hz": 250.0, "depth": 50}, "robot_description": None,
        "gripper_states": {"name": data["topics"]["joint_states"]["name"], "rate_hz": 30.0, "depth": 10},
        "trajectory": {**data["topics"]["trajectory"], "points": "control", "node": ""},
    }  # fmt: skip
    data["watchdogs"] |= {"gripper_states": {"hold": 0.2, "fault": 1.0}, "enable": {"fault": 2.0}}
    return parse(data)


class Shared(Driver):
    """A driver whose topic of states is shared with a mobile base and a gripper's driver."""

    def __init__(self, wiring, home) -> None:
        super().__init__(wiring)
        self.line = Timeline(home, self.tick)
        topic = wiring.topic("joint_states")
        self.base, self.fingers = (self.create_publisher(JointState, topic.name, profile_of(topic)) for _ in range(2))
        self.pub["joint_states"].publish(JointState())  # as joint_state_broadcaster does before its first update

    def play(self) -> None:
        came, self.answers = self.answers, []
        for message in came:
            if message.points:
                assert not (why := self.line.offer(*messages.points_of(message, self.order, self.wiring.dt_ns))), why
        q, ns = self.line.play(), self.tick * self.wiring.dt_ns
        self.played.append(q)
        self.pub["enable"].publish(Bool(data=self.enabling))
        self.pub["joint_commands"].publish(messages.joint_state(self.wiring.joints, ns, q))
        self.base.publish(messages.joint_state(("left_wheel", "right_wheel"), ns, np.ones(2), np.ones(2)))
        if self.tick % 8 == 0:
            self.fingers.publish(messages.joint_state(("finger",), ns, np.array([0.03])))
        names = (*self.wiring.joints[::-1], "tool_changer")
        self.pub["joint_states"].publish(messages.joint_state(names, ns, np.append(q[::-1], 5.0), np.zeros(len(names))))
        self.tick += 1


class ArmRig(Rig):
    def __init__(self, wiring, runtime) -> None:
        self.wiring, self.runtime = wiring, runtime
        self.node = PolicyNode(wiring, lambda: runtime, lockstep=True)
        self.driver = Shared(wiring, np.array(wiring.profile().data["home"]))
        self.executor = EventsExecutor()
        for node in (self.node, self.driver):
            self.executor.add_node(node)


@pytest.mark.parametrize("robot", ["ur5e", "so101"])
def test_a_policy_of_its_own_data_drives_an_arm_of_fewer_joints(robot, ros, monkeypatch, tmp_path):  # noqa: F811
    wiring = wiring_of(robot)
    policy = Turn(tuple(f"{joint}.pos" for joint in wiring.joints))
    monkeypatch.setattr(runtime_module, "load_policy", lambda *_, **__: policy)
    config = DeployConfig(checkpoint=tmp_path, safety={"tcp_speed": 0.25}, lockstep=True, process=False)
    ros()
    rig = ArmRig(wiring, PolicyRuntime(config, wiring))
    try:
        rig.meet()
        policy.goal = None  # the warm-up saw the home pose
        rig.step(40)
        assert rig.node.trigger_activate() == OK, rig.node.why
        rig.step(300)
        assert rig.arm.mode is Mode.RUN, rig.stream.arm.chain.counts
        home, profile = np.array(wiring.profile().data["home"]), rig.arm.chain.profile
        assert rig.driver.played[-1][0] - home[0] == pytest.approx(0.3, abs=0.02)
        assert policy.openings[-1] == pytest.approx(0.03)
        counts = rig.arm.counts
        assert counts["joint_states_ignored"] > 300 and counts["joint_states_refused"] == 0, counts
        commands = np.array([rig.driver.played[0]] * 4 + rig.driver.played)[:, None]
        assert sum(joint_violations(commands, profile, DT).values()) == 0
        assert sum(space_violations(commands, profile, DT, poses=200).values()) == 0
        assert rig.node.trigger_deactivate() == OK
    finally:
        rig.close()


def test_a_policy_of_a_task_of_another_arm_is_refused(monkeypatch, tmp_path):
    from robopolicy import sim
    from robopolicy.core.errors import SpecError

    env = sim.make("reach", 1)
    wiring = wiring_of("ur5e")
    policy = Turn(tuple(f"{joint}.pos" for joint in wiring.joints))
    policy.spec = replace(policy.spec, observation=env.spec.observation, action=env.spec.action, tasks=env.spec.tasks)
    monkeypatch.setattr(runtime_module, "load_policy", lambda *_, **__: policy)
    monkeypatch.setattr(runtime_module, "one_env", lambda *_: env)
    config = DeployConfig(checkpoint=tmp_path, task={"_target_": "reach"}, process=False)
    with pytest.raises(SpecError, match="its arm has 7 joints, the limits 'ur5e' have 6"):
        PolicyRuntime(config, wiring)

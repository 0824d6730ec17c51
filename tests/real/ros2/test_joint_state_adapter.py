"""A policy of a robot's own data over ROS 2: joints by name, no task of ours. No DDS."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from mcap.reader import make_reader

from robopolicy.core.errors import DataError, SpecError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import STATE, TASK, ActionSpec, Feature
from robopolicy.policies.base import Policy
from robopolicy.real.control.robots import State
from robopolicy.real.datasets.convert import _effect
from robopolicy.real.deploy.deploy_config import DeployConfig
from robopolicy.real.planning.planner import PlanningError
from robopolicy.real.recording.recorder import Recorder
from robopolicy.real.ros2 import policy_runtime as runtime_module
from robopolicy.real.ros2.joint_state_adapter import JointStateObserver, NamedJoints
from robopolicy.real.ros2.policy_runtime import PolicyRuntime
from robopolicy.real.safety import Mode, SafetyError, load_profile
from tests.real.planning.test_remote_planner import serving
from tests.real.ros2.test_messages import HOME, WIRING
from tests.real.ros2.test_trajectory_stream import DT, Wire

JOINTS = [f"panda_joint{i}" for i in (3, 1, 2, 4, 5, 6, 7)]  # another order than the arm's
IMAGE = "observation.images.wrist"
ACTION = ActionSpec(
    names=("gripper", *(f"{j}.pos" for j in JOINTS)), units=("m", *("rad",) * 7), low=(0.0, *(-3.0,) * 7),
    high=(0.08, *(4.0,) * 7), frame="joint", tcp="tcp", rotation="joint", reference="absolute", gripper=0,
    gripper_meaning="opening",
)  # fmt: skip
ELEMENTS = (*(f"{j}.pos" for j in JOINTS), "ball_x", "panda_joint2.vel", "gripper.pos")
SPEC = PolicySpec(
    {STATE: Feature((10,), names=ELEMENTS), IMAGE: Feature((3, 8, 8), "uint8")}, ACTION, 0.05, 1, 8, 4, ("go",)
)  # fmt: skip


class Follow(Policy):
    """Sends the first joint of the arm to `ball_x`, while the picture is bright."""

    def __init__(self) -> None:
        super().__init__()
        self.spec = SPEC

    def act(self, obs, *, noise=None, deterministic=False):
        seen = obs[STATE][:, -1]
        action = torch.cat([torch.full((1, 1), 0.03), seen[:, :7]], dim=1)
        if obs[IMAGE].float().mean() > 100:
            action[:, 2] = seen[:, 7]  # panda_joint1
        return action[:, None].expand(1, SPEC.horizon, -1).clone()


def test_a_policy_with_a_gripper_is_refused_by_a_wiring_without():
    """It would see 0 m for ever, and what it commands would go nowhere."""
    bare = replace(WIRING, gripper={}, topics=WIRING.topics | {"gripper": None})
    armed = replace(ACTION, names=ACTION.names[1:], units=ACTION.units[1:], low=ACTION.low[1:], high=ACTION.high[1:],
                    gripper=None, gripper_meaning="")  # fmt: skip
    sees, state = SPEC.observation, Feature((7,), names=ELEMENTS[:7])
    for spec in (
        replace(SPEC, observation={**sees, STATE: state}),
        replace(SPEC, action=armed),
    ):
        with pytest.raises(SpecError, match=r"gripper\.pos: .*topics\.gripper"):
            JointStateObserver(spec, bare, (IMAGE,))
        JointStateObserver(spec, replace(bare, opening=0.05), (IMAGE,))  # LeRobot's
    JointStateObserver(replace(SPEC, observation={**sees, STATE: state}, action=armed), bare, (IMAGE,))


def test_what_it_sees_is_found_by_name():
    observer = JointStateObserver(SPEC, WIRING, (IMAGE,))
    assert observer.names == ("ball_x",)
    state = State(HOME, np.arange(7.0), 0.05)
    with pytest.raises(SpecError, match="features: nothing has come"):
        observer(state)
    observer.take(["ball_x"], [0.25])
    with pytest.raises(SpecError, match="no picture has come"):
        observer(state)
    observer.take_image(IMAGE, np.full((3, 8, 8), 7, np.uint8))
    obs = observer(state)
    want = [*HOME[[2, 0, 1, 3, 4, 5, 6]], 0.25, 1.0, 0.05]
    assert obs[STATE].shape == (1, 10) and np.allclose(obs[STATE][0], want) and int(obs[IMAGE].max()) == 7
    nameless = replace(SPEC, observation={STATE: Feature((10,))})
    with pytest.raises(SpecError, match="its elements have no names"):
        JointStateObserver(nameless, WIRING)
    several = replace(SPEC, observation={**SPEC.observation, TASK: Feature((), "int64")}, tasks=("open", "close"))
    with pytest.raises(SpecError, match=r"one of several tasks, \['open', 'close'\]"):
        JointStateObserver(several, WIRING)


def test_what_was_commanded_becomes_its_own_kind_of_action():
    """For datasets: channels in the policy's order, the gripper in its unit."""
    after = {"q": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], "grip": -0.5}
    joints = list(load_profile("panda").joints)
    assert np.allclose(_effect({}, after, ACTION, joints), [0.02, 3.0, 1.0, 2.0, 4.0, 5.0, 6.0, 7.0])
    foreign = replace(ACTION, names=("gripper", "elbow.pos", *ACTION.names[2:]))
    with pytest.raises(DataError, match=r"'elbow.pos' is no joint of the limits' arm"):
        _effect({}, after, foreign, joints)


def test_actions_reach_the_joints_that_they_name():
    controller = NamedJoints(ACTION, WIRING, dt=0.05)
    action = np.array([[0.02, 3.0, 1.0, 2.0, 4.0, 5.0, 6.0, 7.0]])
    ctrl = controller.command(action, np.zeros((1, 3)), np.zeros(1))
    assert np.allclose(ctrl[0], [1, 2, 3, 4, 5, 6, 7, 0.01, 0.01])  # each finger half of the opening


def test_degrees_and_percentages_are_read_and_commanded_as_recorded():
    wiring, degrees = replace(WIRING, opening=0.05), replace(ACTION, units=("%", *("deg",) * 7))
    controller = NamedJoints(degrees, wiring, dt=0.05)
    ctrl = controller.command(
        np.array([[40.0, *np.rad2deg([3.0, 1.0, 2.0, 4, 5, 6, 7])]]), np.zeros((1, 3)), np.zeros(1)
    )
    assert np.allclose(ctrl[0], [1, 2, 3, 4, 5, 6, 7, 0.01, 0.01])  # 40% of 0.05 m
    observer = JointStateObserver(replace(SPEC, action=degrees), wiring)
    observer.take(["ball_x"], [0.25])
    seen = observer(State(HOME, np.arange(7.0), 0.02))[STATE][0]
    want = [*np.rad2deg(HOME[[2, 0, 1, 3, 4, 5, 6]]), 0.25, np.rad2deg(1.0), 40.0]
    assert np.allclose(seen, want, atol=1e-4)
    recorded = {"q": [1.0] * 7, "grip": -0.5}
    in_m = replace(degrees, units=("m", *("deg",) * 7))
    assert np.allclose(_effect({}, recorded, in_m, list(load_profile("panda").joints))[1:], np.rad2deg(1.0))
    with pytest.raises(DataError, match="'gripper' is in %"):
        _effect({}, recorded, degrees, list(load_profile("panda").joints))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"reference": "commanded"}, "absolute joint targets are understood; these are commanded"),
        ({"names": ("gripper", "panda_joint9.pos", *ACTION.names[2:])}, r"'panda_joint9.pos' is no joint of 'panda'"),
        ({"names": ("gripper", ACTION.names[2], *ACTION.names[2:])}, "expected each of .* once"),
        ({"units": ("m", "turn", *("rad",) * 6)}, "action.panda_joint3.pos: expected rad or deg, found 'turn'"),
        ({"units": ("kg", *("rad",) * 7)}, "action.gripper: expected an opening in m"),
        ({"units": ("%", *("rad",) * 7)}, "action.gripper: in %, and this wiring gives no opening"),
    ],
)
def test_actions_that_are_not_understood_are_refused(change, what):
    with pytest.raises(SpecError, match=what):
        NamedJoints(replace(ACTION, **change), WIRING, dt=0.05)


def test_it_drives_the_arm_behind_the_limits(monkeypatch, tmp_path):
    """To where it is told, within every limit, and no further once it is shown darkness."""
    monkeypatch.setattr(runtime_module, "load_policy", lambda *_, **__: Follow())
    config = DeployConfig(checkpoint=tmp_path, safety={"tcp_speed": 0.5}, lockstep=True)
    runtime = PolicyRuntime(config, WIRING)
    assert runtime.names == ("ball_x",) and runtime.cameras == {IMAGE: (3, 8, 8)} and runtime.spec.id == "panda"
    assert {dog.name for dog in runtime.chain().watchdogs} == {"state", "enable", "features", "joint_commands", IMAGE}
    assert runtime.chain().limiter.clock() == 0.0, "simulated time has no late ticks"
    assert PolicyRuntime(replace(config, lockstep=False, process=False), WIRING).chain().limiter.clock is time.monotonic
    slow = PolicyRuntime(replace(config, speed=0.1), WIRING).chain().profile.settings
    assert (slow.tcp_speed, slow.velocity) == pytest.approx((0.05, 0.05)), "the second by default is 0.5"
    with pytest.raises(SafetyError, match="energy: the tank needs external torques"):
        PolicyRuntime(replace(config, safety={"energy": 2.0}), WIRING).chain()
    late = replace(WIRING, cameras={IMAGE: replace(WIRING.cameras[IMAGE], latency_s=0.05)})
    loop = PolicyRuntime(config, late).loop(Wire().stream.arm, runtime.chain(), lambda: 0.0)
    assert loop.observation_history.age == 0.05 and loop.plans.lead == 1, "asked for as much earlier"
    with pytest.raises(SpecError, match=r"chunking=rtc: .* pictures that are 0.05 s old"):
        PolicyRuntime(replace(config, chunking="rtc"), late)
    wire = Wire(make_loop=runtime.loop, settings={"tcp_speed": 0.5})
    runtime.warm_up(State(HOME, np.zeros(7), 0.08))
    bright, dark = np.full((3, 8, 8), 200, np.uint8), np.zeros((3, 8, 8), np.uint8)
    runtime.take(["ball_x"], [0.4])
    runtime.take_image(IMAGE, bright)
    wire.begin()
    wire.run(round(3.0 / DT))
    assert wire.stream.arm.mode is Mode.RUN and wire.played[-1][0] == pytest.approx(0.4, abs=0.01)
    assert wire.stream.arm.opening == pytest.approx(0.03)
    runtime.take_image(IMAGE, dark)
    wire.run(50)
    runtime.take(["ball_x"], [-0.4])
    wire.run(round(1.0 / DT))
    assert wire.played[-1][0] == pytest.approx(0.4, abs=0.01)
    wire.check()
    runtime.close()


def test_a_server_plans_in_its_place(monkeypatch, tmp_path):
    """The weights stay there; recordings say whose they are; a server of another policy is refused."""
    policy = Follow()
    monkeypatch.setattr(runtime_module, "read_spec", lambda *_, **__: policy.spec)
    monkeypatch.setattr(runtime_module, "load_policy", pytest.fail)
    with serving(policy, ident="follow@1") as server:
        config = DeployConfig(checkpoint=tmp_path, safety={"tcp_speed": 0.5}, server=f"127.0.0.1:{server.port}")
        runtime = PolicyRuntime(config, WIRING, Recorder(tmp_path / "r"))
        assert runtime.process is None and runtime.planner is runtime.policy
        runtime.warm_up(State(HOME, np.zeros(7), 0.08))
        runtime.begin(runtime.chain(), 3)
        runtime.end(True)
        assert json.loads(next(_messages(tmp_path / "r")))["policy_id"] == "follow@1"
        runtime.close()
        assert runtime.policy.line is None
        runtime.policy.keys = ["observation.images.other"]
        with pytest.raises(SpecError, match=r"corrects one that sees \['observation.images.other'\]"):
            runtime_module._specs(runtime.policy)
        unfit = replace(policy.spec, action=replace(policy.spec.action, tcp="flange"))
        lines = 0
        server.spec = unfit
        monkeypatch.setattr(runtime_module, "read_spec", lambda *_, **__: unfit)
        with pytest.raises(SpecError, match="flange") as refused:  # which keeps all that it has seen alive
            PolicyRuntime(config, WIRING)
        until = time.monotonic() + 10.0
        while len(server.connections.open) > lines and time.monotonic() < until:
            time.sleep(0.01)
        assert len(server.connections.open) == lines, f"it has not hung up: {refused.value}"
        server.spec, other = policy.spec, replace(policy.spec, dt=policy.spec.dt / 2)
        monkeypatch.setattr(runtime_module, "read_spec", lambda *_, **__: other)
        with pytest.raises(PlanningError, match="refuses: spec: the client expects another policy"):
            PolicyRuntime(config, WIRING)


def _messages(folder):
    with next(folder.iterdir()).open("rb") as file:
        for _, _, message in make_reader(file).iter_messages():
            yield message.data

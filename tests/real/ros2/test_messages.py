"""What comes in over ROS 2 and must be refused, with the reason named; wiring files; planning in a thread. No DDS."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from robopolicy import sim
from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.core.types import BASE_ACTION, STATE, Feature
from robopolicy.real.control.chunk_buffer import check_latency
from robopolicy.real.planning.planner import PlanningError, ThreadRunner
from robopolicy.real.ros2.observation import Observer, check_features, check_robot
from robopolicy.real.ros2.wiring import FOLDER, WiringError, load_wiring, parse
from robopolicy.real.safety import SafetyError, load_profile
from tests.real.control.test_robots import Drive

WIRING = load_wiring("mujoco_panda")
HOME = np.array(load_profile("panda").data["home"])
NAMES = [*WIRING.joints, *WIRING.gripper]


# -- wiring ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", sorted(p.stem for p in FOLDER.glob("*.yaml")))
def test_presets_are_whole(name):
    wiring = load_wiring(name)
    assert len(wiring.joints) == len(load_profile(wiring.limits).joints)
    assert wiring.dt_ns == 4_000_000


def changed(**changes):
    data = yaml.safe_load((FOLDER / "mujoco_panda.yaml").read_text())
    for path, value in changes.items():
        at = data
        *way, last = path.split("__")
        for key in way:
            at = at[key]
        if value is ...:
            del at[last]
        else:
            at[last] = value
    return data


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"tick": 1}, "tick: unknown key. Did you mean .tick_s."),
        ({"tick_s": ...}, "tick_s: Field required"),
        ({"tick_s": 0.5}, "tick_s: .* less than or equal to 0.02, found 0.5"),
        ({"lead_ticks": 0}, "lead_ticks"),
        ({"limits": "pandas"}, "limits: 'pandas'"),
        ({"joints__panda_joint7": ...}, "joints: expected the joints of the limits"),
        ({"joints__panda_joint7": "panda_joint6"}, "stands for two joints"),
        ({"gripper__panda_joint1": 1.0}, "are joints of the arm"),
        ({"topics__enable": None}, "topics.enable: .* object, found None"),
        ({"topics__enable__reliability": "sometimes"}, "enable.reliability: .*'best_effort', found 'sometimes'"),
        ({"topics__enable__depth": 0}, "enable.depth: .* greater than or equal to 1, found 0"),
        ({"topics__enable__durability": "forever"}, "enable.durability: .*'volatile' or 'transient_local'"),
        ({"topics__camera": {"name": "x"}}, "topics.camera: unknown key"),
        (
            {"joints__panda_joint1": "panda_joint2", "joints__panda_joint2": "panda_joint1"},
            "'panda_joint2' stands for another joint than the limits call so",
        ),
        ({"cameras__observation.images.wrist__name": "camera/front/image_raw"}, "two of them have one topic"),
        ({"cameras__wrist": {"name": "x", "rate_hz": 5}}, r"cameras.wrist.*match pattern .*images"),
        ({"cameras__observation.images.wrist__type": "jpeg"}, "type: .*'image' or 'compressed', found 'jpeg'"),
        ({"cameras__observation.images.wrist__rate_hz": 0}, r"images.wrist.rate_hz: .* equal to 0.01, found 0"),
        (
            {"cameras__observation.images.side__latency_s": -0.1},
            r"images.side.latency_s: .* greater than or equal to 0",
        ),
        ({"watchdogs__state": {"halt": 1.0}}, "watchdogs.state.halt"),
        ({"watchdogs__state": {}}, "watchdogs.state: .*hold or fault after at most 2 s of silence, found none"),
        ({"watchdogs__state": {"slow": 0.1}}, "watchdogs.state: .* found none"),
        ({"watchdogs__state": {"hold": 50, "fault": 200}}, "watchdogs.state: .* found 50 s. Is it in ms"),
        ({"watchdogs__enable": {}}, "watchdogs.enable: .*at most 30 s of silence, found none"),
        ({"watchdogs__enable": {"fault": 100}}, "watchdogs.enable: .* found 100 s. Is it in ms"),
        (
            {"watchdogs__images": {}},
            r"watchdogs.images: .*expected hold or fault after at most 10 s of silence, found none",
        ),
        ({"gripper": {}}, "topics.gripper: expected null, as `gripper` names no joint to measure"),
        ({"watchdogs__state": {"hold": float("inf")}}, "watchdogs.state.hold: .* finite"),
        ({"watchdogs__state": {"hold": -1.0}}, "watchdogs.state.hold: .* greater than 0"),
        ({"topics__joint_commands__rate_hz": 20}, r"topics.joint_commands at 20 Hz: the arm would be held for good"),
        ({"topics__enable__rate_hz": 10}, r"watchdogs.enable: 0.1 s is less than two messages of topics.enable"),
        (
            {"watchdogs__images": {"slow": 0.05, "hold": 0.2}},
            r"cameras.observation.images.front at 25 Hz.* Give 0.08 s or more",
        ),
    ],
)
def test_a_wiring_that_is_wrong_says_where(changes, what):
    with pytest.raises(SafetyError, match=what):
        parse(changed(**changes))


def test_a_wiring_that_is_not_there():
    with pytest.raises(WiringError, match="mujoco_panda"):
        load_wiring("mujoco_pandas")


# -- states ---------------------------------------------------------------------------------------------------------
def message(names=NAMES, position=None, velocity=None):
    messages = pytest.importorskip("robopolicy.real.ros2.messages")
    q = np.array([*HOME, 0.04, 0.04]) if position is None else np.asarray(position)
    return messages.joint_state(tuple(names), 10**18, q, np.zeros(len(q)) if velocity is None else np.asarray(velocity))


def reader():
    return pytest.importorskip("robopolicy.real.ros2.messages").StateReader(WIRING, load_profile("panda"))


def test_a_state_is_read_in_any_order():
    order = np.random.default_rng(0).permutation(9)
    q, qd = np.array([*HOME, 0.03, 0.04]), np.arange(9.0) / 10
    state = reader().read(message([NAMES[i] for i in order], q[order], qd[order]))
    assert np.array_equal(state.q, HOME) and np.array_equal(state.qd, qd[:7])
    assert state.opening == pytest.approx(0.07)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda: message(["fr3_joint1", *NAMES[1:]]), "'panda_joint1' is missing; beside them came"),
        (lambda: message(NAMES[1:], np.array([*HOME[1:], 0.04, 0.04])), "'panda_joint1' is missing"),
        (lambda: message([NAMES[1], *NAMES[1:]]), "'panda_joint2' comes 2 times"),
        (lambda: message(NAMES[:8], np.array([*HOME, 0.04])), "'panda_finger_joint2' is missing"),
        (lambda: message(position=[*np.rad2deg(HOME), 0.04, 0.04]), "look like degrees"),
        (lambda: message(position=[*HOME[[0, 3, 2, 1, 4, 5, 6]], 0.04, 0.04]), "two joints swapped"),
        (lambda: message(position=[*HOME[:6], np.nan, 0.04, 0.04]), "'panda_joint7' is not finite"),
        (lambda: message(position=[*HOME, 40.0, 40.0]), "are 80 m apart by `gripper`, expected -0.04 to 0.12"),
        (lambda: message(position=[*HOME, -0.04, -0.04]), "are -0.08 m apart"),
        (lambda: message(velocity=[]), "expected 9 velocities"),
        (lambda: message(velocity=[np.inf] * 9), "velocity of 'panda_joint1' is not finite"),
    ],
)
def test_a_state_that_is_wrong_is_refused(change, what):
    with pytest.raises(SafetyError, match=what):
        reader().read(change())


def test_trajectories_survive_the_way():
    """Bit for bit, in whatever order the joints are named; points that are not a tick apart are refused."""
    messages = pytest.importorskip("robopolicy.real.ros2.messages")
    from robopolicy.real.control.joint_order import JointOrder

    points = np.random.default_rng(0).normal(size=(40, 7))
    sent = messages.trajectory(WIRING.joints, 123_456 * WIRING.dt_ns, points, WIRING.dt_ns)
    first, found = messages.points_of(sent, JointOrder(WIRING.joints), WIRING.dt_ns)
    assert first == 123_456 and np.array_equal(found, points)
    other = messages.trajectory(WIRING.joints[::-1], 0, points[:, ::-1], WIRING.dt_ns)
    assert np.array_equal(messages.points_of(other, JointOrder(WIRING.joints), WIRING.dt_ns)[1], points)
    with pytest.raises(SafetyError, match="control points come one a tick"):
        messages.points_of(sent, JointOrder(WIRING.joints), 2 * WIRING.dt_ns)
    for k in range(1, 38):  # two in the middle have changed places, each with its own time
        swapped = messages.trajectory(WIRING.joints, 0, points, WIRING.dt_ns)
        swapped.points[k : k + 2] = swapped.points[k : k + 2][::-1]
        with pytest.raises(SafetyError, match=f"point {k} is due"):
            messages.points_of(swapped, JointOrder(WIRING.joints), WIRING.dt_ns)


# -- policies and robots --------------------------------------------------------------------------------------------
def env():
    return sim.make("reach", 1, joint_noise=0.0, horizon=20)


def test_a_spec_that_does_not_match_the_robot():
    spec = Drive(env(), [0.0] * 5).spec
    check_robot(spec, WIRING)
    check_robot(replace(spec, observation={**spec.observation, BASE_ACTION: Feature((5,))}), WIRING)  # a residual
    for bad, what in (
        (replace(spec, action=replace(spec.action, tcp="flange")), "frames.tcp: the policy acts in 'flange'"),
        (replace(spec, dt=0.004), "dt: the policy acts every 0.004"),
        (replace(spec, observation={**spec.observation, "observation.images.wirst": Feature((3, 96, 96), "uint8")}),
         r"observation.images.wirst: .* the wiring's `cameras` lack it.*observation.images.wrist"),
    ):  # fmt: skip
        with pytest.raises(SpecError, match=what):
            check_robot(bad, WIRING)
    bare = replace(WIRING, topics={**WIRING.topics, "features": None})
    check_robot(spec, bare)
    check_features((), bare)
    with pytest.raises(SpecError, match=r"sees \['target_x'.*topics\.features is null"):
        check_features(Observer(env()).names, bare)


def test_a_latency_that_cannot_be_bridged_is_refused():
    spec = Drive(env(), [0.0] * 5, steps=1).spec
    check_latency(spec, 0.05)
    check_latency(spec, 0.07, early=0.02)
    with pytest.raises(SpecError, match="can bridge up to 50 ms"):
        check_latency(spec, 0.055)
    with pytest.raises(SpecError, match="can bridge up to 70 ms"):
        check_latency(spec, 0.074, early=0.02)


def test_features_are_matched_by_name():
    one = env()
    observer = Observer(one)
    with pytest.raises(SpecError, match="nothing has come"):
        observer(reader_state())
    names = observer.names
    observer.take(names[::-1], np.arange(len(names), dtype=float)[::-1])
    state = observer(reader_state())[STATE][0]
    assert [float(state[one.layout.names.index(n)]) for n in names] == list(range(len(names)))
    for bad, what in ((names[1:], "is missing"), ((*names[1:], "wrong"), "is not one of them")):
        with pytest.raises(SafetyError, match=f"^features: .*{what}"):
            observer.take(bad, [0.0] * len(bad))
    with pytest.raises(SpecError, match="is not finite"):
        observer.take(names, [np.nan] * len(names))


def reader_state():
    from robopolicy.real.control.robots import State

    return State(HOME, np.zeros(7), 0.08)


def test_robots_are_offered_by_name(tmp_path):
    from robopolicy.real.deploy.deploy import deploy

    with pytest.raises(ConfigError, match=r"mujoco_ros\b.*mujoco_ros2"):
        deploy(checkpoint=tmp_path, robot="mujoco_ros")


# -- planning in a thread -------------------------------------------------------------------------------------------
class Slow:
    """A planner that waits to be let go."""

    def __init__(self) -> None:
        self.go, self.seeds, self.fail = threading.Event(), [], False

    def reset(self, seed):
        self.seeds.append(seed)

    def plan(self, obs, step, ahead=None):
        assert self.go.wait(60.0)
        if self.fail:
            raise ValueError("no idea")
        return np.full((1, 2), float(step))


def poll(runner, now):
    until = time.monotonic() + 60.0
    while (done := runner.poll(now)) is None and time.monotonic() < until:
        time.sleep(0.001)
    return done


def test_planning_in_a_thread():
    """A tick never waits for it; what was asked for in an episode that is over is dropped; failures are told."""
    planner = Slow()
    runner = ThreadRunner(planner, latency=0.05)
    runner.reset(1)
    runner.request({}, 7, 1.0)
    assert runner.poll(1.0) is None, "it hangs, and the tick goes on"
    runner.reset(2)
    planner.go.set()
    runner.request({}, 8, 2.0)
    assert poll(runner, 2.06)[0][0, 0] == 8.0 and planner.seeds[-1] == 2
    runner.request({}, 9, 3.0)
    time.sleep(0.05)
    assert runner.poll(3.04) is None, "held back by the latency"
    assert poll(runner, 3.05)[1] == 3.0
    planner.fail = True
    runner.request({}, 10, 4.0)
    with pytest.raises(PlanningError, match="ValueError: no idea"):
        poll(runner, 5.0)
    runner.close()
    waiting = ThreadRunner(planner, wait=60.0)
    planner.fail = False
    waiting.reset(3)
    waiting.request({}, 11, 0.0)
    assert waiting.poll(0.0)[0][0, 0] == 11.0, "in simulated time planning takes none"
    waiting.close()


# -- the interpreter ------------------------------------------------------------------------------------------------
def test_the_limits_import_neither_torch_nor_ros():
    code = (
        "import sys, robopolicy, robopolicy.real.safety; "
        "bad = [m for m in ('torch', 'rclpy') if m in sys.modules]; assert not bad, bad; print(sys.argv[1:])"
    )
    done = subprocess.run([sys.executable, "-c", code, "a b", "c"], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0 and done.stdout == "['a b', 'c']\n", done.stderr


def test_security_that_is_enforced_and_not_there_starts_nothing():
    """SROS 2 fails closed, and says what is missing."""
    enforced = {"ROS_SECURITY_ENABLE": "true", "ROS_SECURITY_STRATEGY": "Enforce", "ROS_DOMAIN_ID": "97"}
    code = "from robopolicy.real.ros2.spin import start; start([]); print('started')"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **enforced}, capture_output=True, text=True)
    assert done.returncode and "started" not in done.stdout
    assert "ROS_SECURITY_STRATEGY=Enforce: security cannot be set up" in done.stderr


# -- limits of an arm -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dry_run", [False, True])
def test_an_arm_with_a_scene_must_follow_as_closely_as_its_distance_says(dry_run):
    """The tracking error follows from the distance; a larger one is refused, but where nothing moves."""
    from robopolicy.real.deploy.deploy_config import DeployConfig
    from robopolicy.real.ros2.policy_runtime import PolicyRuntime

    def chain(**settings):
        runtime = PolicyRuntime.__new__(PolicyRuntime)
        runtime.config = DeployConfig(checkpoint=Path("none"), safety=settings, dry_run=dry_run)
        runtime.wiring, runtime.dry_run = WIRING, dry_run
        runtime.recorder, runtime.names, runtime.cameras, runtime.depths = None, (), {}, {}
        return runtime.chain()

    table = [{"normal": [0, 0, 1], "offset": -0.1}]
    assert chain(planes=table).profile.settings.tracking_error == (0.2 if dry_run else None)
    assert chain().profile.settings.tracking_error == 0.2
    if dry_run:
        assert chain(planes=table, tracking_error=0.2).profile.settings.tracking_error == 0.2
    else:
        with pytest.raises(SafetyError, match="tracking_error"):
            chain(planes=table, tracking_error=0.2)

"""LeRobot's own commands drive an arm on the mock bus behind the limits, whatever a teleoperator wants."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("scservo_sdk")

from lerobot.datasets import LeRobotDataset
from lerobot.scripts import lerobot_record, lerobot_replay, lerobot_teleoperate

from robopolicy.core.errors import ConfigError
from robopolicy.datasets.importing import data_import
from robopolicy.datasets.inspect import data_check
from robopolicy.lerobot_plugin.config_limited_robot import LimitedRobotConfig
from robopolicy.lerobot_plugin.limited_robot import LimitedRobot
from robopolicy.real.control.control_loop import ControlLoop
from robopolicy.real.lerobot import connection
from robopolicy.real.lerobot.limited_drive import LimitedDrive
from robopolicy.real.lerobot.mock_port import BusTrouble, MockPort
from robopolicy.real.safety import Mode, SafetyError
from robopolicy.real.safety.audit import joint_violations, space_violations
from tests.lerobot_plugin.scriptedleader import ScriptedLeader
from tests.real.lerobot.rigs import PROFILE, Rig

HOME = np.array([0.0, -0.06908, 0.21216, 1.42772, 0.0])
NAMES = [*(f"{j}.pos" for j in PROFILE.joints), "gripper.pos"]
TICK = 0.01
FACTS = """\
action: {units: [deg, deg, deg, deg, deg, "%"], low: [-104, -94, -91, -89, -154, 0],
         high: [104, 94, 91, 89, 154, 100], tcp: tcp, reference: absolute}
outcomes: success
"""


class Bench:
    """The mock arm, and the commands and actions that went to it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rig, self.commands, self.sent = Rig(folder), list[Any](), list[dict[str, float]]()
        self.modes = list[Mode]()
        self.rig.port = MockPort(self.rig.calibration, clock=time.monotonic, sleep=time.sleep)
        counts = {i + 1: 2047 + round(q * 4095 / 2 / np.pi) for i, q in enumerate(HOME)} | {6: 2048}
        self.rig.port.positions = lambda: counts | self.rig.port.goals
        self.monkeypatch, tick = monkeypatch, ControlLoop.tick

        def ticked(loop: ControlLoop) -> Any:
            if not self.commands:
                self.commands += [loop.chain.limiter.c[0, -1].copy()] * 4
            decision = tick(loop)
            self.commands.append(decision.command.copy())
            self.modes.append(decision.mode)
            return decision

        monkeypatch.setattr(ControlLoop, "tick", ticked)
        monkeypatch.setattr(connection, "make_robot", self.make)

    def make(self, options: Any) -> Any:
        robot = self.rig.robot()
        send = robot.send_action
        robot.send_action = lambda action: self.sent.append(send(action)) or self.sent[-1]
        return robot

    def call(self, command: Any, *arguments: str) -> None:
        """Run one of LeRobot's commands as a shell does."""
        ours = ("--robot.discover_packages_path=robopolicy.lerobot_plugin", "--robot.type=robopolicy",
                "--robot.wiring=so101_follower")  # fmt: skip
        self.monkeypatch.setattr(sys, "argv", [command.__name__, *ours, *arguments])
        command.main()

    def violations(self) -> int:
        """Count broken limits of all commands, by the independent checker."""
        commands = np.array(self.commands)[:, None]
        found = joint_violations(commands, PROFILE, TICK), space_violations(commands, PROFILE, TICK, poses=400)
        return sum(sum(kind.values()) for kind in found)


@pytest.fixture
def bench(tmp_path, monkeypatch):
    bench = Bench(tmp_path, monkeypatch)
    yield bench
    assert not bench.rig.port.is_open and not {t.name for t in threading.enumerate()} & {"bus", "limits"}


def hostile(call: int) -> dict[str, float]:
    """Corners of the joints and beyond, noise, and numbers that are none."""
    rng = np.random.default_rng(call // 6)
    kind = rng.integers(4)
    values = rng.uniform(-120, 120, 6) if kind else rng.choice([np.nan, np.inf, 1e300, -1e300, 0.0], 6)
    return dict(zip(NAMES, map(float, values), strict=True))


def test_lerobot_record_records_what_the_limits_let_through(bench, tmp_path, capsys):
    ScriptedLeader.script = staticmethod(hostile)
    bench.call(
        lerobot_record, "--teleop.type=scripted_leader", "--dataset.repo_id=local/mine", "--dataset.no_stamp=true",
        f"--dataset.root={tmp_path / 'data'}", "--dataset.single_task=turn", "--dataset.num_episodes=2",
        "--dataset.episode_time_s=3", "--dataset.reset_time_s=1", "--dataset.fps=30", "--dataset.push_to_hub=false",
        "--play_sounds=false",
    )  # fmt: skip
    assert bench.violations() == 0 and len(bench.commands) > 500
    assert np.ptp(np.array(bench.commands), axis=0).max() > 0.3, "it did move"
    data = LeRobotDataset("local/mine", root=tmp_path / "data")
    assert data.num_episodes == 2 and data.meta.robot_type == "so_follower"
    actions = np.array([row["action"].numpy() for row in data])
    sent = {tuple(np.float32(list(a.values()))) for a in bench.sent}
    assert all(tuple(a) in sent for a in actions), "nothing else is recorded"
    assert len({tuple(a) for a in actions}) > 50
    (tmp_path / "facts.yaml").write_text(FACTS)
    data_import(dataset=tmp_path / "data", facts=tmp_path / "facts.yaml")
    data_check(dataset=tmp_path / "data")
    assert "no defects" in capsys.readouterr().out


def pose(first: float, opening: float = 60.0) -> dict[str, float]:
    """Return a target with the first joint at `first` degrees."""
    return dict(zip(NAMES, [first, *np.rad2deg(HOME[1:]).tolist(), opening], strict=True))


def test_lerobot_teleoperate_follows_a_leader(bench, capsys):
    ScriptedLeader.script = staticmethod(lambda call: pose(min(0.25 * call, 12.0)))
    bench.call(
        lerobot_teleoperate, "--teleop.type=scripted_leader", "--teleop_time_s=4", "--fps=30",
        "--robot.safety={tcp_speed: 0.2, planes: [{normal: [0, 0, 1], offset: -0.5}]}",
    )  # fmt: skip
    assert "the tool 0.20 m/s" in capsys.readouterr().out
    assert bench.violations() == 0 and bench.modes.count(Mode.RUN) > 0.8 * len(bench.modes)
    assert bench.sent[-1]["shoulder_pan.pos"] == pytest.approx(12.0, abs=0.1)
    assert bench.sent[-1]["gripper.pos"] == pytest.approx(60.0)


def test_lerobot_replay_repeats_a_recording(bench, tmp_path):
    features = {"action": {"dtype": "float32", "shape": (6,), "names": NAMES}}
    data = LeRobotDataset.create("local/wild", fps=30, root=tmp_path / "wild", features=features, use_videos=False)
    for call in range(60):
        data.add_frame({"action": np.float32([*pose(90.0 * (call > 5)).values()]), "task": "turn"})
    data.save_episode()
    data.finalize()
    bench.call(
        lerobot_replay, "--dataset.repo_id=local/wild", f"--dataset.root={tmp_path / 'wild'}", "--dataset.episode=0",
        "--play_sounds=false",
    )  # fmt: skip
    assert bench.violations() == 0 and 20.0 < bench.sent[-1]["shoulder_pan.pos"] < 92.0


@pytest.fixture
def robot(bench):
    robot = LimitedRobot(LimitedRobotConfig(wiring="so101_follower"))
    robot.connect()
    yield robot
    robot.disconnect()


def drive(robot: LimitedRobot, seconds: float, target: dict[str, float]) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        robot.get_observation()
        robot.send_action(dict(target))
        time.sleep(0.02)


def test_the_arm_stops_where_the_caller_goes_silent_and_goes_on_with_the_caller(bench, robot):
    drive(robot, 0.5, pose(60.0))
    assert not robot.drive.loop.chain.limiter.at_rest[0]
    time.sleep(1.5)
    assert robot.drive.loop.chain.mode is Mode.HOLD and robot.drive.loop.chain.limiter.at_rest[0]
    held = robot.drive.arm.sent[0]
    assert held < np.deg2rad(55)
    drive(robot, 1.0, pose(60.0))
    assert robot.drive.loop.chain.mode is Mode.RUN and robot.drive.arm.sent[0] > held + 0.02
    assert bench.violations() == 0


def test_an_arm_that_moves_is_stopped_before_it_is_disconnected(bench, robot):
    drive(robot, 0.5, pose(60.0))
    robot.disconnect()
    steps = np.abs(np.diff(bench.commands[-3:], axis=0))
    assert steps.max() < 1e-9 and not bench.rig.port.is_open and not robot.is_connected
    assert bench.sent[-1]["shoulder_pan.pos"] == pytest.approx(np.rad2deg(bench.commands[-1][0]), abs=0.1)
    robot.connect()  # and again
    assert robot.is_connected


def test_a_dictionary_that_is_sent_again_keeps_its_target(robot):
    action = pose(10.0)
    for _ in range(90):
        robot.get_observation()
        sent = robot.send_action(action)
        time.sleep(0.02)
    assert sent["shoulder_pan.pos"] == action["shoulder_pan.pos"] == pytest.approx(10.0, abs=0.1)


def test_the_action_of_a_reading_is_what_the_motors_have_as_its_period_ends(robot):
    """Else a recorded arm would be told to stay where it already goes, and a policy of that be slow."""
    assert min(answered(robot, 8, pause=1 / 30)) > 0.02, "of 33 ms"
    assert min(answered(robot, 6, pause=0.0)) < 0.02, "a caller that is faster"


def test_a_caller_that_needs_its_time_keeps_its_rate(bench):
    """LeRobot writes pictures and shows them after it has the action; in virtual time."""
    drive = LimitedDrive(bench.rig.robot(), bench.rig.wiring, period=1 / 30)
    begun, now, work, rounds = 0.0, 0.0, 0.015, []
    for _ in range(300):
        drive._fit_reserve(now - drive._answered)
        now = max(now + 0.004, begun + drive.period - drive._reserve)  # until it has the action
        drive._answered = now
        now += work
        rounds.append(now - begun)
        begun = now = max(now, begun + drive.period)
    assert np.mean(np.maximum(rounds[5:], drive.period)) < 1.01 * drive.period
    assert max(rounds[5:]) < 0.036 and drive._reserve < 0.02


def answered(robot, times, *, pause):
    """Return how long each call took until it had the action, s."""
    waits = []
    for _ in range(times):
        robot.get_observation()
        begun = time.monotonic()
        robot.send_action(pose(10.0))
        waits.append(time.monotonic() - begun)
        time.sleep(max(0.0, pause - waits[-1]))
    return waits


def test_a_far_target_is_approached_by_braking_in_time(bench, robot):
    drive(robot, 2.5, pose(40.0))
    first = np.rad2deg(np.array(bench.commands)[:, 0])
    assert first[-1] == pytest.approx(40.0, abs=0.2) and first.max() < 42.0, "without braking in time: 45"


def test_targets_of_other_motors_are_refused_by_name(robot):
    with pytest.raises(SafetyError, match=r"action: 'shoulder_pam.pos' is no motor .*shoulder_pan"):
        robot.send_action(pose(0.0) | {"shoulder_pam.pos": 1.0})
    with pytest.raises(SafetyError, match=r"\['gripper.pos'\] are missing"):
        robot.send_action({k: v for k, v in pose(0.0).items() if k != "gripper.pos"})
    for none in (None, 3.0, ["shoulder_pan.pos"]):
        with pytest.raises(SafetyError, match=r"action: .* is no motor of the wiring.*shoulder_pan\.pos"):
            robot.drive.want(none)
    robot.send_action(pose(np.nan))
    robot.send_action(pose(0.0) | {"gripper.pos": None})
    assert robot.drive.refused == 2


def test_a_silent_bus_ends_the_command(bench, robot):
    bench.rig.port.trouble = BusTrouble(drop=1.0)
    with pytest.raises(SafetyError, match=r"fault: state|no state comes"):
        drive(robot, 5.0, pose(0.0))


def test_features_and_calibration_are_those_of_the_arm(bench, robot):
    assert list(robot.action_features) == list(robot.observation_features) == NAMES
    assert set(robot.get_observation()) == set(NAMES) and robot.calibration_fpath == bench.rig.file
    assert robot.robot_type == "so_follower" and robot.is_calibrated
    with pytest.raises(ConnectionError, match="already connected"):
        robot.calibrate()


def test_an_arm_that_is_not_calibrated_is_refused(bench):
    bench.rig.calibration["elbow_flex"].homing_offset = -37
    bench.rig.save(bench.rig.calibration)
    robot = LimitedRobot(LimitedRobotConfig(wiring="so101_follower"))
    with pytest.raises(SafetyError, match="the motors hold another one"):
        robot.connect()
    assert not robot.is_connected
    with pytest.raises(ConnectionError):
        robot.send_action(pose(0.0))


@pytest.mark.parametrize(
    ("options", "error", "expected"),
    [
        ({"fps": 0}, ConfigError, r"robot\.fps: .*found 0"),
        ({"speed": 1.5}, ConfigError, r"robot\.speed"),
        ({"wiring": "so101_folower"}, SafetyError, "so101_follower"),
        ({"safety": {"tcp_sped": 0.1}}, SafetyError, "tcp_speed"),
    ],
)
def test_wrong_options_are_refused_by_key(options, error, expected):
    with pytest.raises(error, match=expected):
        LimitedRobot(LimitedRobotConfig(**({"wiring": "so101_follower"} | options)))

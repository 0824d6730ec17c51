"""A policy of LeRobot's own data on LeRobot's class, in real time, on a mock bus with servos that follow at once."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from robopolicy.core.errors import SpecError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import STATE, ActionSpec, Feature
from robopolicy.policies.base import Policy
from robopolicy.real.arms.camera_file import kinematics_digest, tool_poses
from robopolicy.real.control.control_loop import ControlLoop
from robopolicy.real.deploy.deploy_config import DeployConfig
from robopolicy.real.lerobot import bus, live
from robopolicy.real.lerobot.mock_port import GOAL, BusTrouble, MockPort
from robopolicy.real.lerobot.wiring import parse
from robopolicy.real.ros2 import policy_runtime
from robopolicy.real.safety import SafetyError
from tests.real.lerobot.rigs import Rig
from tests.real.lerobot.test_wiring import data
from tests.real.lerobot.test_wiring import with_depth as wired

NAMES = tuple(f"{m}.pos" for m in (*data()["joints"], "gripper"))
HOME = np.array([0.0, -0.06908, 0.21216, 1.42772, 0.0])
IMAGE = "observation.images.front"
ACTION = ActionSpec(
    names=NAMES, units=(*("deg",) * 5, "%"), low=(*(-100.0,) * 5, 0.0), high=(*(100.0,) * 5, 100.0), frame="joint",
    tcp="tcp", rotation="joint", reference="absolute", gripper=5, gripper_meaning="0 closed, 100 open",
)  # fmt: skip


class Turn(Policy):
    """Turns the first joint by 5 degrees from where it is, and opens the gripper to 75%."""

    def __init__(self, *, sees: bool = False) -> None:
        super().__init__()
        observation = {STATE: Feature((6,), names=NAMES)} | ({IMAGE: Feature((3, 24, 32), "uint8")} if sees else {})
        self.spec = PolicySpec(observation, ACTION, 0.05, 1, 8, 4, ("turn",))

    def act(self, obs: Any, *, noise: Any = None, deterministic: bool = False) -> torch.Tensor:
        action = obs[STATE][:, -1].clone()
        action[:, 0] += 5.0
        action[:, 5] = 75.0
        return action[:, None].expand(1, 8, -1).clone()


class Desk:
    """An operator and an arm: `answers` to the prompts, and goals that were sent."""

    def __init__(self, folder: Any, policy: Policy, monkeypatch: Any, *, trouble: BusTrouble | None = None) -> None:
        self.rig = Rig(folder)
        self.rig.port = MockPort(self.rig.calibration, clock=time.monotonic, sleep=time.sleep, trouble=trouble)
        counts = {i + 1: 2047 + round(q * 4095 / 2 / np.pi) for i, q in enumerate(HOME)} | {6: 2048}
        self.rig.port.positions = lambda: counts | self.rig.port.goals
        self.answers, self.prompts = iter(["", "y", "q"]), list[str]()
        monkeypatch.setattr(policy_runtime, "load_policy", lambda *a, **k: policy)
        monkeypatch.setattr(live, "with_own_task", lambda config: config)
        monkeypatch.setattr(live, "policy_id_of", lambda config: "test")
        monkeypatch.setattr(live, "load_wiring", lambda name: self.wiring)
        self.wiring = self.rig.wiring
        self.robot: Any = None

    def make(self, options: Any) -> Any:
        self.robot = self.rig.robot()
        return self.robot

    def run(self, seconds: float, **options: Any) -> Any:
        drive = replace(DeployConfig(checkpoint="x").drive, episode_s=seconds)
        config = DeployConfig(checkpoint="x", robot="lerobot", process=False, drive=drive, task=None,
                              **{"episodes": 20, **options})  # fmt: skip
        return live.run_live(
            config, make=self.make, ask=lambda prompt: self.prompts.append(prompt) or next(self.answers)
        )


def test_an_episode_from_prompt_to_standstill(tmp_path, monkeypatch, capsys):
    desk = Desk(tmp_path, Turn(), monkeypatch)
    (episode,) = desk.run(3.0)
    goals = desk.rig.port.goals
    turned = (goals[1] - 2047) * 2 * np.pi / 4095
    assert turned > 0.05 and abs(goals[4] - 2047 - HOME[3] * 4095 / 2 / np.pi) <= 20
    assert goals[6] == 1024 + 0.75 * 2048
    assert episode.success and episode.mode != "FAULT" and episode.reasons["time"] > 0
    assert not desk.rig.port.is_open and not any(t.name == "bus" for t in threading.enumerate())
    said = capsys.readouterr().out
    assert "limits so101" in said and "bus: " in said and len(desk.prompts) == 3


def test_a_silent_bus_ends_the_episode_with_a_fault(tmp_path, monkeypatch):
    desk = Desk(tmp_path, Turn(), monkeypatch)
    threading.Timer(1.0, lambda: setattr(desk.rig.port, "trouble", BusTrouble(drop=1.0))).start()
    desk.answers = iter(chain(["", "n"], ["q"] * 3))
    (episode,) = desk.run(30.0)
    assert episode.mode == "FAULT" and episode.reasons["fault:state"] and not episode.success


def test_a_dry_run_sends_nothing(tmp_path, monkeypatch):
    desk = Desk(tmp_path, Turn(), monkeypatch)
    desk.run(0.5, dry_run=True)
    assert not desk.rig.port.goals


def test_a_camera_that_the_policy_sees_must_be_in_the_wiring(tmp_path, monkeypatch):
    with pytest.raises(
        SpecError, match=r"observation\.images\.front: the policy sees it, the wiring's `cameras` lack it"
    ):
        Desk(tmp_path, Turn(sees=True), monkeypatch).run(0.5)


def test_pictures_reach_the_policy_and_a_frozen_camera_holds_the_arm(tmp_path, monkeypatch):
    desk = Desk(tmp_path, Turn(sees=True), monkeypatch)
    desk.wiring = parse(data(cameras={IMAGE: {"name": "top", "latency_s": 0.0}}))
    make, since = desk.make, time.monotonic()

    def with_camera(options: Any) -> Any:
        robot = make(options)
        read = robot.get_observation
        robot.observation_features["top"] = (48, 64, 3)  # a cached property of LeRobot's class
        shade = lambda: min(int(20 * (time.monotonic() - since)), 60)  # noqa: E731
        robot.get_observation = lambda: {**read(), "top": np.full((48, 64, 3), shade(), np.uint8)}
        return robot

    desk.make = with_camera
    desk.answers = iter(["", "n", "q"])
    (episode,) = desk.run(30.0)
    assert episode.reasons[IMAGE] > 0 and episode.mode == "FAULT" and episode.reasons[f"fault:{IMAGE}"]


def test_a_picture_of_the_episode_before_is_no_picture_of_this_one(tmp_path, monkeypatch, capsys):
    desk = Desk(tmp_path, Turn(sees=True), monkeypatch)
    desk.wiring = parse(data(cameras={IMAGE: {"name": "top", "latency_s": 0.0}}))
    make, frozen, shades = desk.make, threading.Event(), count()

    def with_camera(options: Any) -> Any:
        robot = make(options)
        read, last = robot.get_observation, np.zeros((48, 64, 3), np.uint8)
        robot.observation_features["top"] = last.shape

        def seen() -> dict[str, Any]:
            if not frozen.is_set():
                last[:] = next(shades) % 250
            return {**read(), "top": last}

        robot.get_observation = seen
        return robot

    def ask() -> Iterator[str]:
        yield from ("", "y")
        frozen.set()
        time.sleep(0.2)  # a reading was under way
        yield from ("", "q")

    desk.make, desk.answers = with_camera, ask()
    monkeypatch.setattr(bus, "FIRST", 0.5)
    assert len(desk.run(0.5)) == 1, "the second was not begun"
    assert "the arm holds; robot: nothing has come of ['observation.images.front']" in capsys.readouterr().out


def test_an_arm_that_stands_where_it_may_not_holds_until_it_was_moved(tmp_path, monkeypatch, capsys):
    """It would fall if its torque went."""
    desk = Desk(tmp_path, Turn(), monkeypatch)
    start, refusals = ControlLoop.start, iter(["the arm stands where planes would not allow it", ""])
    torque = list[bool]()

    def refused(loop: ControlLoop, **options: Any) -> None:
        torque.append(desk.robot.is_connected)
        if why := next(refusals):
            raise SafetyError(why)
        start(loop, **options)

    monkeypatch.setattr(ControlLoop, "start", refused)
    desk.answers = iter(["", "", "n", "q"])
    (episode,) = desk.run(0.3)
    assert episode.mode != "FAULT" and torque == [True, True]
    assert [p[:22] for p in desk.prompts[:2]] == ["Enter begins episode 1"] * 2
    assert "the arm holds; the arm stands where planes would not allow it" in capsys.readouterr().out


def test_ctrl_c_while_an_episode_begins_lets_the_arm_hold(tmp_path, monkeypatch):
    desk = Desk(tmp_path, Turn(), monkeypatch)
    start = ControlLoop.start

    def interrupted(loop: ControlLoop, **options: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        start(loop, **options)

    monkeypatch.setattr(ControlLoop, "start", interrupted)
    (episode,) = desk.run(30.0)
    assert episode.reasons["operator"] > 0 and len(desk.prompts) == 3, "asked for the success, and for the next"


def test_an_arm_that_moves_is_not_activated(tmp_path, monkeypatch):
    desk = Desk(tmp_path, Turn(), monkeypatch)
    begun = time.monotonic()
    desk.rig.port.positions = lambda: dict.fromkeys(range(1, 7), 1500 + int(400 * (time.monotonic() - begun)))
    with pytest.raises(SafetyError, match=r"state: the arm moves at 0\.\d+ rad/s"):
        desk.run(0.5)


def test_an_error_in_motion_ends_by_the_certified_stop(tmp_path, monkeypatch):
    desk = Desk(tmp_path, Turn(), monkeypatch)
    tick, goals = ControlLoop.tick, list[int]()
    store = desk.rig.port._store

    def stored(motor: int, address: int, data: bytes) -> None:
        store(motor, address, data)
        if motor == 1 and address == GOAL:
            goals.append(desk.rig.port.goals.get(1, 0))

    def interrupted(loop: ControlLoop) -> Any:
        decision = tick(loop)
        if loop.step == 12:
            assert not loop.chain.limiter.at_rest[0]
            expected.append(decision.stop[-1, 0])
            raise KeyboardInterrupt  # as the second Ctrl-C
        return decision

    expected = list[float]()
    monkeypatch.setattr(desk.rig.port, "_store", stored)
    monkeypatch.setattr(ControlLoop, "tick", interrupted)
    with pytest.raises(KeyboardInterrupt):
        desk.run(30.0)
    assert goals[-1] == pytest.approx(2047 + expected[0] * 4095 / 2 / np.pi, abs=2)
    assert not desk.rig.port.is_open


def test_an_arm_that_cannot_be_driven_is_left_without_a_session(tmp_path, monkeypatch):
    desk = Desk(tmp_path, Turn(), monkeypatch)

    def fail(*_: Any) -> Any:
        raise SafetyError("no limits")

    monkeypatch.setattr(policy_runtime.PolicyRuntime, "chain", fail)
    with pytest.raises(SafetyError, match="no limits"):
        desk.run(0.5)
    assert not desk.rig.port.is_open


def test_a_bus_that_is_dead_at_the_end_hides_no_error(tmp_path, monkeypatch, capsys):
    desk = Desk(tmp_path, Turn(), monkeypatch)

    def ask(prompt: str) -> str:
        desk.rig.port.trouble = BusTrouble(silent=(1, 2, 3, 4, 5, 6))
        raise EOFError

    desk.answers = (ask(prompt) for prompt in ("",))
    with pytest.raises(EOFError):
        desk.run(0.5)
    assert "could not be disconnected" in capsys.readouterr().out and not desk.rig.port.is_open


# -- depth ------------------------------------------------------------------------------------------------------------


class RealSense:
    """As much of LeRobot's camera as its arm and we read: depth of a wall 0.5 m away, in mm, 30 a second."""

    use_rgb, use_depth, is_connected = False, True, True

    def __init__(self, size: tuple[int, int] = (96, 96), unit: float = 0.001) -> None:
        self.frame_lock, self.size, self.frozen = threading.Lock(), size, False
        self.latest_depth_frame: Any = None
        self.latest_timestamp: float | None = None
        sensor = SimpleNamespace(get_depth_scale=lambda: unit)
        device = SimpleNamespace(first_depth_sensor=lambda: sensor)
        self.height, self.width = size
        self.rs_profile = SimpleNamespace(get_device=lambda: device)

    def read_latest_depth(self) -> Any:
        now = time.perf_counter()
        if not self.frozen and (self.latest_timestamp is None or now - self.latest_timestamp > 1 / 30):
            self.latest_depth_frame, self.latest_timestamp = np.full((*self.size, 1), 500, np.uint16), now
        return self.latest_depth_frame

    def connect(self) -> None:
        """Nothing is to be opened."""

    disconnect = connect


class TurnByCloud(Turn):
    """Turns as `Turn`, and keeps the clouds that it is shown."""

    def __init__(self) -> None:
        super().__init__()
        observation = {**self.spec.observation, POINTS: Feature((64, 3), names=("base_x", "base_y", "base_z"))}
        self.spec = replace(self.spec, observation=observation)
        self.clouds: list[np.ndarray] = []
        self.q: list[np.ndarray] = []  # [5] rad

    def act(self, obs: Any, **how: Any) -> torch.Tensor:
        self.clouds.append(obs[POINTS][0, -1].numpy().copy())
        self.q.append(np.deg2rad(obs[STATE][0, -1, :5].numpy()))
        return super().act(obs, **how)


class Timeless(RealSense):
    """A camera of another class."""

    def __init__(self) -> None:
        super().__init__()
        del self.latest_timestamp


POINTS = "observation.points.wrist"


def with_depth(desk: Desk, folder: Any, source: Any, **changes: Any) -> None:
    """Give the arm a depth camera on its tool, which looks along z from the tool's point."""
    profile = desk.rig.wiring.arm.profile()
    file = {
        "format": 1, "camera": "817612070311", "made": "2026-11-01", "size": [96, 96],
        "intrinsics": {"fx": 90.0, "fy": 90.0, "cx": 47.5, "cy": 47.5}, "distortion": [0.0] * 4, "mount": "tool",
        "pose": np.eye(4).tolist(), "robot": "so101", "kinematics": kinematics_digest(profile),
        "tcp": profile.chain.tcp.tolist(), "quality": {}, **changes,
    }  # fmt: skip
    (folder / "wrist.json").write_text(json.dumps(file))
    values = wired(calibration="wrist.json", cloud={"count": 64}) | {"changed": "2026-10-15"}
    desk.wiring = parse(values, folder=folder)
    make = desk.make

    def with_camera(options: Any) -> Any:
        robot = make(options)
        robot.cameras = {"wrist": source}
        return robot

    desk.make = with_camera


def test_clouds_of_a_realsense_reach_the_policy_where_the_tool_is(tmp_path, monkeypatch):
    policy = TurnByCloud()
    desk = Desk(tmp_path, policy, monkeypatch)
    with_depth(desk, tmp_path, RealSense())
    (episode,) = desk.run(3.0)
    assert episode.mode != "FAULT" and len(policy.clouds) > 5
    profile = desk.wiring.arm.profile()
    assert policy.q[-1][0] - policy.q[1][0] > 0.05
    for q, cloud in list(zip(policy.q, policy.clouds, strict=True))[1:]:  # the first one is of warming up
        pose = tool_poses(np.array([q], dtype=np.float64), profile)[0]
        seen = (cloud - pose[:3, 3]) @ pose[:3, :3]  # in the camera, but for the motion since its exposure
        assert np.abs(seen[:, 2] - 0.5).max() < 0.02 and np.abs(seen[:, :2]).max() < 0.5 * 47.5 / 90 + 0.02


def test_a_depth_camera_that_freezes_holds_the_arm(tmp_path, monkeypatch):
    camera = RealSense()
    desk = Desk(tmp_path, TurnByCloud(), monkeypatch)
    with_depth(desk, tmp_path, camera)
    threading.Timer(2.0, lambda: setattr(camera, "frozen", True)).start()
    desk.answers = iter(["", "n", "q"])
    (episode,) = desk.run(30.0)
    assert episode.reasons[POINTS] > 0 and episode.mode == "FAULT" and episode.reasons[f"fault:{POINTS}"]


@pytest.mark.parametrize(
    ("camera", "changes", "what"),
    [
        (RealSense(), {"camera": "1234"}, r"calibration: wrist\.json: camera: expected '817612070311'"),
        (RealSense(), {"made": "2026-10-01"}, "made: 2026-10-01, before the arm's last change"),
        (RealSense(unit=1.0), {}, r"unit of depth is 1\.0 m"),
        (Timeless(), {}, "tells no time of its frames"),
        (
            RealSense((48, 64)),
            {},
            r"nothing has come of .*points\.wrist.*uint16 \[48, 64, 1\], expected",
        ),
    ],
)
def test_depth_of_another_camera_time_or_size_is_refused(camera, changes, what, tmp_path, monkeypatch):
    monkeypatch.setattr(bus, "FIRST", 1.0)
    desk = Desk(tmp_path, TurnByCloud(), monkeypatch)
    with_depth(desk, tmp_path, camera, **changes)
    with pytest.raises(SafetyError, match=f"(?s){what}"):
        desk.run(0.5)
    assert not desk.rig.port.is_open

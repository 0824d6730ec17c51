"""A human who takes over from a policy over ROS 2: keys as texts, who drives, what is recorded of it. No DDS."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from robopolicy.core.errors import ConfigError
from robopolicy.real.control.robots import State
from robopolicy.real.datasets.convert import frames_of
from robopolicy.real.deploy.deploy_config import DeployConfig
from robopolicy.real.recording.recorder import Recorder
from robopolicy.real.recording.recording import read
from robopolicy.real.recording.replay import reproduce
from robopolicy.real.ros2.teleop_keys import FRESH, KNOWN, Forwarder, RemoteKeys
from robopolicy.real.ros2.wiring import load_wiring
from robopolicy.real.safety import Mode, SafetyError
from robopolicy.real.teleoperation.keys import InputLostError
from robopolicy.real.teleoperation.teleoperator import Drive
from tests.real.control.test_robots import Drive as Policy
from tests.real.ros2.test_trajectory_stream import DT, HOME, Wire
from tests.real.ros2_graph import TASK
from tests.real.streams import stream_of

SLOW = [0.004, 0.002, -0.002, 0.0, 1.0]
PLAIN = {k: v for k, v in TASK.items() if k not in ("cameras", "image_size")}


# -- keys as texts ----------------------------------------------------------------------------------------------------
def test_keys_arrive_in_order_and_a_source_that_is_gone_stays_gone():
    keys = RemoteKeys()
    for text in ("t", "a", "a", "enter"):
        keys.press(text)
    assert [keys() for _ in range(5)] == ["t", "a", "a", "enter", None]
    for text in ("w", "lost", "p"):
        keys.press(text)
    for _ in range(3):
        with pytest.raises(InputLostError):
            keys()


def test_the_stop_goes_before_all_that_waits_and_is_never_dropped():
    keys = RemoteKeys()
    keys.press("x")
    for _ in range(1000):
        keys.press("w")
    assert [keys() for _ in range(3)] == ["x", "w", "w"]


@pytest.mark.parametrize("text", ["", "fire", "T", "t ", "stick", "stick 1 0 0", "stick 1 0 0 x", "stick 2 0 0 0",
                                  "stick nan 0 0 0", "stick 0 0 0 0 0", "x" * 10000])  # fmt: skip
def test_what_is_no_key_is_refused(text):
    keys = RemoteKeys()
    with pytest.raises(SafetyError, match="keys: "):
        keys.press(text)
    assert keys() is None and not keys.stick().any()


def test_a_deflection_counts_for_as_long_as_it_is_repeated():
    now = [5.0]
    keys = RemoteKeys(clock=lambda: now[0])
    keys.press("stick 0.5 0 -1 0")
    assert keys.stick().tolist() == [0.5, 0, -1, 0]
    now[0] += FRESH - 0.01
    assert keys.stick()[0] == 0.5
    now[0] += 0.02
    assert not keys.stick().any()
    keys.press("stick 0.5 0 0 0")
    now[0] -= 1.0
    assert not keys.stick().any(), "a clock that runs backwards moves nothing"


def test_what_is_pressed_is_forwarded_and_the_end_too():
    pressed, at, sent = ["t", "a"], np.zeros(4), []

    def keys():
        if pressed and pressed[0] is None:
            raise InputLostError("keyboard: end of input")
        return pressed.pop(0) if pressed else None

    there = Forwarder(keys, lambda: at, sent.append)
    there.pump()
    assert sent == ["t", "a"] and not there.over
    at[:] = [1.0, 0.0, 0.0, -0.25]
    there.pump()
    there.pump()
    at[:] = 0.0
    there.pump()
    there.pump()
    assert sent[2:] == ["stick 1.0000 0.0000 0.0000 -0.2500"] * 2 + ["stick 0.0000 0.0000 0.0000 0.0000"]
    far = RemoteKeys()
    for text in sent:
        far.press(text)
    pressed.append(None)
    there.pump()
    there.pump()
    assert sent[-1] == "lost" and sent.count("lost") == 1 and there.over == "keyboard: end of input"
    ended = Forwarder(iter(["x", "w", None]).__next__, None, sent.append)
    ended.pump()
    assert ended.over == "stopped by the operator"
    ended.quit()
    assert sent[-1] != "x", "once is enough"
    cut = Forwarder(lambda: None, None, sent.append)
    cut.quit()
    assert sent[-1] == "x" and cut.over == "interrupted"
    assert set("wasdrfqetpbx") <= KNOWN


# -- at the arm -------------------------------------------------------------------------------------------------------
@pytest.fixture
def runtime(monkeypatch, tmp_path):
    """(make, folder): a policy runtime of a policy that goes one way, recorded, whom a human may take over from."""
    pytest.importorskip("rclpy")
    from robopolicy.real.ros2 import policy_runtime as runtime_module

    wiring, made = load_wiring("mujoco_panda"), []

    def make(task=PLAIN, **more):
        env = runtime_module.one_env(task)
        monkeypatch.setattr(runtime_module, "load_policy", lambda *_, **__: Policy(env, SLOW, steps=4))
        config = DeployConfig(
            checkpoint=tmp_path, task=task, safety={"tcp_speed": 0.5}, lockstep=True, operator="keyboard",
            drive=Drive(rewind_s=0.3), **more,
        )  # fmt: skip
        made.append(runtime_module.PolicyRuntime(config, wiring, Recorder(tmp_path / "r")))
        return made[-1]

    yield make, tmp_path / "r"
    for found in made:
        found.close()


@pytest.mark.parametrize(("key", "why"), [("x", "x ended all episodes"), ("lost", "their source is gone")])
def test_what_ends_all_episodes_is_named_where_the_next_is_to_begin(runtime, key, why):
    found = runtime[0]()
    found.teleoperator.command(0.0, None)
    assert found.ended_by_keys() == []
    found.press(key)
    found.teleoperator.command(0.0, None)
    found.teleoperator.start()
    (said,) = found.ended_by_keys()
    assert said == f"keys: {why}. Clean up and configure the node again"


class Chained(Wire):
    """A line whose stream has the policy runtime's own chain."""

    def __init__(self, runtime) -> None:
        super().__init__(settings={"tcp_speed": 0.5})
        self.chain = runtime.chain()
        self.stream = stream_of(self.chain, runtime.loop, load_wiring("mujoco_panda"), send=self._send)
        self.runtime = runtime

    def step(self, **how) -> None:
        self.stream.arm.hear("features", self.now)
        super().step(**how)


def drive(wire, script, seconds):
    """`script`: (s, text), by the time since the beginning."""
    left = sorted(script, key=lambda p: p[0])
    for k in range(round(seconds / DT)):
        while left and left[0][0] <= k * DT + 1e-9:
            wire.runtime.press(left.pop(0)[1])
        wire.step()


def begin(runtime):
    runtime.warm_up(State(HOME, np.zeros(7), 0.08))
    runtime.take(list(runtime.names), [0.4] * len(runtime.names))
    wire = Chained(runtime)
    runtime.begin(wire.chain, 0)
    wire.begin()
    return wire


def test_a_human_takes_over_goes_back_corrects_and_hands_back(runtime):
    """Behind the same limits, from the commanded pose; recorded with who drove, marked, and reproduced bit for bit."""
    make, folder = runtime
    wire = begin(make())
    held = [(t, "a") for t in np.arange(0.55, 0.8, 0.05)]
    drive(wire, [(0.5, "t"), *held, (1.0, "b"), (1.6, "p")], 2.2)
    counts = wire.stream.loop.counts
    assert (
        wire.stream.arm.mode is Mode.RUN and counts["human"] > 5 and counts["rewind"] > 1 and counts["handed_over"] == 2
    )
    assert wire.stream.loop.driver == "policy"
    wire.check()
    wire.stream.stop()
    wire.runtime.end(True, mode="RUN")
    found = read(folder / "episode_000000.mcap")
    frames = frames_of(found)
    t, who = np.arange(len(frames.action)) * 0.05, np.array(["policy", "human", "rewind"])[frames.driver]
    assert set(who[t < 0.45]) == {"policy"} and set(who[(t > 0.56) & (t < 0.94)]) == {"human"}
    assert who[t > 1.06][0] == "rewind" and set(who[t > 1.66]) == {"policy"}
    assert frames.intervention[frames.driver != 0].all()
    human = frames.action[(t > 0.71) & (t < 0.84)]
    np.testing.assert_allclose(human[:, 1], 0.15 * 0.05, rtol=1e-6)
    np.testing.assert_allclose(frames.policy_action, np.tile(np.float32(SLOW), (len(t), 1)), rtol=1e-6)
    result = reproduce(found)
    assert result.difference == "" and result.ticks > 500


@pytest.mark.parametrize(("text", "why"), [("x", "operator_ends"), ("lost", "input_lost")])
def test_who_ends_or_is_gone_leaves_an_arm_that_stands(runtime, text, why):
    """Whoever drove: here the policy did."""
    wire = begin(runtime[0]())
    drive(wire, [(0.5, text)], 0.5)
    assert wire.speed > 0.0 and not wire.stream.loop.halted
    drive(wire, [(0.0, text)], 1.0)
    assert wire.stream.loop.halted == why and wire.speed == 0.0
    assert any(why in reason for reason in wire.stream.reasons)
    drive(wire, [(0.0, "w")], 0.3)
    assert wire.speed == 0.0, "nothing moves it any more"
    wire.check()


def test_a_human_may_begin_and_keys_of_before_do_not_count(runtime):
    made = runtime[0](human_first=True)
    for _ in range(5):
        made.press("w")
    wire = begin(made)
    drive(wire, [], 0.5)
    assert wire.stream.loop.driver == "human" and wire.speed < 1e-3 and wire.stream.loop.counts["human"] > 5
    drive(wire, [(0.1 + 0.05 * k, "w") for k in range(10)], 0.5)
    assert wire.speed > 0.0
    wire.check()


def test_keys_cannot_drive_joint_targets(runtime):
    with pytest.raises(ConfigError, match="operator: drives increments of the commanded pose"):
        runtime[0]({**PLAIN, "control": "joint_position"})


def test_a_robot_without_a_topic_for_keys_is_refused():
    pytest.importorskip("rclpy")
    from robopolicy.real.ros2.episode_client import EpisodeClient

    wiring = load_wiring("mujoco_panda")
    bare = EpisodeClient.__new__(EpisodeClient)
    bare.wiring, bare._keys = replace(wiring, topics={**wiring.topics, "keys": None}), None
    with pytest.raises(SafetyError, match=r"topics\.keys: this robot has none, and it is needed here"):
        bare.listen(lambda: None)

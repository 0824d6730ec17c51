"""Two processes over real DDS. In lockstep, so that a busy machine changes nothing; nothing here is timed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import psutil
import pytest

pytest.importorskip("rclpy")

from robopolicy.real.datasets.convert import convert, frames_of
from robopolicy.real.recording.recording import read
from robopolicy.real.recording.replay import replay
from robopolicy.real.ros2 import policy_node, sim_arm_node
from robopolicy.real.ros2.episode_client import EpisodeClient
from robopolicy.real.ros2.sim_launcher import activate, episodes
from robopolicy.real.ros2.wiring import FOLDER, load_wiring
from robopolicy.real.safety import SafetyError
from tests.real.ros2_graph import WIRING, graph, private_domain

pytestmark = [pytest.mark.timeout(1500), pytest.mark.slow]


@pytest.fixture(autouse=True)
def domain(monkeypatch):
    for key, value in private_domain().items():
        monkeypatch.setenv(key, value)


def motion(operator: EpisodeClient) -> dict[str, str]:
    return operator.status[sim_arm_node.NAME]


def patient(tmp_path):
    """The wiring with watchdogs that a busy machine wakes to hold the arm at most, never to a FAULT."""
    text = (FOLDER / f"{WIRING}.yaml").read_text()
    for fault in ("enable: {fault: 0.1}", "state: {hold: 0.05, fault: 0.2}", "hold: 0.1, fault: 1.0}"):
        assert fault in text
        text = text.replace(fault, re.sub(r"fault: [\d.]+", "fault: 30.0", fault))
    path = tmp_path / "wiring.yaml"
    path.write_text(text)
    return path


def test_a_life_over_dds(tmp_path):
    """Refused before it is configured and without an enable; drives; tightens, never loosens; dies; the arm stands."""
    path = patient(tmp_path)
    with graph(path, lost=0.05, record=tmp_path / "recorded") as (operator, running):
        with pytest.raises(SafetyError):
            operator.transition("activate")
        operator.fall_silent()
        operator.transition("configure")
        operator.begin_episode(3)
        assert motion(operator)["received"] == "0", "nothing is published while inactive"
        with pytest.raises(SafetyError, match="enable: nothing has come"):
            operator.transition("activate")
        operator.enable()
        activate(operator)
        operator.wait(lambda: int(motion(operator)["step"]) >= 6, 200.0, "six control steps")
        operator.set(policy_node.NAME, safety__tcp_speed=0.4)
        with pytest.raises(SafetyError, match="loosened only while inactive"):
            operator.set(policy_node.NAME, safety__tcp_speed=0.6)
        with pytest.raises(SafetyError, match=r"expected a number|finite"):
            operator.set(policy_node.NAME, safety__tcp_speed=float("nan"))
        # Not at this very moment: where the machine is busy the arm stands between two chunks.
        operator.wait(lambda: float(motion(operator)["speed"]) > 0.01, 200.0, "motion")
        assert motion(operator)["aborted"] == ""
        assert int(motion(operator)["lost"]) > 0 and operator.status[policy_node.NAME]["mode"] == "RUN"

        operator.emergency_stop()
        operator.wait(lambda: operator.status[policy_node.NAME].get("mode") == "FAULT", 100.0, "the fault")
        operator.wait(lambda: float(motion(operator)["speed"]) < 0.01, 100.0, "standstill")
        assert "emergency_stop" in operator.status[policy_node.NAME]["reasons_now"]
        assert "the operator must enable" in operator.reset_fault()
        operator.enable()
        operator.wait(lambda: operator.reset_fault() == "", 60.0, "the reset")

        operator.wait(lambda: operator.status[policy_node.NAME]["mode"] == "RUN", 60.0, "the mode")
        operator.wait(lambda: float(motion(operator)["speed"]) > 0.01, 200.0, "motion")
        operator.set(policy_node.NAME, success=True)
        operator.transition("deactivate")
        check_recordings(tmp_path / "recorded")
        operator.wait(lambda: float(motion(operator)["speed"]) < 0.001, 100.0, "standstill")
        activate(operator)

        step = int(operator.status[policy_node.NAME]["ticks"])
        operator.wait(lambda: float(motion(operator)["speed"]) > 0.01 or step < 0, 200.0, "motion")
        os.killpg(running[1].pid, signal.SIGKILL)
        operator.wait(lambda: float(motion(operator)["speed"]) < 0.01, 100.0, "standstill")
        assert motion(operator)["aborted"] == ""
        assert json.loads(operator.status[policy_node.NAME]["counts"]).get("foreign", 0) == 0


def check_recordings(folder) -> None:
    """Two episodes, the first ended by a reset; every decision comes out again, and a dataset can be made of them."""
    before, after = replay(recording=folder)
    assert before.ticks > 100 and after.ticks > 10
    found = read(before.path)
    assert found.header["task"] == "reach" and "observation.images.front" in found.header["observation"]
    assert {"features", "observation.images.front"} <= found.header["watchdogs"].keys()
    assert bytes.fromhex(found.of("step")[0]["obs"]["observation.images.front"])
    assert found.footer["success"] is None and read(after.path).footer["success"] is True
    made = convert(recording=folder, out=folder / "dataset")
    assert made.frames > 6 and made.interventions > 0, made


def test_a_human_takes_over_and_ctrl_c_ends_the_session(tmp_path):
    """As `deploy robot=mujoco_ros2 operator=keyboard` plays it: by a script of keys, until Ctrl-C in this process."""
    path = patient(tmp_path)
    with graph(path, record=tmp_path / "r", human=True) as (operator, running):
        operator.transition("configure")
        left = [(4, "t"), *((k, "a") for k in range(5, 10)), (12, "b"), (16, "p"), (20, None)]

        def keys():
            status = operator.status[policy_node.NAME]
            if not left or status.get("state") != "active" or int(status["step"]) < left[0][0]:
                return None
            key = left.pop(0)[1]
            if key is None:
                os.kill(os.getpid(), signal.SIGINT)
            return key

        operator.listen(keys)
        done = list(episodes(operator, running, [3, 4, 5], 400))
        assert len(done) == 1 and operator.forwarder.over == "interrupted" and not left
        assert done[0].helped > 0.2 and done[0].aborted == ""
        assert float(motion(operator)["speed"]) < 0.01
        os.kill(running[1].pid, signal.SIGINT)  # of the node itself: nothing is under way, it just ends
        assert running[1].wait(60) == 0
    made = convert(recording=tmp_path / "r", out=tmp_path / "d")
    assert made.episodes == 1
    assert set(frames_of(read(tmp_path / "r" / "episode_000000.mcap")).driver) == {0, 1, 2}


def test_ctrl_c_in_the_middle_of_a_motion_ends_the_node_and_its_recording(tmp_path):
    path = patient(tmp_path)
    with graph(path, record=tmp_path / "r") as (operator, running):
        operator.transition("configure")
        operator.begin_episode(3)
        activate(operator)
        operator.wait(lambda: float(motion(operator)["speed"]) > 0.01, 200.0, "motion")
        os.kill(running[1].pid, signal.SIGINT)
        assert running[1].wait(60) == 0
        operator.wait(lambda: float(motion(operator)["speed"]) < 0.01, 100.0, "standstill")
        assert motion(operator)["aborted"] == ""
    (done,) = replay(recording=tmp_path / "r")
    assert not done.difference and read(done.path).footer["success"] is None


def test_a_quality_of_service_that_does_not_fit_is_named(tmp_path):
    best_effort = patient(tmp_path)
    mine = tmp_path / "mine.yaml"
    mine.write_text(best_effort.read_text())
    text = best_effort.read_text().replace(
        "{name: joint_states, rate_hz: 250, reliability: reliable",
        "{name: joint_states, rate_hz: 250, reliability: best_effort",
    )
    best_effort.write_text(text)
    with graph(mine, arm_wiring=best_effort) as (operator, _):
        operator.transition("configure")

        def refusal() -> str:
            with pytest.raises(SafetyError) as found:
                operator.transition("activate")
            return str(found.value)

        # They find each other in a moment; until then the refusal is that nothing has come.
        operator.wait(lambda: bool(re.search("qos: joint_states.*reliab", refusal(), re.I)), 60.0, "the reason")
        assert motion(operator)["received"] == "0"


ORPHAN = """
import os, subprocess, sys
from robopolicy.real.ros2.processes import arm_command, private_environment
from tests.real.ros2_graph import TASK, WIRING
arm = subprocess.Popen(arm_command(TASK, WIRING), env=private_environment(), start_new_session=True)
print(arm.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no other system tells a process that its parent is gone")
def test_nodes_end_with_the_process_that_started_them():
    """Killed, so that it cannot end them itself."""
    with subprocess.Popen(
        [sys.executable, "-c", ORPHAN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent, EpisodeClient(load_wiring(WIRING)) as operator:  # fmt: skip
        pid = int(parent.stdout.readline())
        operator.wait(lambda: operator.heard[sim_arm_node.NAME] > 0, 600.0, "the arm")
        parent.kill()
        operator.wait(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie", 60.0, "the end")

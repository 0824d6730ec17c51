"""`robopolicy deploy robot=mujoco_ros2`: it stops when a process ends, and knows the limits in force."""

from __future__ import annotations

import sys
import time

import pytest

pytest.importorskip("rclpy")

from robopolicy.real.ros2.processes import processes
from robopolicy.real.ros2.sim_launcher import EndedError, alive, check_limits, check_running
from robopolicy.real.safety import SafetyError
from tests.real.ros2_graph import private_domain


def test_a_process_that_ends_is_named_with_its_last_lines():
    waits = [sys.executable, "-c", "import time; time.sleep(60)"]
    ends = [sys.executable, "-c", "import sys; print('topics.trajectory: no'); sys.exit(3)"]
    with processes(waits, waits) as running:
        check_running(running)
        with pytest.raises(SafetyError, match=r"^in vain$"), alive(running):
            raise SafetyError("in vain")
    with processes(waits, ends) as running:
        running[1].wait(60.0)
        with pytest.raises(EndedError, match=r"policy node ended with 3(.|\n)*topics\.trajectory: no"):
            check_running(running)
        with pytest.raises(SafetyError, match=r"in vain(.|\n)*ended with 3"), alive(running):
            raise SafetyError("in vain")


def test_waiting_ends_with_the_process(monkeypatch):
    from robopolicy.real.ros2.episode_client import EpisodeClient
    from robopolicy.real.ros2.wiring import load_wiring

    for key, value in private_domain().items():
        monkeypatch.setenv(key, value)

    def ended() -> None:
        raise EndedError("the arm ended with 1")

    with EpisodeClient(load_wiring("mujoco_panda")) as operator:
        operator.watch, begun = ended, time.monotonic()
        with pytest.raises(EndedError):
            operator.wait(lambda: False, 120.0, "both nodes")
        with pytest.raises(EndedError):
            operator.transition("configure")
        assert time.monotonic() - begun < 60.0


def test_other_limits_than_those_that_were_announced_are_refused():
    check_limits("a1", "a1")
    for reported in ("b2", ""):
        with pytest.raises(SafetyError, match="a1"):
            check_limits(reported, "a1")

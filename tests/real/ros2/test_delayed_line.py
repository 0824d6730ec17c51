"""A line that is as late and as lossy as measured; and a simulated arm behind such a line, as `arm check` sees it."""

from __future__ import annotations

import shutil
from functools import partial

import numpy as np
import pytest

pytest.importorskip("rclpy")

from robopolicy.cli.main import main
from robopolicy.real.ros2.channels import LineDelay
from robopolicy.real.ros2.delayed_line import DelayedLine
from robopolicy.real.ros2.processes import arm_command, processes
from robopolicy.real.ros2.wiring import FOLDER, load_wiring
from tests.real.ros2_graph import private_domain


def carried(delay: LineDelay | None, count: int = 4000, period: float = 0.004) -> np.ndarray:
    """[count] s that messages took, NaN where they were lost; it asserts that they keep their order."""
    now, took, order = [0.0], np.full(count, np.nan), []
    line = DelayedLine(delay, seed=0, clock=lambda: now[0])

    def deliver(k: int) -> None:
        took[k] = now[0] - k * period
        order.append(k)

    for k in range(count):
        while (due := now[0] + line.pump()) <= k * period:
            now[0] = due
        now[0] = k * period
        line.send(partial(deliver, k))
    assert order == sorted(order)
    return took


def test_messages_take_their_time_and_some_are_lost():
    took = carried(LineDelay(latency_s=0.02, jitter_s=0.003, lost=0.1))
    assert np.isnan(took).mean() == pytest.approx(0.1, abs=0.02)
    found = took[~np.isnan(took)]
    assert found.min() >= 0.02 and np.percentile(found, 99) == pytest.approx(0.023, abs=0.001)
    assert (carried(None) == 0.0).all(), "at once"


def test_the_first_message_may_be_kept():
    line = DelayedLine(LineDelay(latency_s=0.0, jitter_s=0.0, lost=0.999), seed=0)
    heard = []
    for _ in range(50):
        line.send(lambda: heard.append(1), may_be_lost=False)
    line.pump()
    assert len(heard) == 50


@pytest.mark.timeout(180)
def test_arm_check_measures_a_known_delay_of_the_simulated_arm(tmp_path, monkeypatch, capfd):
    for key, value in private_domain().items():
        monkeypatch.setenv(key, value)
    behind, mine = tmp_path / "behind.yaml", tmp_path / "mine.yaml"
    preset = FOLDER / "mujoco_panda.yaml"
    behind.write_text(preset.read_text() + "delay: {latency_s: 0.04, jitter_s: 0.004, lost: 0.1}\n")
    shutil.copy(preset, mine)
    task = {"_target_": "native", "task": "reach"}
    with processes(arm_command(task, str(behind))):
        found = []
        for _ in range(8):  # the arm may need time to start, and a busy machine adds to all three
            main(["arm", "check", f"wiring={mine}", "seconds=4", "write=true"])
            found.append(delay := load_wiring(str(mine)).delay)
            if delay is not None and delay.latency_s < 0.08 and delay.lost < 0.15:
                break
    assert delay is not None, capfd.readouterr()
    assert 0.039 < delay.latency_s < 0.08 and delay.jitter_s > 0.002 and 0.05 < delay.lost < 0.15, found
    shown = " ".join(capfd.readouterr().out.split())
    assert "lead_ticks" in shown and "ms after the state that it answers" in shown

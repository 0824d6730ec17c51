"""Two threads on one simulated clock."""

from __future__ import annotations

import threading

import pytest

from robopolicy.real.lerobot.lockstep import Lockstep


def test_the_other_thread_runs_when_its_time_has_come():
    time, log = Lockstep(), []

    def work():
        while True:
            log.append(round(time.now, 6))
            time.sleep(0.01)

    time.start(work)
    assert not log
    for k in range(1, 26):
        time.advance(0.001 * k)
    assert log == [0.0, 0.01, 0.02] and time.now == pytest.approx(0.025)
    time.end()
    assert not any(t.name == "bus" for t in threading.enumerate())


def test_time_passes_by_itself_without_another_thread():
    time = Lockstep()
    time.sleep(0.5)
    assert time.now == 0.5


def test_its_error_reaches_the_thread_that_waits():
    time = Lockstep()

    def work():
        time.sleep(0.01)
        raise ValueError("broken")

    time.start(work)
    time.advance(0.005)
    with pytest.raises(ValueError, match="broken"):
        time.advance(0.02)
    time.end()

"""What an operator says, and in which order."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("rclpy")

from robopolicy.real.ros2.episode_client import EpisodeClient


class Slow:
    """A publisher that takes its time with an enable."""

    def __init__(self) -> None:
        self.said, self.begun, self.go_on = [], threading.Event(), threading.Event()

    def publish(self, message) -> None:
        if message.data:
            self.begun.set()
            assert self.go_on.wait(10.0)
        self.said.append(message.data)


def alone() -> EpisodeClient:
    """Without a graph: only what it says."""
    made = EpisodeClient.__new__(EpisodeClient)
    made._sign, made._signing, made._enable, made.forwarder = True, threading.Lock(), Slow(), None
    return made


def test_no_enable_follows_an_emergency_stop():
    """One that had begun before comes before it: in a queue the newer would hide the stop."""
    operator = alone()
    periodic = threading.Thread(target=operator._on_timer)
    periodic.start()
    assert operator._enable.begun.wait(10.0)
    stop = threading.Thread(target=operator.emergency_stop)
    stop.start()
    stop.join(0.2)
    operator._enable.go_on.set()
    periodic.join(10.0), stop.join(10.0)
    operator._on_timer()
    assert operator._enable.said == [True, False, False], "and it is said again, as one message may be lost"
    operator.fall_silent()
    operator._on_timer()
    assert operator._enable.said == [True, False, False]
    operator.enable()
    operator._on_timer()
    assert operator._enable.said[3:] == [True, True]

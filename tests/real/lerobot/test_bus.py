"""One thread on the port: who waits for whom at the end, and how the bus fared."""

from __future__ import annotations

import threading
import time
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from robopolicy.real.lerobot import bus as module
from robopolicy.real.lerobot.arm import LeRobotArm
from robopolicy.real.lerobot.bus import ArmBus, bus_summary, wait_until_still
from robopolicy.real.lerobot.units import MotorUnits
from robopolicy.real.safety import SafetyError
from tests.real.lerobot.rigs import PROFILE


class Port:
    """LeRobot's arm whose writes block until `free`; notes what was called, and from where."""

    def __init__(self) -> None:
        self.free, self.blocked, self.calls = threading.Event(), threading.Event(), list[str]()
        self.bus = SimpleNamespace(is_connected=True, disconnect=lambda **_: self.calls.append("close"))
        self.free.set()

    def get_observation(self):
        return dict.fromkeys((f"{j}.pos" for j in PROFILE.joints), 0.0)

    def send_action(self, action):
        if not self.free.is_set():
            self.blocked.set()
            self.free.wait()
        self.calls.append("sent")
        return action

    def disconnect(self):
        self.calls.append("disconnect")


@pytest.fixture
def port():
    found = Port()
    yield found
    found.free.set()


def arm_of(port: Port) -> LeRobotArm:
    units = MotorUnits(PROFILE.joints, np.full(5, np.deg2rad(1)), PROFILE.low, PROFILE.high, None, 0.0)
    return LeRobotArm(port, units, PROFILE, dt=0.01, clock=time.monotonic)


def test_the_arm_is_disconnected_after_its_thread_has_ended(port):
    arm, here = arm_of(port), np.zeros(5)
    with ArmBus(port) as bus:
        with bus.exchanging(arm):
            arm.write(here, 0.0, here[None])
            time.sleep(0.1)
        assert bus.thread is not None and not bus.thread.is_alive()
    assert port.calls[-1] == "disconnect" and port.calls.count("sent") > 2


def test_a_bus_that_blocks_its_thread_is_left_alone_and_that_is_said(port, capsys):
    arm, here = arm_of(port), np.zeros(5)
    with ArmBus(port, patience=0.1) as bus, bus.exchanging(arm):
        port.free.clear()
        arm.write(here, 0.0, here[None])
        assert port.blocked.wait(2.0)
    assert "disconnect" not in port.calls and "close" not in port.calls
    said = capsys.readouterr().out
    assert "has not answered for 0.1 s" in said and "switch its supply off" in said
    port.calls.clear()
    port.free.set()
    assert bus.thread is not None
    bus.thread.join(2.0)
    assert port.calls == ["sent"], "the packet under way, and none after it"


def test_an_error_comes_through_a_bus_that_blocks(port):
    arm, here = arm_of(port), np.zeros(5)

    def fail() -> None:
        with ArmBus(port, patience=0.1) as bus, bus.exchanging(arm):
            port.free.clear()
            arm.write(here, 0.0, here[None])
            assert port.blocked.wait(2.0)
            raise KeyError("cause")

    with pytest.raises(KeyError, match="cause"):
        fail()
    assert "disconnect" not in port.calls


def test_what_is_lacking_is_named(port, monkeypatch):
    monkeypatch.setattr(module, "FIRST", 0.2)
    arm = arm_of(port)
    with ArmBus(port) as bus, bus.exchanging(arm):
        assert wait_until_still(arm).q == pytest.approx(np.zeros(5))
        with pytest.raises(SafetyError, match=r"nothing has come of \['front'\]\. black"):
            wait_until_still(arm, lambda: ["front"], lambda: "black")


def test_the_summary_names_what_went_wrong():
    assert bus_summary(Counter(reads=3, reads_failed=0)) == "bus: 3 states read; no exchange failed or was late"
    assert "reads_failed" in bus_summary(Counter(reads=3, reads_failed=1))

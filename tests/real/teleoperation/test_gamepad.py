"""A gamepad that is a pipe: the button that must be held, sticks that must be let go first, and a pad that is gone."""

from __future__ import annotations

import fcntl
import os
import struct

import numpy as np
import pytest

from robopolicy import sim
from robopolicy.core.errors import ConfigError
from robopolicy.real.teleoperation import gamepad
from robopolicy.real.teleoperation.devices import source_of, stick_of
from robopolicy.real.teleoperation.gamepad import Gamepad
from robopolicy.real.teleoperation.keys import OTHER, InputLostError
from robopolicy.real.teleoperation.teleoperated_sim import TeleoperatedSim
from robopolicy.real.teleoperation.teleoperator import AXES, Drive, Teleoperator
from tests.real.control.test_robots import WIDE
from tests.real.control.test_robots import Drive as Policy
from tests.real.teleoperation.test_teleoperator import DT, HERE, SPEC

A, B, X, Y, LB, RB, BACK, START, GUIDE = range(9)
LX, LY, LT, RX, RY, RT = range(6)
STATE = 0x80


class Pipe:
    """The kernel's side of a joystick."""

    def __init__(self) -> None:
        read, self.fd = os.pipe()
        self.pad = Gamepad(fd=read)

    def send(self, kind: int, number: int, value: int) -> None:
        os.write(self.fd, struct.pack("=IhBB", 1234, value, kind, number))

    def press(self, *numbers: int, state: int = 0) -> None:
        for number in numbers:
            self.send(1 | state, number, 1)

    def release(self, *numbers: int, state: int = 0) -> None:
        for number in numbers:
            self.send(1 | state, number, 0)

    def push(self, axis: int, value: float, state: int = 0) -> None:
        self.send(2 | state, axis, round(value * 32767))

    def keys(self) -> list[str]:
        return list(iter(self.pad, None))

    def stick(self) -> list[float]:
        self.keys()
        return self.pad.stick().tolist()


@pytest.fixture
def pipe():
    made = Pipe()
    yield made
    made.pad.__exit__(None, None, None)
    os.close(made.fd)


def test_nothing_moves_unless_a_shoulder_button_is_held(pipe):
    pipe.push(LY, -1.0)
    assert pipe.stick() == [0, 0, 0, 0]
    pipe.push(LY, 0.0)
    pipe.press(RB)
    pipe.push(LY, -1.0)
    assert pipe.stick() == [1, 0, 0, 0], "up on the stick is away from the base"
    pipe.press(LB)
    pipe.release(RB)
    assert pipe.stick() == [1, 0, 0, 0], "the other hand took over"
    pipe.release(LB)
    assert pipe.keys() == [OTHER] and pipe.stick() == [0, 0, 0, 0]


def test_a_stick_that_is_off_when_the_button_goes_down_must_be_let_go_first(pipe):
    pipe.push(LX, 0.8)
    pipe.press(RB)
    assert pipe.stick() == [0, 0, 0, 0]
    pipe.push(LX, 0.05)
    assert pipe.stick() == [0, 0, 0, 0], "centred: within what a stick is off by at rest"
    pipe.push(LX, 0.8)
    assert pipe.stick()[1] < -0.7
    pipe.release(RB)
    pipe.press(RB)
    assert pipe.stick() == [0, 0, 0, 0], "every time anew"


def test_sticks_are_axes_in_proportion(pipe):
    assert AXES == ("dx", "dy", "dz", "dyaw")
    pipe.press(RB)
    pipe.stick()
    for axis, way in ((LY, [-1, 0, 0, 0]), (LX, [0, -1, 0, 0]), (RY, [0, 0, -1, 0]), (RX, [0, 0, 0, -1])):
        pipe.push(axis, 1.0)
        assert pipe.stick() == way
        pipe.push(axis, 0.56)  # half of what is beyond the dead 12%
        np.testing.assert_allclose(pipe.stick(), 0.5 * np.array(way), atol=1e-4)
        pipe.push(axis, 0.0)
    pipe.push(LT, 1.0)
    pipe.send(2, 6, 32767)
    assert pipe.stick() == [0, 0, 0, 0], "triggers and the cross are no axes"
    pipe.send(2, LY, -32768)
    assert pipe.stick() == [1, 0, 0, 0], "no more than all"


def test_buttons_are_keys_and_those_that_move_something_need_the_held_one(pipe):
    pipe.press(A, B, X, Y, BACK, START, GUIDE, 9, 10)
    assert pipe.keys() == ["t", "backspace", "enter", "x"], "who takes over stops the policy: that may always be"
    pipe.release(A, B, X, Y)
    pipe.press(LB, A, B, X, Y)
    assert pipe.keys() == ["space", "b", "p", "t"]
    pipe.release(A, B, X, Y)
    assert pipe.keys() == []


def test_what_is_told_as_a_state_is_no_press(pipe):
    """The kernel tells how all is when a pad is opened, and after it lost events: a release may be among these."""
    pipe.press(RB, A, state=STATE)
    pipe.push(LY, -1.0, state=STATE)
    assert pipe.keys() == [] and pipe.stick() == [0, 0, 0, 0]
    pipe.push(LY, 0.0)
    pipe.press(RB)
    pipe.stick()
    pipe.push(LY, -1.0)
    assert pipe.stick() == [1, 0, 0, 0]
    pipe.release(RB, state=STATE)
    assert pipe.stick() == [0, 0, 0, 0]


def test_events_that_come_in_pieces(pipe):
    event = struct.pack("=IhBB", 0, 1, 1, Y)
    os.write(pipe.fd, event[:3])
    assert pipe.keys() == []
    os.write(pipe.fd, event[3:] + event[:5])
    assert pipe.keys() == ["t"]


def test_a_pad_that_is_gone_is_gone_for_good():
    pipe = Pipe()
    pipe.press(RB)
    pipe.stick()
    pipe.push(LY, -1.0)
    assert pipe.stick()[0] == 1.0
    os.close(pipe.fd)
    for _ in range(2):
        with pytest.raises(InputLostError, match="gamepad"):
            pipe.pad()
        assert pipe.pad.stick().tolist() == [0, 0, 0, 0]


# -- a hand at it -----------------------------------------------------------------------------------------------------
def test_deflections_become_actions_within_the_bounds(pipe):
    teleoperator = Teleoperator(pipe.pad, SPEC, DT, Drive(speed=0.15, turn=0.8), stick=pipe.pad.stick)
    pipe.press(RB)
    teleoperator.command(0.0, HERE)
    pipe.push(LY, -1.0)
    np.testing.assert_allclose(teleoperator.command(0.05, HERE).action, [0.15 * DT, 0, 0, 0, 1.0])
    for k in range(200):
        assert teleoperator.command(0.1 + k * DT, HERE).action[0] == 0.15 * DT, "for as long as it is held"
    pipe.release(RB)
    assert not teleoperator.command(20.0, HERE).action[:4].any(), "in the next control step"


def test_going_back_ends_when_the_button_is_let_go(pipe):
    teleoperator = Teleoperator(pipe.pad, SPEC, DT, Drive(rewind_s=5.0), policy=True, stick=pipe.pad.stick)
    for k in range(40):
        assert teleoperator.command(k * DT, HERE._replace(q=np.full(7, 0.01 * k))) is None
    here = HERE._replace(q=np.full(7, 0.4))
    pipe.press(B)
    assert teleoperator.command(2.0, here) is None, "not without the button"
    pipe.press(RB, B)
    assert teleoperator.command(2.05, here).driver == "rewind"
    pipe.release(RB)
    found = teleoperator.command(2.1, here)
    assert found.driver == "human" and not found.action[:4].any()
    pipe.press(X)
    assert teleoperator.command(2.15, here).driver == "human", "handing back needs it too"
    pipe.press(RB, X)
    assert teleoperator.command(2.2, here) is None


def test_an_arm_is_driven_behind_the_limits_and_stops_when_the_pad_goes():
    """Full deflection for a second, through the limits; then the pad is unplugged at speed."""
    pipe, env = Pipe(), sim.make("reach", 1, joint_noise=0.0)
    teleoperator = Teleoperator(pipe.pad, env.spec.action, env.dt, Drive(episode_s=3.0), policy=True, first="human",
                stick=pipe.pad.stick)  # fmt: skip
    simulated_arm = TeleoperatedSim(env, Policy(env, [0.0] * 5), teleoperator=teleoperator, settings=WIDE)
    ticked, fastest, begun, at = simulated_arm.ticked, [], [], []

    def script() -> None:
        ticked()
        if simulated_arm.time > 0.2 and not begun:
            begun.append(pipe.press(RB))
        if simulated_arm.time > 0.3 and len(begun) == 1:
            begun.append(pipe.push(LX, -1.0))
        if simulated_arm.time > 1.3 and len(begun) == 2:
            begun.append(os.close(pipe.fd))
        at.append(simulated_arm.loop.decoder.commanded.pos.copy())
        fastest.append(float(np.abs(np.diff(simulated_arm.arm.points[-2:], axis=0)).max()))

    simulated_arm.ticked = script
    episode = simulated_arm.run(3)
    assert teleoperator.lost and not episode.aborted and len(begun) == 3
    assert max(fastest) > 1e-4 and fastest[-1] == 0.0 and simulated_arm.time < 2.0, "it braked and stands"
    way = at[-1] - at[0]
    assert 0.1 < way[1] < 0.2 and abs(way[0]) < 0.01 and abs(way[2]) < 0.01, "to the left, at 0.15 m/s for a second"


# -- the device -------------------------------------------------------------------------------------------------------
def test_what_is_no_gamepad_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"there is no .*js7.*ls /dev/input/js\*.*drive.gamepad="):
        source_of("gamepad", Drive(gamepad=str(tmp_path / "js7")))
    plain = tmp_path / "file"
    plain.write_bytes(b"x" * 80)
    with pytest.raises(ConfigError, match="is no joystick"):
        Gamepad(plain)

    def ioctl(fd, request, size) -> bytes:
        assert len(size) == 1
        return bytes([{gamepad._AXES: axes, gamepad._NUMBER_OF_BUTTONS: 12}[request]])

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    axes = 2
    with pytest.raises(ConfigError, match=r"has 2 axes and 12 buttons; two sticks \(5 axes\)"):
        Gamepad(plain)
    axes = 8
    with source_of("gamepad", Drive(gamepad=str(plain))) as pad:
        assert stick_of(pad) == pad.stick and stick_of(object()) is None

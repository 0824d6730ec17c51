"""A SpaceMouse that is a pipe: a cap that must be at rest first, springs back, and is gone."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections import deque

import numpy as np
import pytest

from robopolicy.core.errors import ConfigError
from robopolicy.real.teleoperation import spacemouse
from robopolicy.real.teleoperation.devices import device_of, map_of, source_of, stick_of
from robopolicy.real.teleoperation.keys import InputLostError
from robopolicy.real.teleoperation.spacemouse import HELD_S, SpaceMouse
from robopolicy.real.teleoperation.teleoperator import AXES, Drive, Teleoperator
from tests.real.teleoperation.test_teleoperator import DT, HERE, SPEC

X, Y, Z, RX, RY, RZ = range(6)
LEFT, RIGHT = 0x100, 0x101


class Pipe:
    """The kernel's side of a SpaceMouse, and a clock."""

    def __init__(self, relative: bool) -> None:
        read, self.fd = os.pipe()
        self.now, self.typed, self.kind = 0.0, deque[str](), 2 if relative else 3
        self.mouse = SpaceMouse(fd=read, relative=relative, clock=lambda: self.now, keys=self.key)

    def key(self) -> str | None:
        return self.typed.popleft() if self.typed else None

    def send(self, kind: int, code: int, value: int) -> None:
        os.write(self.fd, struct.pack("@llHHi", 12, 34, kind, code, value))

    def push(self, code: int, value: float) -> None:
        self.send(self.kind, code, round(value * 350))

    def rest(self) -> None:
        self.now += 2 * HELD_S
        assert not any(self.stick())

    def keys(self) -> list[str]:
        return list(iter(self.mouse, None))

    def stick(self) -> list[float]:
        self.keys()
        return self.mouse.stick().tolist()


@pytest.fixture(params=[True, False], ids=["relative", "absolute"])
def pipe(request):
    made = Pipe(request.param)
    yield made
    made.mouse.__exit__()


@pytest.mark.parametrize(
    ("code", "axis", "sign"),
    [(Y, "dx", -1), (X, "dy", -1), (Z, "dz", -1), (RZ, "dyaw", -1)],
    ids=["towards you", "right", "down", "clockwise"],
)
def test_the_cap_moves_along_the_axes_in_proportion(pipe, code, axis, sign):
    pipe.rest()
    for value, expected in ((1.0, 1.0), (0.56, 0.5), (0.1, 0.0), (-1.3, -1.0)):
        pipe.push(code, value)
        found = dict(zip(AXES, pipe.stick(), strict=True))
        assert found.pop(axis) == pytest.approx(sign * expected, abs=1e-3) and not any(found.values())
    pipe.push(RX, 1.0)
    assert pipe.stick()[AXES.index(axis)] == -sign, "tilting does nothing"


def test_a_cap_that_is_off_at_the_beginning_must_be_let_go_first(pipe):
    for _ in range(5):
        pipe.push(Y, -1.0)
        assert not any(pipe.stick())
        pipe.now += 0.5 * HELD_S
    if pipe.kind == 3:
        pipe.push(Y, 0.0)
    pipe.rest()
    pipe.push(Y, -1.0)
    assert pipe.stick()[0] == 1.0


def test_a_relative_cap_that_is_silent_was_let_go():
    pipe = Pipe(relative=True)
    pipe.rest()
    pipe.push(Z, -1.0)
    assert pipe.stick()[2] == 1.0
    pipe.now += 0.9 * HELD_S
    assert pipe.stick()[2] == 1.0
    pipe.now += 0.2 * HELD_S
    assert not any(pipe.stick())
    pipe.mouse.__exit__()


def test_buttons_and_the_terminal_are_keys(pipe):
    pipe.typed.extend(["enter", "p"])
    for code in (LEFT, RIGHT, 0x102):
        pipe.send(1, code, 1)
        pipe.send(1, code, 2)  # it repeats
        pipe.send(1, code, 0)
    assert pipe.keys() == ["space", "t", "enter", "p"]


def test_events_that_come_in_pieces(pipe):
    pipe.rest()
    whole = struct.pack("@llHHi", 1, 2, pipe.kind, X, 350)
    for part in (whole[:7], whole[7:20], whole[20:]):
        assert not any(pipe.stick())
        os.write(pipe.fd, part)
    assert pipe.stick()[1] == -1.0


def test_a_mouse_that_is_gone_is_gone_for_good(pipe):
    pipe.rest()
    pipe.push(Y, -1.0)
    assert pipe.stick()[0] == 1.0
    os.close(pipe.fd)
    for _ in range(2):
        with pytest.raises(InputLostError, match="spacemouse: end of input"):
            pipe.keys()
        assert not pipe.mouse.stick().any()


def test_deflections_become_actions_within_the_bounds(pipe):
    human = Teleoperator(pipe.mouse, SPEC, DT, Drive(speed=0.1, turn=0.5), stick=stick_of(pipe.mouse))
    human.start()
    pipe.rest()
    pipe.push(Y, -1.0)
    assert np.allclose(human.command(0.0, HERE).action[:4], [0.1 * DT, 0, 0, 0])
    assert device_of(pipe.mouse) == "spacemouse" and "cap" in map_of("spacemouse", recording=True)


AXIS = struct.pack("6i", 0, -500, 500, 0, 0, 0)


def kernel(rel: int, absolute: int, axis: bytes = AXIS, grab: int = 0):
    def ioctl(fd, request, given):
        number = request & 0xFF
        if request == spacemouse._GRAB:
            if grab:
                raise OSError(grab, os.strerror(grab))
            return 0
        return axis if number >= 0x40 else bytes([{0x22: rel, 0x23: absolute}[number]]) + bytes(7)

    return ioctl


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (kernel(0, 0x3F, grab=errno.EBUSY), "is held by another program, such as spacenavd"),
        (kernel(0x03, 0), "has no six axes, so it is no SpaceMouse"),
    ],
)
def test_what_is_no_spacemouse_is_refused(tmp_path, monkeypatch, answers, why):
    monkeypatch.setattr(spacemouse, "DEVICES", str(tmp_path / "*"))
    with pytest.raises(ConfigError, match="spacemouse: there is none"):
        SpaceMouse(keys=lambda: None)
    (tmp_path / "event7").touch()
    monkeypatch.setattr(fcntl, "ioctl", answers)
    with pytest.raises(ConfigError, match=f"event7 {why}.*drive.spacemouse="):
        SpaceMouse(keys=lambda: None)
    with pytest.raises(ConfigError, match=r"missing may not be read"):
        SpaceMouse(tmp_path / "missing", keys=lambda: None)
    with pytest.raises(ConfigError, match="not a terminal"):
        source_of("spacemouse", Drive(spacemouse=str(tmp_path / "event7")))


@pytest.mark.parametrize(("rel", "absolute", "relative", "full"), [(0x3F, 0, True, 350.0), (0, 0x3F, False, 500.0)])
def test_both_kinds_of_axes_are_known(tmp_path, monkeypatch, rel, absolute, relative, full):
    (tmp_path / "event7").touch()
    deflected = struct.pack("6i", 500, -500, 500, 0, 0, 0)
    monkeypatch.setattr(fcntl, "ioctl", kernel(rel, absolute, axis=deflected))
    now = [0.0]
    mouse = SpaceMouse(tmp_path / "event7", keys=lambda: None, clock=lambda: now[0])
    now[0] = 1.0
    assert (mouse.relative, mouse.full) == (relative, full)
    assert not mouse.stick().any() and mouse._centred == relative, "deflected as it was opened"
    mouse.__exit__()

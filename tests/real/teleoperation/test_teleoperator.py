"""Keys and what they mean: bounded motion, who drives, and an end that is always a stop. Fake clocks, scripted keys."""

from __future__ import annotations

import os
import pty
import termios
from dataclasses import replace

import numpy as np
import pytest

from robopolicy.core.errors import ConfigError
from robopolicy.real.control.joints import Commanded
from robopolicy.real.teleoperation.keys import InputLostError, Terminal, keys_of
from robopolicy.real.teleoperation.teleoperated_sim import RealTime
from robopolicy.real.teleoperation.teleoperator import MOVES, Drive, TeleopCommand, Teleoperator
from robopolicy.sim.control import DeltaPose, JointPosition

DT = 0.05
SPEC = DeltaPose(1, dt=DT, workspace=((0, 0, 0), (1, 1, 1))).spec
HERE = Commanded(np.zeros(7), np.zeros(3), 0.0, 1.0)


class Script:
    """Keys by the time at which they are pressed; then silence, or the end of input at `until`."""

    def __init__(self, *pressed: tuple[float, str], until: float = np.inf) -> None:
        self.pressed, self.until, self.now = sorted(pressed, key=lambda p: p[0]), until, 0.0

    def __call__(self) -> str | None:
        if self.now >= self.until:
            raise InputLostError("gone")
        if self.pressed and self.pressed[0][0] <= self.now + 1e-9:
            return self.pressed.pop(0)[1]
        return None


def commands(teleoperator: Teleoperator, keys: Script, steps: int, *, begin: float = 0.0) -> list[TeleopCommand | None]:
    found = []
    for k in range(steps):
        keys.now = begin + k * DT
        found.append(teleoperator.command(keys.now, HERE))
    return found


def moving(found: list[TeleopCommand | None]) -> list[int]:
    return [k for k, o in enumerate(found) if o is not None and o.action is not None and np.abs(o.action[:4]).max() > 0]


def test_a_key_moves_for_a_bounded_time_and_is_never_repeated():
    keys = Script((0.1, "w"))
    found = commands(Teleoperator(keys, SPEC, DT, Drive(key_s=0.15)), keys, 1000)
    assert moving(found) == [2, 3, 4], "0.15 s of three control steps, then nothing for 50 s"
    np.testing.assert_allclose(found[2].action, [0.15 * DT, 0, 0, 0, 1.0])


def test_a_held_key_repeats_and_moves_on():
    keys = Script(*((0.1 + 0.033 * k, "q") for k in range(10)))
    found = commands(Teleoperator(keys, SPEC, DT, Drive(key_s=0.15)), keys, 40)
    assert moving(found) == list(range(2, 11)), "from the first press to 0.15 s after the last one"


@pytest.mark.parametrize("key", MOVES)
def test_speeds_are_bounded_by_the_actions_limits(key):
    keys = Script((0.0, key), (0.0, "space"))
    teleoperator = Teleoperator(keys, SPEC, DT, Drive(speed=9.0, turn=99.0))
    keys.pressed = [(0.0, key), (0.0, "space")]
    (order,) = commands(teleoperator, keys, 1)
    axis, way = MOVES[key]
    assert order.action[axis] == way * SPEC.high[axis] and order.action[4] == -1.0
    assert np.count_nonzero(order.action[:4]) == 1


def test_axes_add_up_the_other_way_reverses_and_any_other_key_stands():
    keys = Script()
    teleoperator = Teleoperator(keys, SPEC, DT)
    keys.pressed = [(0.0, "w"), (0.0, "a"), (0.05, "s"), (0.1, "other")]
    first, second, third = commands(teleoperator, keys, 3)
    assert np.sign(first.action[:3]).tolist() == [1, 1, 0] and np.sign(second.action[:3]).tolist() == [-1, 1, 0]
    assert not third.action[:4].any()


def test_a_clock_that_runs_backwards_moves_nothing():
    keys = Script()
    teleoperator = Teleoperator(keys, SPEC, DT)
    keys.pressed = [(5.0, "w")]
    keys.now = 5.0
    assert teleoperator.command(5.0, HERE).action[0] > 0
    assert teleoperator.command(1.0, HERE).action[0] == 0


def test_a_keyboard_that_is_gone_halts_for_good():
    keys = Script((0.0, "w"), (0.1, "w"), until=0.12)
    teleoperator = Teleoperator(keys, SPEC, DT, policy=True, first="human")
    found = commands(teleoperator, keys, 100)
    assert all(o.halt == "input_lost" and o.action is None for o in found[3:]) and teleoperator.over
    teleoperator.start()
    assert teleoperator.command(9.0, HERE).halt == "input_lost", "a new episode does not bring it back"


def test_a_stop_that_was_typed_while_an_episode_began_counts():
    """All else that waits is forgotten."""
    keys = Script((0.0, "w"), (0.0, "x"))
    teleoperator = Teleoperator(keys, SPEC, DT, policy=True)
    assert teleoperator.quit and teleoperator.command(0.1, HERE).halt == "operator_ends"


def test_also_while_the_policy_drives():
    keys = Script(until=0.1)
    teleoperator = Teleoperator(keys, SPEC, DT, policy=True)
    assert [o and o.halt for o in commands(teleoperator, keys, 4)] == [None, None, "input_lost", "input_lost"]


def test_keys_of_the_human_move_nothing_while_the_policy_drives():
    keys = Script()
    teleoperator = Teleoperator(keys, SPEC, DT, policy=True)
    keys.pressed = [(0.0, "w"), (0.1, "t"), (0.3, "p")]
    found = commands(teleoperator, keys, 8)
    assert [o and o.driver for o in found] == [None, None, "human", "human", "human", "human", None, None]
    assert not moving(found) and found[2].action[4] == HERE.grip, "taking over opens no gripper"


def test_what_was_typed_before_an_episode_is_forgotten():
    keys = Script((0.0, "w"), (0.0, "enter"))
    teleoperator = Teleoperator(keys, SPEC, DT)
    assert not teleoperator.over and not moving(commands(teleoperator, keys, 5))


def test_a_jammed_key_does_not_keep_the_loop_from_its_work():
    teleoperator = Teleoperator(lambda: "w", SPEC, DT)
    assert teleoperator.command(0.0, HERE).action[0] > 0


def test_what_keys_cannot_drive_is_refused():
    with pytest.raises(ConfigError, match=r"task\.control=delta_pose"):
        Teleoperator(Script(), JointPosition(1, dt=DT).spec, DT)
    with pytest.raises(ConfigError, match=r"key_s: expected at most 0\.5 s, found 2"):
        Drive(key_s=2.0)
    ungripped = replace(SPEC, names=SPEC.names[:4], units=SPEC.units[:4], low=SPEC.low[:4], high=SPEC.high[:4],
                        gripper=None)  # fmt: skip
    keys = Script()
    teleoperator = Teleoperator(keys, ungripped, DT)
    keys.pressed = [(0.0, "space"), (0.0, "w")]
    assert teleoperator.command(0.0, HERE).action.shape == (4,)


# -- the terminal -----------------------------------------------------------------------------------------------------
def test_bytes_of_a_terminal():
    assert keys_of(b"wW \r\n\x7f\x08") == ["w", "w", "space", "enter", "enter", "backspace", "backspace"]
    assert keys_of(b"\x1b[A\x1bOBa\x1b[1;5C\xc3\xa9\x1b") == ["other", "other", "a", "other", "other", "other", "other"]
    with pytest.raises(InputLostError, match="Ctrl-D"):
        keys_of(b"w\x04")


def test_a_terminal_gives_keys_one_at_a_time_and_is_left_as_it_was():
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    with Terminal(slave) as keys:
        assert keys() is None
        os.write(master, b"w\x1b[A")
        assert [keys(), keys(), keys()] == ["w", "other", None]
        assert not termios.tcgetattr(slave)[3] & (termios.ICANON | termios.ECHO)
    assert termios.tcgetattr(slave) == before
    os.close(master)
    os.close(slave)


def test_a_terminal_that_is_closed_is_said_to_be_gone():
    master, slave = pty.openpty()
    with Terminal(slave) as keys:
        os.close(master)
        with pytest.raises(InputLostError):
            keys()
    os.close(slave)


def test_input_that_is_no_terminal_is_refused(tmp_path):
    with (tmp_path / "file").open("w") as file, pytest.raises(ConfigError, match="is not a terminal"):
        Terminal(file.fileno())


def test_real_time_waits_and_never_catches_up():
    wall, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        wall[0] += seconds

    pace = RealTime(lambda: wall[0], sleep)
    pace(0.0)
    pace(0.004)
    wall[0] += 5.0  # the machine was busy
    pace(0.008)
    pace(0.012)
    assert slept == pytest.approx([0.004, 0.004])

"""The gripper's openings: in range, no faster and no harder than permitted, repeated, and what stops them."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("rclpy")

from robopolicy.real.ros2.gripper import Gripper
from robopolicy.real.ros2.wiring import WiringError, load_wiring, parse
from robopolicy.real.safety import Mode
from tests.real.ros2.test_messages import changed

DT = 0.004
PLAIN = {"name": "gripper", "rate_hz": 20, "low": 0.0, "high": 0.08, "speed": None, "squeeze": None}


class Rig:
    """A gripper that is where it is told to be, or stuck on an object."""

    def __init__(self, **topic) -> None:
        self.sent, self.measured, self.now, self.object = [], 0.04, 100.0, 0.0
        self.gripper = Gripper(parse(changed(topics__gripper={**PLAIN, **topic})).grip, self.take)

    def take(self, opening: float) -> None:
        self.sent.append((self.now, opening))
        self.measured = max(opening, self.object)

    def run(self, seconds: float, opening: float = math.nan, mode: Mode = Mode.RUN) -> list[float]:
        before = len(self.sent)
        for _ in range(round(seconds / DT)):
            self.now += DT
            self.gripper.want(opening, self.measured)
            self.gripper.tick(mode, self.measured, self.now)
        return [opening for _, opening in self.sent[before:]]


def test_without_limits_of_its_own_it_is_told_at_once_and_then_again_and_again():
    rig = Rig()
    assert rig.run(0.1) == [], "nothing is wanted: it stays as it was found"
    assert set(rig.run(1.0, 0.01)) == {0.01} and 18 <= len(rig.sent) <= 21
    assert rig.run(DT, 0.07) == [0.07], "a change waits for nothing"


def test_it_stays_in_its_range_and_takes_numbers_alone():
    rig = Rig()
    assert set(rig.run(0.2, -1.0)) == {0.0} and rig.run(0.2, 5.0)[-1] == 0.08
    assert set(rig.run(0.2, math.inf)) == {0.08} and set(rig.run(0.2, math.nan)) == {0.08}


def test_it_is_no_faster_than_permitted():
    rig = Rig(speed=0.1)
    sent = np.array([0.04, *rig.run(0.3, 0.08)])
    assert np.diff(sent).max() <= 0.1 * DT + 1e-12 and sent[-1] == pytest.approx(0.07, abs=1e-3)


def test_it_presses_no_harder_than_permitted():
    """Closing on an object of 30 mm: the command stays 5 mm below it, by which a position servo presses."""
    rig = Rig(squeeze=0.005)
    rig.object = 0.03
    rig.run(0.5, 0.0)
    assert rig.sent[-1][1] == pytest.approx(0.025)
    rig.measured = 0.03
    assert rig.run(DT, 0.08)[-1] == pytest.approx(0.035), "nor outwards"


@pytest.mark.parametrize("mode", [Mode.HOLD, Mode.FAULT])
def test_a_grasp_is_kept_when_the_arm_stops(mode):
    """And what was under way stops where it is; it is still said again and again."""
    rig = Rig(speed=0.1)
    rig.run(0.2, 0.0)
    last = rig.sent[-1][1]
    assert 0.015 < last < 0.025
    assert set(rig.run(0.5, 0.08, mode)) == {last} and len(rig.run(0.5, 0.08, mode)) >= 9
    assert rig.run(0.1, 0.08)[-1] > last


def test_it_lets_go_in_a_fault_where_it_is_told_to():
    rig = Rig(after_fault="open", speed=0.1)
    rig.run(0.5, 0.0)
    assert set(rig.run(0.3, 0.0, Mode.HOLD)) == {0.0}
    opened = rig.run(1.0, 0.0, Mode.FAULT)
    assert opened[-1] == 0.08 and np.diff(opened).max() <= 0.1 * DT + 1e-12


def test_fingers_that_a_fault_has_opened_stay_open_after_the_reset():
    """They may have held a hand; a loop that restarts wants the opening that it measures."""
    rig = Rig(after_fault="open")
    rig.run(0.2, 0.0)
    assert rig.run(0.2, 0.0, Mode.FAULT)[-1] == 0.08
    rig.gripper.begin()
    assert set(rig.run(0.3, rig.measured)) == {0.08}
    assert rig.run(DT, 0.02) == [0.02], "until the policy wants something else"


def test_a_grasp_outlives_a_reset_unless_the_fingers_were_moved():
    """A loop that restarts wants the opening that it measures: of a held object that would let it fall."""
    rig = Rig()
    rig.object = 0.03
    rig.run(0.2, 0.0)
    rig.gripper.begin()
    assert set(rig.run(0.3, 0.03)) == {0.0}
    assert rig.run(DT, 0.05) == [0.05], "until the policy wants something else"
    rig.run(0.1, 0.0)
    rig.gripper.begin()
    rig.measured = 0.07  # by hand, or by another node
    rig.gripper.want(0.07, 0.07)
    rig.gripper.tick(Mode.RUN, 0.07, rig.now + DT)
    assert rig.sent[-1][1] == 0.07


def test_fingers_that_were_moved_by_hand_do_not_snap_back():
    rig = Rig(speed=0.1)
    rig.run(0.8, 0.0)
    assert rig.sent[-1][1] == 0.0
    rig.gripper.begin()
    rig.measured = 0.07
    sent = rig.run(DT, 0.07) + rig.run(0.1, 0.0)
    assert sent[0] == pytest.approx(0.07)
    assert np.abs(np.diff(sent)).max() <= 0.1 * DT + 1e-12


@pytest.mark.parametrize("mode", [Mode.HOLD, Mode.FAULT])
def test_one_wrong_measurement_drops_nothing(mode):
    rig = Rig(squeeze=0.02, speed=0.1)
    rig.object = 0.03
    rig.run(0.8, 0.01)
    held = rig.sent[-1][1]
    assert held == pytest.approx(0.01)
    for now in (mode, Mode.RUN):
        rig.measured = 0.08  # a reading that is wrong
        assert abs(([*rig.run(DT, 0.01, now)] or [held])[-1] - held) <= 0.1 * DT + 1e-12
        rig.measured = 0.03
        rig.run(0.1, 0.01, now)
        assert rig.sent[-1][1] == pytest.approx(held)


def test_what_is_held_when_the_node_starts_stays_held():
    rig = Rig()
    assert rig.run(0.2, rig.measured) == [], "the loop wants what it measures, of a held object too"
    assert rig.run(DT, 0.0) == [0.0]


def test_a_stall_grants_no_leap():
    rig = Rig(speed=0.1)
    rig.run(0.1, 0.08)
    before, rig.now = rig.sent[-1][1], rig.now + 0.5
    assert abs(rig.run(DT, 0.0)[-1] - before) <= 0.1 / PLAIN["rate_hz"] + 1e-12


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"low": 0.1}, "low"), ({"high": 2.0}, "high"), ({"high": float("nan")}, "high"), ({"speed": 0.0}, "speed"),
        ({"speed": -1.0}, "speed"), ({"squeeze": "soft"}, "squeeze"), ({"speed": ...}, "speed"),
        ({"squeeze": ...}, "squeeze"), ({"after_fault": "drop"}, "after_fault"), ({"force": 3}, "force"),
    ],
)  # fmt: skip
def test_a_wiring_must_say_what_the_gripper_may_do(change, key):
    topic = {k: v for k, v in {**PLAIN, **change}.items() if v is not ...}
    with pytest.raises(WiringError, match=f"topics.gripper.*{key}"):
        parse(changed(topics__gripper=topic))


def test_presets_latch_it():
    for name in ("fr3", "mujoco_panda"):
        assert load_wiring(name).grip.durability == "transient_local"

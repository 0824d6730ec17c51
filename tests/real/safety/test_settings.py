"""Settings of the limits: speeds in rad/s, and a cell's settings, which no deployment loosens."""

from __future__ import annotations

import numpy as np
import pytest

from robopolicy.real.safety import SafetyError, load_profile
from robopolicy.real.safety.body import Body
from robopolicy.real.safety.settings import Plane, Settings, settings_of, slowed, tightened
from robopolicy.real.safety.tracking import TrackingCheck
from tests.real.safety.test_chain import Rig

SEVEN = (0.5, 0.4, 0.3, 0.5, 0.5, 0.5, 0.2)


def test_the_smaller_of_joint_speed_and_the_maker_s_share_counts():
    plain = load_profile("fr3", velocity=1.0)
    for speed in (0.5, list(SEVEN)):
        bounded = load_profile("fr3", velocity=1.0, joint_speed=speed)
        assert bounded.velocity.tolist() == np.minimum(plain.velocity, speed).tolist()
        assert bounded.bounds.velocity.tolist() == bounded.velocity.tolist() and bounded.digest != plain.digest
    assert load_profile("fr3", velocity=0.01, joint_speed=0.5).velocity.max() < 0.06


def test_limits_from_before_a_setting_keep_their_digest():
    assert load_profile("fr3", joint_speed=None).digest == load_profile("fr3").digest != "87c17f10c9b1c032"
    assert load_profile("fr3", stall=None).digest == "87c17f10c9b1c032"


def test_no_command_is_faster_than_joint_speed():
    rig = Rig(settings={"velocity": 1.0, "joint_speed": 0.2})
    commands = [rig.tick(rig.home + 0.6).command for _ in range(400)]
    fastest = np.abs(np.diff(commands, axis=0)).max() / rig.chain.limiter.dt
    assert 0.19 < fastest <= 0.2 * (1 + 1e-9)


@pytest.mark.parametrize("value", [0.0, -0.5, np.nan, np.inf, "fast", True, [], [0.5, None], {}, 1e9])
def test_a_joint_speed_that_is_none_is_named(value):
    with pytest.raises(SafetyError, match="joint_speed"):
        settings_of({"joint_speed": value})


def test_as_many_joint_speeds_as_joints():
    with pytest.raises(SafetyError, match=r"joint_speed.* 7.* 6"):
        load_profile("panda", joint_speed=SEVEN[:6])


@pytest.mark.parametrize(
    ("old", "new", "looser"),
    [
        (None, 0.5, False), (0.5, None, True), (0.5, 0.4, False), (0.5, 0.6, True), (0.5, SEVEN, False),
        (0.4, SEVEN, True), (SEVEN, 0.2, False), (SEVEN, 0.3, True), (SEVEN, SEVEN, False), (SEVEN, SEVEN[:3], True),
    ],
)  # fmt: skip
def test_a_faster_joint_is_a_looser_limit(old, new, looser):
    found = Settings(joint_speed=old).loosened_by(Settings(joint_speed=new))
    assert found == ["joint_speed"] * looser


def test_no_tracking_error_of_its_own_is_looser_than_a_cell_s():
    """`null` is 0.2 rad. With a scene the arm has to be near its path too, on which a joint may lag so far."""
    cell, table = {"tracking_error": 0.05}, Plane((0.0, 0.0, 1.0), 0.0)
    with pytest.raises(SafetyError, match=r"tracking_error: None is looser than 0\.05"):
        tightened(cell, {"tracking_error": None})
    assert Settings(**cell).loosened_by(Settings(tracking_error=None)) == ["tracking_error"]
    assert Settings(**cell).loosened_by(Settings(tracking_error=None, planes=(table,))) == ["tracking_error"]
    assert Settings(**cell).loosened_by(Settings(tracking_error=0.001, planes=(table,))) == []
    late = [_why_not(s, lag=0.1) for s in ({**cell, "stall": None}, {"planes": (table,), "tracking_error": None})]
    assert late == ["tracking_error", ""], "the cell's limit would not hold any more"
    assert Settings().loosened_by(Settings(tracking_error=None)) == [], "the same 0.2 rad"


def _why_not(settings, *, lag):
    """Return the fault of an FR3 whose joints 1 are `lag` rad behind their command."""
    profile = load_profile("fr3", **settings)
    check, home = TrackingCheck(7), np.array(profile.data["home"])
    check.use(profile, Body(profile), 0.004)
    check.start(home, 0.0)
    for step in np.linspace(0.0, lag, 11):
        check.note((home + step * np.eye(7)[0])[None])
    return check.fault(home, 0.04)


def test_speeds_of_all_kinds_are_slowed():
    found = slowed({"joint_speed": SEVEN}, 0.1)
    assert found["velocity"] == 0.05 and found["tcp_speed"] == 0.025
    assert found["joint_speed"] == pytest.approx([v * 0.1 for v in SEVEN])
    assert slowed({"joint_speed": 0.5}, 0.5)["joint_speed"] == 0.25 and "joint_speed" not in slowed({}, 0.5)


@pytest.mark.parametrize("name", ["velocity", "tcp_speed"])
def test_a_speed_that_is_no_number_is_named(name):
    with pytest.raises(SafetyError, match=name):
        slowed({name: [0.5, 0.5]}, 0.1)


def test_a_cell_s_settings_may_be_tightened_and_never_loosened():
    cell = {"joint_speed": 0.5, "velocity": 0.8, "planes": [{"normal": [0, 0, 1], "offset": 0.0}]}
    assert tightened(cell, {}) == {**cell, "tcp_speed": 0.25}
    assert tightened(cell, {"joint_speed": 0.3, "tcp_speed": 1.0})["joint_speed"] == 0.3
    for given, speed in (({"joint_speed": 0.6}, 1.0), ({"joint_speed": None}, 1.0), ({}, 1.1), ({"planes": []}, 1.0)):
        with pytest.raises(SafetyError, match="wiring"):
            tightened(cell, given, speed)


@pytest.mark.parametrize(
    "name", ["condition", "tcp_speed", "reference_clip", "velocity", "joint_margin", "scene_distance"]
)
def test_a_setting_that_is_always_needed_is_not_none(name):
    with pytest.raises(SafetyError, match=rf"{name}: expected a number from .*, found None"):
        Settings(**{name: None})
    assert Settings(tracking_error=None, stall=None, energy=None).stall is None

"""What the measured arm may be off its command, by the distance that is claimed of it."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from robopolicy.real.recording.recorder import RecordedChain
from robopolicy.real.recording.replay import EVENTS
from robopolicy.real.safety import Mode, SafetyError, load_profile
from robopolicy.real.safety.audit import model_of
from robopolicy.real.safety.body import Body
from robopolicy.real.safety.decision import Measured
from robopolicy.real.safety.settings import Box, Plane
from robopolicy.real.safety.tracking import allowance, checked, guarded, levers, not_claimed, off_path, unprotected
from tests.real.safety.test_chain import DT, Rig

TABLE = (Plane((0.0, 0.0, 1.0), -0.1),)
ROOM = Box((-2.0, -2.0, -2.0), (2.0, 2.0, 2.0))
SCENE = {"planes": TABLE, "tracking_error": None}


STALL = {"reference_clip": 0.05}


def test_an_arm_that_stands_while_its_command_waits_ahead_is_a_fault():
    """As after a protective stop: states come, `reference_clip` keeps the command near, and one joint is enough."""
    rig = Rig(settings=STALL)
    target = rig.home + np.array([0, 0, 0, 0, 0, 0, 0.4])
    since = rig.now
    while rig.tick(target, measured=Measured(rig.home)).mode is not Mode.FAULT:
        assert rig.now - since < 2.0
        assert np.abs(rig.q - rig.home).max() <= 0.051
    assert rig.now - since > 0.5 and "fault:stalled" in rig.tick(target, measured=Measured(rig.home)).reasons
    rig.run(1.0, target=target, measured=Measured(rig.home))
    assert rig.chain.mode is Mode.FAULT, "latched"
    rig.chain.activate(Measured(rig.home), rig.now)
    assert np.array_equal(rig.q, rig.home), "a reset begins where the arm is"


@pytest.mark.parametrize(
    ("settings", "speed"), [({**STALL, "stall": None}, 0.0), (STALL, 0.02), ({**STALL, "stall": 3.0}, 0.0)]
)
def test_an_arm_that_is_to_press_or_moves_slowly_is_none(settings, speed):
    rig, at = Rig(settings=settings), np.zeros(7)
    for _ in range(500):
        at[6] += speed * DT
        assert rig.tick(rig.home + np.array([0, 0, 0, 0, 0, 0, 0.4]), measured=Measured(rig.home + at)).mode is Mode.RUN


def test_an_arm_near_its_command_may_stand():
    """Friction holds a servo a little off; and what stood may go on before the time is over."""
    rig = Rig(settings=STALL)
    for k in range(1000):
        off = np.full(7, 0.03) if k % 100 else np.full(7, 0.047)
        assert rig.tick(rig.home, measured=Measured(rig.home + off)).mode is Mode.RUN


def test_a_servo_that_droops_is_not_stalled_by_a_tight_clip():
    rig = Rig(settings={"reference_clip": 0.0223})
    for _ in range(300):
        assert rig.tick(rig.home, measured=Measured(rig.home + 0.0195)).mode is Mode.RUN


def test_the_tightest_clip_still_shows_an_arm_that_stands():
    """A tighter one would keep the command nearer than a servo's droop, and is refused unless nothing is to be seen."""
    rig = Rig(settings={"reference_clip": 0.0223})
    rig.run(1.0, target=rig.home + 0.5, measured=Measured(rig.home))
    assert rig.chain.mode is Mode.FAULT
    with pytest.raises(SafetyError, match=r"reference_clip: expected 0\.0222 rad or more, found 0\.02"):
        Rig(settings={"reference_clip": 0.02})
    assert Rig(settings={"reference_clip": 0.02, "stall": None}).chain.profile.settings.reference_clip == 0.02


def test_in_a_dry_run_an_arm_may_stand():
    assert guarded({}, dry_run=True) == {"stall": None} and guarded({}) == {}


@pytest.mark.parametrize("robot", ["fr3", "panda", "ur5e"])
def test_no_point_of_the_arm_moves_farther_than_its_levers_say(robot):
    """By MuJoCo, at random poses, for errors of one joint and of all."""
    profile = load_profile(robot)
    lever, model = levers(Body(profile)), model_of(profile)
    data, rng = mujoco.MjData(model), np.random.default_rng(0)
    names = [c.name for c in profile.capsules if c.scene]
    most = 0.0
    for k in range(300):
        q, e = rng.uniform(profile.low, profile.high), rng.normal(0, 0.02, len(lever))
        e = e if k % 2 else e * (np.arange(len(e)) == k % len(e))
        ends = []
        for at in (q, q + e):
            data.qpos[:] = at
            mujoco.mj_kinematics(model, data)
            geoms = [model.geom(name).id for name in names]
            half = [model.geom_size[g, 1] * data.geom_xmat[g].reshape(3, 3)[:, 2] for g in geoms]
            ends.append(np.array([data.geom_xpos[g] + side * h for g, h in zip(geoms, half, strict=True)
                                  for side in (-1, 1)] + [data.site_xpos[0].copy()]))  # fmt: skip
        moved = np.linalg.norm(ends[1] - ends[0], axis=1).max()
        assert moved <= lever @ np.abs(e) + 1e-12
        most = max(most, moved / (lever @ np.abs(e)))
    assert most > 0.5, "and the bound is no idle one"


def test_an_arm_off_its_path_by_more_than_the_distance_is_a_fault():
    """One joint, just inside and just outside; without a scene the same error is none."""
    for scene, share, mode in ((SCENE, 0.9, Mode.RUN), (SCENE, 1.1, Mode.FAULT), ({}, 1.1, Mode.RUN)):
        rig = Rig(settings=scene)
        body = rig.chain.limiter.body
        off = np.zeros(7)
        off[1] = share * rig.profile.settings.scene_distance / levers(body)[1]
        assert off[1] < 0.02
        rig.tick()
        assert rig.tick(rig.home, measured=Measured(rig.q + off)).mode is mode
        if mode is Mode.FAULT:
            assert "fault:tracking_error" in rig.tick().reasons


def test_a_state_far_away_is_a_fault_with_a_scene_too():
    rig = Rig(settings={**SCENE, "scene_distance": 1.0, "planes": (Plane((0.0, 0.0, 1.0), -5.0),)})
    rig.tick()
    assert rig.tick(measured=Measured(rig.q + 0.21)).mode is Mode.FAULT


def test_an_arm_that_is_late_on_its_way_is_on_its_way():
    """40 ms behind at speed: far from the newest command, and where that was certified."""
    rig = Rig(settings={**SCENE, "tcp_speed": 3.0, "velocity": 1.0})
    past = [rig.home] * 10
    for _ in range(150):
        rig.tick(rig.home + 1.0, measured=Measured(past[0]))
        past = [*past[1:], 0.5 * (rig.commands[-1] + (rig.commands[-2] if len(rig.commands) > 1 else rig.home))]
    assert rig.chain.mode is Mode.RUN and np.abs(rig.q - past[0]).max() > 0.02
    assert float(levers(rig.chain.limiter.body) @ np.abs(rig.q - past[0])) > 2 * rig.profile.settings.scene_distance


def test_a_stop_that_the_arm_fell_back_to_is_on_its_way_too():
    """The last commands were lost; the chain is told so, and the arm is where its stop led it."""
    rig = Rig(settings={**SCENE, "tcp_speed": 3.0})
    for _ in range(60):
        rig.tick(rig.home + 1.0)
    past = rig.chain.limiter.past()
    for _ in range(30):
        rig.tick(rig.home + 1.0)
    rig.chain.resume(past, 0)
    for _ in range(30):
        rig.chain.resume(rig.chain.limiter.past(), 1)
    assert rig.tick(rig.home, measured=Measured(rig.q)).mode is Mode.RUN


def test_a_replayed_stop_is_on_the_way_too():
    """A replay loads the state that the stop led to; the way there must be the recorded one."""
    live, replayed = Rig(settings={**SCENE, "tcp_speed": 3.0}), Rig(settings={**SCENE, "tcp_speed": 3.0})
    for rig in (live, replayed):
        for _ in range(60):
            rig.tick(rig.home + 1.0)
    for _ in range(10):
        live.chain.resume(live.chain.limiter.past(), 1)
        EVENTS["resume"](replayed.chain, {k: v.tolist() for k, v in live.chain.limiter.state_dict().items()})
    assert np.array_equal(live.chain.tracking.trail, replayed.chain.tracking.trail)
    assert np.ptp(live.chain.tracking.trail[-11:], axis=0).max() > 0.0


def test_the_way_to_a_path_is_the_shortest():
    """Against brute force."""
    rng, lever = np.random.default_rng(3), np.array([1.0, 0.7, 0.1])
    for _ in range(20):
        trail, q = np.cumsum(rng.normal(size=(9, 3)), axis=0), rng.normal(size=3)
        shares = np.linspace(0, 1, 20001)[:, None]
        best = min((np.abs(q - a - shares * (b - a)) @ lever).min() for a, b in zip(trail, trail[1:], strict=False))
        assert off_path(trail, q, lever) == pytest.approx(best, abs=1e-3) and off_path(trail, q, lever) <= best + 1e-12
    assert off_path(np.tile(q, (4, 1)), q, lever) == 0.0


def test_numbers_that_are_none_are_off_the_path():
    rig = Rig(settings=SCENE)
    rig.chain.tracking.trail = np.full_like(rig.chain.tracking.trail, np.nan)
    assert rig.tick(rig.home).mode is Mode.FAULT


# -- pairs ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"planes": TABLE}, "tracking_error"),  # 0.2 rad
        ({"keep_out": (Box((0.5, 0.5, 0.0), (0.6, 0.6, 0.1)),), "tracking_error": 0.01}, "tracking_error"),
        ({"workspace": ROOM, "tracking_error": 0.2}, "scene_distance"),
        ({"planes": TABLE, "tracking_error": None, "scene_distance": 0.0}, "scene_distance"),
    ],
)
def test_a_tracking_error_that_empties_the_claim_is_refused(settings, key):
    profile = load_profile("fr3", **settings)
    with pytest.raises(SafetyError, match=key):
        checked(profile, DT)


def test_a_distance_that_the_corners_of_slow_ticks_eat_up_is_refused():
    """Between control points 20 ms apart the spline is millimetres off the lines through them."""
    profile = load_profile("fr3", workspace=ROOM, tracking_error=None, scene_distance=0.005, acceleration=1.0)
    with pytest.raises(SafetyError, match="scene_distance"):
        checked(profile, 0.02)
    assert checked(profile, DT) is profile


def test_pairs_that_hold_are_taken():
    for settings in ({}, {"tracking_error": 10.0}, SCENE, {"planes": TABLE, "tracking_error": 0.002},
                     {"planes": TABLE, "tracking_error": 0.02, "scene_distance": 0.1}):  # fmt: skip
        profile = load_profile("fr3", **settings)
        assert unprotected(profile, DT) == [] and checked(profile, DT) is profile
    body = Body(load_profile("fr3", **SCENE))
    assert 0.009 < allowance(body.profile, body, DT) < 0.01


def test_a_scene_makes_it_follow_from_the_distance():
    assert guarded({"planes": TABLE})["tracking_error"] is None
    assert guarded({"planes": TABLE, "tracking_error": 0.001})["tracking_error"] == 0.001
    assert "tracking_error" not in guarded({"tcp_speed": 0.1, "planes": ()})
    for given in ({}, {"tracking_error": None}):  # a dry run's arm stays where it is, and that is no error
        assert guarded({"planes": TABLE, **given}, dry_run=True)["tracking_error"] == 0.2


def test_what_is_not_set_is_said():
    assert "workspace" in not_claimed(load_profile("fr3"))[0] and "planes" in not_claimed(load_profile("fr3"))[0]
    for settings in ({"planes": TABLE}, {"workspace": ROOM}):
        assert not_claimed(load_profile("fr3", **settings)) == []


def test_live_it_can_be_tightened_alone():
    rig = Rig(settings=SCENE)
    with pytest.raises(SafetyError, match="tracking_error"):
        rig.chain.tighten(tracking_error=0.01)
    rig = Rig(settings={"tracking_error": 0.1})
    with pytest.raises(SafetyError, match="tracking_error"):
        rig.chain.tighten(tracking_error=0.2)
    rig.chain.tighten(tracking_error=0.05)
    with pytest.raises(SafetyError, match="tracking_error"):
        rig.chain.tighten(**SCENE)  # a joint on its path could lag by 0.2 rad again
    rig = Rig(settings={"tracking_error": 0.2})
    rig.chain.tighten(**SCENE)
    assert rig.chain.profile.settings.tracking_error is None


def test_settings_of_older_recordings_keep_their_digest():
    """Their limits are named by it; the setting was a number then."""
    profile = load_profile("panda", tracking_error=0.2)
    assert profile.digest == load_profile("panda").digest
    assert RecordedChain(profile, put=lambda *_: None).tracking.allowance == np.inf

"""Which time it is on the arm, how old inputs are, and who publishes them. No DDS."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("rclpy")

from robopolicy.real.ros2.ages import Ages
from robopolicy.real.ros2.clock import AHEAD, LEAP, ArmClock, StampError, Stamps, stamps_of
from robopolicy.real.ros2.command_history import KEPT
from robopolicy.real.ros2.continuity import Continuity, JumpError
from robopolicy.real.ros2.publishers import ALIVE, Endpoint, PublisherError, Publishers, gid_of, with_info
from robopolicy.real.ros2.wiring import load_wiring
from robopolicy.real.safety import Mode, SafetyChain, load_profile
from robopolicy.real.safety.decision import Patience

WIRING = load_wiring("mujoco_panda")
DT = WIRING.tick_s
THERE = 1.7e9  # s that the arm's clock is ahead of ours


def heard(clock: ArmClock, states: int, *, begin: float = 5.0, delay=lambda k: 0.0003, wrong=lambda k: 0.0) -> float:
    """So many states come, a tick apart; s of our clock afterwards."""
    for k in range(states):
        sent = begin + k * DT
        clock.learn(THERE + sent + wrong(k), sent + delay(k))
    return begin + states * DT


def test_the_offset_is_that_of_the_least_delayed_states():
    rng = np.random.default_rng(0)
    clock = ArmClock(DT)
    now = heard(clock, 400, delay=lambda k: 0.0003 + rng.exponential(0.002))
    assert abs(clock.time(now) - THERE - now) < 0.0005


@pytest.mark.parametrize("wrong", [0.2, -0.2, 15.0, -3600.0, 3600.0])
@pytest.mark.parametrize("every", [3, 10, 400])
def test_wrong_stamps_do_not_move_the_clock(wrong, every):
    """Even where every third is wrong."""
    clock = ArmClock(DT)
    now = heard(clock, 400, wrong=lambda k: wrong if k % every == every - 1 else 0.0)
    assert abs(clock.time(now) - THERE - now) < 0.0005


def test_a_message_grows_old_while_none_follows():
    clock = ArmClock(DT)
    now = heard(clock, 100)
    stamps = Stamps("joint_states", clock, most=0.05)
    assert np.isnan(stamps.old(now))
    stamps.take(THERE + now, now + 0.003)
    assert stamps.old(now + 0.003) == pytest.approx(stamps.age) and stamps.age < 0.01
    assert stamps.old(now + 8.003) == pytest.approx(stamps.age + 8.0)


@pytest.mark.parametrize("wrong", [0.02, 0.2, -0.2, -15.0, 3600.0])
def test_a_clock_that_was_set_is_followed_within_a_window_and_the_time_before_is_forgotten(wrong):
    clock = ArmClock(DT, window=100)
    now = heard(clock, 100)
    clock.newest = THERE + now - DT
    for k in range(100):
        clock.restart(THERE + now + wrong + k * DT, now + k * DT + 0.0003)
        assert len(clock._recent) == len(clock._sorted) == 100, "no more is remembered"
    now += 100 * DT
    assert abs(clock.time(now) - THERE - now - wrong) < 0.0005
    clock.learn(float("nan"), now)
    assert np.isfinite(clock._sorted).all()


def test_simulated_time_goes_on_by_states_alone():
    clock = ArmClock(DT, follow=True)
    assert clock.tick(5.0) == 0
    clock.restart(1000.0, 5.0)
    assert clock.newest == 1000.0 and clock.tick(5.0) == clock.tick(500.0) == 250_000
    clock.restart(1000.0 + LEAP / 2, 5.1)
    assert clock.newest == 1000.0, "that is for who checks it to say"
    for other in (4600.0, 985.0):
        clock.restart(other, 5.2)
        assert clock.newest == other, "it was set"


# -- stamps ---------------------------------------------------------------------------------------------------------
def stamps(**how) -> Stamps:
    clock = ArmClock(DT)
    heard(clock, 50, delay=lambda k: 0.0)
    return Stamps("camera", clock, **{"most": 0.2, **how})


@pytest.mark.parametrize(
    ("age", "reason"),
    [(0.0, ""), (0.19, ""), (-0.9 * AHEAD, ""), (0.21, "late"), (2.0, "late"), (-1.1 * AHEAD, "ahead"),
     (-3600.0, "ahead"), (3600.0, "late"), (float("nan"), "unreadable"), (-float("inf"), "unreadable")],
)  # fmt: skip
def test_stamps_are_bounded_on_both_sides(age, reason):
    found = stamps()
    if not reason:
        found.take(THERE + 5.2 - age, 5.2)
        assert found.age == pytest.approx(age, abs=1e-6)
        return
    with pytest.raises(StampError, match=r"^camera: stamp") as refused:
        found.take(THERE + 5.2 - age, 5.2)
    assert refused.value.reason == reason and np.isnan(found.age)
    found.take(THERE + 5.2, 5.2)


def test_every_topic_that_has_stamps_is_checked_by_the_same_clock():
    """By the patience with it; what the driver says it plays not beyond what it was told to play."""
    clock = ArmClock(DT)
    found = stamps_of(WIRING, clock)
    assert set(found) == {"joint_states", "joint_commands", "features", *WIRING.cameras, *WIRING.depth_cameras}
    assert all(s.clock is clock and s.role == role for role, s in found.items())
    assert found["features"].most == 0.1 and found["joint_states"].most == found["joint_states"].ahead == 0.05
    assert DT < found["joint_commands"].ahead < WIRING.lead_ticks * DT


# -- ages -----------------------------------------------------------------------------------------------------------
def test_ages_are_of_our_clock_whatever_time_the_ticks_have():
    """Frozen, slow, fast: the watchdog of an input that is silent barks when its patience is over."""
    for pace in (0.0, 0.5, 1.0, 3.0):
        chain = SafetyChain(
            load_profile("panda"), dt=DT, enable=Patience(fault=0.1), inputs={"camera": Patience(hold=0.2)}
        )
        ages, dogs = Ages(chain, simulated=False), {dog.name: dog for dog in chain.watchdogs}
        ages.hear("enable", 50.0, 0.0, running=False)
        ages.begin(50.0, 0.0)
        for age, levels in (
            (0.09, (Mode.RUN, Mode.RUN)),
            (0.11, (Mode.FAULT, Mode.RUN)),
            (0.21, (Mode.FAULT, Mode.HOLD)),
        ):
            ages.tell(50.0 + age, age * pace)
            assert (dogs["enable"].level(age * pace), dogs["camera"].level(age * pace)) == levels, (pace, age)
        assert ages.of("state", 50.3) == pytest.approx(0.3) and ages.of("other", 50.0) == np.inf


def test_an_enable_is_not_fed_by_the_beginning_of_an_episode():
    chain = SafetyChain(load_profile("panda"), dt=DT, enable=Patience(fault=0.1))
    ages = Ages(chain, simulated=False)
    ages.begin(50.0, 0.0)
    assert ages.of("enable", 50.0) == np.inf and ages.of("state", 50.0) == 0.0
    assert next(dog for dog in chain.watchdogs if dog.name == "enable").level(0.0) is Mode.FAULT


@pytest.mark.parametrize("running", [True, False])
def test_a_silence_between_two_messages_is_a_fault_where_the_arm_runs(running):
    chain = SafetyChain(load_profile("panda"), dt=DT, enable=Patience(fault=0.1))
    ages = Ages(chain, simulated=False)
    for at in (50.0, 50.09, 50.18):
        ages.hear("enable", at, 0.0, running=running)
    assert not chain.faulted
    ages.hear("enable", 50.29, 0.0, running=running)
    assert chain.faulted is running


# -- motion ---------------------------------------------------------------------------------------------------------
def test_joints_move_no_further_than_they_can():
    one = Continuity(("a", "b"), np.array([2.0, 1.0]))
    one.take(np.zeros(2), 10.0, 5.0)
    one.take(np.array([0.027, -0.023]), 10.0 + DT, 5.0)
    for k, bad in enumerate(([0.027, 0.002], [0.06, 0.002], [np.nan, 0.0])):
        with pytest.raises(JumpError, match="state_jump"):
            one.take(np.array(bad), 10.0 + (k + 2) * DT, 5.1)
    assert one.problems(5.15) and not one.problems(5.21)
    with pytest.raises(JumpError, match="state_jump"):
        one.take(np.array([0.027, -0.023]), 10.0 + 5 * DT, 5.2), "what is no number is no place to come from"
    one.take(np.array([0.13, -0.023]), 10.0 + 16 * DT, 5.2), "it had the time"
    one.take(np.array([3.0, 3.0]), 11.0, 6.0), "nothing is known of what was between"


# -- publishers -----------------------------------------------------------------------------------------------------
A, B = Endpoint(b"a", "driver"), Endpoint(b"b", "other")


def test_while_the_arm_runs_nobody_else_is_listened_to():
    one = Publishers("joint_states", "/joint_states")
    one.take(A.gid, 1.0, False)
    one.take(B.gid, 2.0, False)
    one.take(B.gid, 2.1, True)
    for at in (2.2, 60.0):
        with pytest.raises(PublisherError, match=r"publishers: joint_states.*'/joint_states'"):
            one.take(A.gid, at, True)
    one.take(A.gid, 60.1, False)
    one.take(A.gid, 60.2, True)
    latched = Publishers("robot_description", "d", latched=True)
    latched.take(A.gid, 1.0, True)
    latched.take(B.gid, 2.0, True)


def test_more_than_one_publisher_speaks_against_a_start():
    """Publishers in the graph or heard lately; but not one that was heard and has been silent since."""
    one = Publishers("enable", "/enable")
    assert one.problems([A], 1.0) == []
    assert "['driver', 'other']" in one.problems([A, B], 1.0)[0], "one may be silent because nothing is pressed yet"
    one.take(A.gid, 1.0, False)
    one.take(B.gid, 1.1, False)
    assert one.problems([], 1.2), "the graph may be slow"
    for now, many in ((1.9, True), (1.05 + ALIVE, False)):
        one.take(B.gid, now, False)
        assert bool(one.problems([A, B], now)) is many, "a driver that died stays in the graph for 20 s"
    one.take(A.gid, 3.0, False)
    assert one.problems([A, B], 3.0), "it is back"
    for k in range(1000):
        one.take(b"%d" % k, 4.0, False)
    one.problems([A], 10.0)
    assert len(one.heard) == 1, "those that are gone are forgotten"
    latched = Publishers("robot_description", "d", latched=True)
    latched.take(A.gid, 1.0, False)
    latched.take(B.gid, 1.0, False)
    assert latched.problems([A, B], 50.0) and not latched.problems([B], 50.0)


def test_callbacks_are_told_where_a_message_comes_from():
    """As the two kinds of executors call them, and where the middleware does not say."""
    got = []
    callback = with_info(lambda message, info: got.append((message, gid_of(info))))
    info = {"publisher_gid": {"implementation_identifier": "rmw", "data": b"abc"}}
    callback("m", info)
    callback(("m", info))
    callback(("m", {"publisher_gid": None}))
    callback("m")
    assert got == [("m", b"abc"), ("m", b"abc"), ("m", None), ("m", None)]


def test_a_stream_that_slept_through_hours_wakes_at_once():
    """No loop over every tick that passed."""
    from tests.real.ros2.test_trajectory_stream import Wire

    wire = Wire()
    wire.begin()
    wire.run(150)
    slept, resumed, resume = 20_000, [], wire.chain.resume
    wire.chain.resume = lambda *how: resumed.append(how) or resume(*how)
    wire.tick, wire.timeline.tick, wire.now = wire.tick + slept, wire.timeline.tick + slept, wire.now + slept * DT
    wire.step()
    assert wire.stream.arm.mode is Mode.FAULT and wire.stream.arm.counts["missed"] > slept - 2 * KEPT
    assert len(resumed) < 1000

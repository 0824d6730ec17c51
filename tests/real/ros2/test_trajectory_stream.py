"""The arm at a distance without ROS: trajectories spliced by time, lost and late ones, restarts, refusals."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from robopolicy.real.control.robots import MujocoArm, State
from robopolicy.real.ros2.clock import ArmClock
from robopolicy.real.ros2.timeline import MATCH, Timeline
from robopolicy.real.ros2.wiring import load_wiring
from robopolicy.real.safety import Mode, SafetyChain, SafetyError, load_profile
from robopolicy.real.safety.audit import joint_violations
from robopolicy.real.safety.decision import Measured, Patience
from robopolicy.sim.tasks import make_task
from tests.real.streams import stream_of

WIRING = load_wiring("mujoco_panda")
DT, LEAD = WIRING.tick_s, WIRING.lead_ticks
HOME = np.array(load_profile("panda").data["home"])
FAST = {"tcp_speed": 1.5, "reference_clip": 10.0, "tracking_error": 10.0, "condition": 1e3, "self_distance": 0.0}


class Sweep:
    """A loop that drives a joint to and fro as fast as it may."""

    def __init__(self, robot, chain, clock, *, period=1.2) -> None:
        self.robot, self.chain, self.clock, self.period = robot, chain, clock, period
        self.begin, self.step, self.counts = 0.0, 0, Counter()
        self.driver, self.halted = "policy", ""

    def start(self, *, seed=0) -> None:
        state = self.robot.read()
        self.chain.deactivate()
        self.chain.activate(Measured(state.q), self.clock())
        self.begin, self.home = self.clock(), state.q

    def delay_begin(self, seconds) -> None:
        self.begin += seconds

    def tick(self):
        state, now = self.robot.read(), self.clock()
        side = 1.0 if int((now - self.begin) / self.period) % 2 == 0 else -1.0
        target = self.home + side * np.array([0.6, 0.2, 0.3, 0.2, 0.3, 0.3, 0.5])
        decision = self.chain.filter(target, None if state is None else Measured(state.q), now)
        self.robot.write(decision.command, 0.04, decision.stop)
        return decision


class Wire:
    """An arm's driver and a stream with a line between them that delays, loses and stalls."""

    def __init__(
        self, *, make_loop=Sweep, lost=0.0, delay=0, seed=0, echo=True, settings=FAST, inputs=None, wiring=None,
        follow=False,
    ) -> None:  # fmt: skip
        self.rng, self.lost, self.delay, self.echo = np.random.default_rng(seed), lost, delay, echo
        self.profile = load_profile("panda", **settings)
        wiring = wiring or WIRING
        dogs = wiring.watchdogs
        self.chain = SafetyChain(self.profile, dt=DT, state=dogs["state"], enable=dogs["enable"], inputs=inputs)
        self.stream = stream_of(self.chain, make_loop, wiring, send=self._send, follow=follow)
        self.arm = MujocoArm(make_task("reach"), self.profile, dt=DT)
        self.now, self.tick, self.glitch = 50.0, 1_000_000, 0.0  # s; of the states' stamps alone
        self.waited = 0.0  # s that states waited for the node
        self.more = {}  # of the echoes
        q = np.zeros(self.arm.model.nq)
        q[:] = self.arm.data.qpos
        q[:7] = HOME
        self.arm.place(q, self.arm.extra)
        self.timeline = Timeline(HOME, self.tick)
        self.way: list[tuple[int, int, np.ndarray]] = []  # tick of arrival, first, points
        self.played, self.refused, self.sent = [], Counter(), 0
        self.unheard = Counter()  # refused messages, by reason

    def _send(self, first, points, new=0) -> None:
        self.sent += 1
        if len(points) and self.rng.random() >= self.lost:
            self.way.append((self.tick + self.delay, first, points))

    def step(self, *, node=True, states=True, enable=True) -> None:
        """One tick of the arm, and the answer of the stream."""
        for item in [w for w in self.way if w[0] <= self.tick]:
            self.way.remove(item)
            if why := self.timeline.offer(item[1], item[2]):
                self.refused[why.split(":")[0]] += 1
        q = self.timeline.play()
        self.arm.write(q, 0.04, q[None])
        self.arm.advance()
        self.played.append(q)
        state = State(self.arm.data.qpos[:7].copy(), self.arm.data.qvel[:7].copy(), 0.08)
        if states:
            if self.echo:
                self.hear(self.stream.arm.on_commanded, q, self.tick * DT, self.now, **self.more)
            self.hear(self.stream.arm.on_state, state, self.tick * DT + self.glitch, self.now - self.waited)
        if enable:
            self.stream.arm.on_enable(True, self.now)
        if node:
            self.stream.pump(self.now)
        self.tick, self.now = self.tick + 1, self.now + DT

    def hear(self, take, *message, **more) -> None:
        """Hand over what may be refused, as the topics do."""
        try:
            take(*message, **more)
        except SafetyError as error:
            self.unheard[getattr(error, "reason", "state")] += 1

    def begin(self) -> None:
        for _ in range(5):
            self.step()
        self.stream.start(seed=0, now=self.now)

    def run(self, ticks, **how) -> None:
        for _ in range(ticks):
            self.step(**how)

    def check(self) -> None:
        """The arm never aborted, and by the independent checker no limit was broken."""
        assert self.arm.aborted == ""
        commands = np.array([self.played[0]] * 4 + self.played)[:, None]
        assert sum(joint_violations(commands, self.profile, DT).values()) == 0

    @property
    def speed(self) -> float:
        return float(np.abs(self.played[-1] - self.played[-2]).max() / DT)


@cache
def perfect() -> np.ndarray:
    """What is played over a line without faults."""
    wire = Wire()
    wire.begin()
    wire.run(450)
    wire.check()
    return np.array(wire.played)


@pytest.mark.parametrize(("lost", "delay"), [(0.05, 0), (0.05, 1), (0.5, 0), (0.0, 2)])
def test_nothing_is_broken_on_a_bad_line(lost, delay):
    """And while the line is no worse than the lead covers, the arm plays every command as if it were perfect."""
    wire = Wire(lost=lost, delay=delay)
    wire.begin()
    wire.run(450)
    wire.check()
    assert np.ptp(np.array(wire.played), axis=0).max() > 0.3, "it got somewhere"
    if delay + 1 < LEAD and wire.stream.arm.counts["lost"] == 0:
        assert np.array_equal(wire.played, perfect())
    if lost == 0.5:
        assert wire.stream.arm.counts["lost"] > 0 and wire.stream.arm.counts["foreign"] == 0
    assert wire.stream.arm.mode is Mode.RUN


def test_what_is_later_than_the_lead_never_moves_the_arm():
    wire = Wire(delay=LEAD + 3)
    wire.begin()
    wire.run(300)
    wire.check()
    assert wire.refused["seam"] > 100 or np.ptp(np.array(wire.played), axis=0).max() < 0.5


@pytest.mark.parametrize("at", [120, 333])
def test_a_node_that_dies_leaves_an_arm_that_stops(at):
    wire = Wire()
    wire.begin()
    wire.run(at)
    assert wire.speed > 0.3
    wire.run(200, node=False)
    wire.check()
    assert wire.speed == 0.0


def test_a_node_that_was_stopped_comes_back_faulted_and_is_reset_by_an_operator():
    wire = Wire()
    wire.begin()
    wire.run(150)
    wire.run(250, node=False, states=False, enable=False)
    wire.run(50)
    assert wire.stream.arm.mode is Mode.FAULT and wire.speed == 0.0
    wire.stream.start(seed=0, now=wire.now)
    wire.run(100)
    assert wire.stream.arm.mode is Mode.RUN and wire.speed > 0.1
    wire.check()


@pytest.mark.parametrize("what", ["states", "enable"])
def test_silence_faults_and_stays(what):
    wire = Wire()
    wire.begin()
    wire.run(150)
    wire.run(120, **{what: False})
    assert wire.stream.arm.mode is Mode.FAULT and wire.speed == 0.0
    wire.run(100)
    assert wire.stream.arm.mode is Mode.FAULT and wire.speed == 0.0
    assert any(what[:5] in reason for reason in wire.stream.decision.reasons)
    wire.check()


def test_an_emergency_stop_brakes_in_the_next_command():
    wire = Wire()
    wire.begin()
    wire.run(150)
    wire.stream.arm.on_enable(False, wire.now)
    wire.step(enable=False)
    assert wire.stream.arm.mode is Mode.FAULT and "fault:emergency_stop" in wire.stream.decision.reasons
    with pytest.raises(SafetyError, match="still braking"):
        wire.stream.start(seed=0, now=wire.now)
    wire.run(150, enable=False)
    with pytest.raises(SafetyError, match="the operator must enable"):
        wire.stream.start(seed=0, now=wire.now)
    wire.check()


@pytest.mark.parametrize("ticks", range(90, 186, 12))
def test_the_next_command_after_an_emergency_stop_is_the_stop_s(ticks):
    """At speed, wherever on its way the arm is: the sample that the trajectory before had in store."""
    wire, newest = Wire(), LEAD + MATCH + 1
    wire.begin()
    wire.run(ticks)
    (_, first, before), speed = wire.way[-1], wire.speed
    wire.stream.arm.on_enable(False, wire.now)
    wire.step(enable=False)
    _, then, after = wire.way[-1]
    assert then == first + 1 and np.array_equal(after[newest], before[newest + 1]) and speed > 0.05


def test_states_that_stop_are_noticed_in_time():
    """Braking begins within 100 ms, the fault within 250 ms."""
    wire = Wire()
    wire.begin()
    wire.run(150)
    modes = []
    for _ in range(round(0.3 / DT)):
        wire.step(states=False)
        modes.append(wire.stream.arm.mode)
    assert modes.index(Mode.HOLD) * DT <= 0.1 and modes.index(Mode.FAULT) * DT <= 0.25
    assert modes[0] is Mode.RUN and wire.speed < 1e-3
    wire.check()


def set_clock(wire, seconds: float) -> None:
    """The arm's clock, by which it plays and stamps."""
    wire.tick += round(seconds / DT)
    wire.timeline.tick += round(seconds / DT)


def rest_of(wire, what: str) -> None:
    """An arm that was started is driven; silence of `what` faults it in time, it stays, and is started again."""
    wire.run(100)
    assert wire.stream.arm.mode is Mode.RUN and wire.speed > 0.1
    modes = []
    for _ in range(round(1.0 / DT)):
        wire.step(**{what: False})
        modes.append(wire.stream.arm.mode)
    assert modes.index(Mode.FAULT) * DT <= WIRING.watchdogs[what.removesuffix("s")].fault + 2 * DT
    assert wire.speed == 0.0
    wire.run(round(2.0 / DT))
    assert wire.stream.arm.mode is Mode.FAULT and wire.speed == 0.0, "and nothing moves once it is back"
    wire.stream.start(seed=0, now=wire.now)
    wire.run(100)
    assert wire.stream.arm.mode is Mode.RUN and wire.speed > 0.1
    wire.check()


@pytest.mark.parametrize("seconds", [3600.0, -3600.0, 15.0, -15.0])
def test_an_arm_whose_clock_was_set_is_not_believed_until_it_is_started_anew(seconds):
    wire = Wire()
    wire.begin()
    wire.run(150)
    set_clock(wire, seconds)
    sent = wire.sent
    wire.run(round(0.3 / DT))
    assert wire.unheard["ahead" if seconds > 0 else "late"] >= 50
    assert wire.stream.arm.mode is Mode.FAULT and wire.sent > sent
    wire.run(200)
    moved = len(wire.played)
    wire.stream.start(seed=0, now=wire.now)
    assert wire.stream.arm.clock.newest == pytest.approx((wire.tick - 1) * DT), "it is believed now"
    wire.run(100)
    assert wire.stream.arm.mode is Mode.RUN and wire.speed > 0.1
    assert sum(joint_violations(np.array(wire.played[moved:])[:, None], wire.profile, DT).values()) == 0


@pytest.mark.parametrize("what", ["enable", "states"])
@pytest.mark.parametrize("seconds", [15.0, -15.0, 3600.0, -3600.0])
def test_a_clock_that_was_set_between_two_episodes_changes_nothing_in_the_second(seconds, what):
    """Neither its watchdogs, which run on our own clock, nor when it begins to move."""
    wire = Wire()
    wire.begin()
    wire.run(150)
    wire.stream.stop()
    wire.run(150)
    still = wire.played[-1]
    set_clock(wire, seconds)
    wire.timeline.rest(still, wire.tick)
    wire.run(round(0.3 / DT))
    with pytest.raises(SafetyError, match="state: the newest"):  # which of the two clocks is right is not known yet
        wire.stream.start(seed=0, now=wire.now)
    wire.run(round(0.5 / DT))
    assert np.array_equal(wire.played[-1], still)
    wire.stream.start(seed=0, now=wire.now)
    assert wire.stream.arm.time == 0.0
    begun = len(wire.played)
    wire.run(20)
    assert not np.array_equal(wire.played[-1], still) and len(wire.played) == begun + 20, "at once"
    rest_of(wire, what)


@pytest.mark.parametrize("seconds", [15.0, -15.0])
def test_while_the_arm_runs_another_time_is_never_believed(seconds):
    """However long it is told; and where the clock is set back again, all goes on."""
    patient = replace(WIRING, watchdogs={**WIRING.watchdogs, "state": Patience(hold=0.05, fault=5.0)})
    wire = Wire(wiring=patient, echo=False)
    wire.stream.arm.commanded, wire.stream.arm.commanded_at = HOME, wire.tick
    wire.begin()
    wire.run(150)
    wire.glitch = seconds
    wire.run(round(2.0 / DT))
    assert wire.stream.arm.mode is Mode.HOLD and wire.speed == 0.0 and wire.stream.arm.counts["missed"] == 0
    assert wire.stream.arm.clock.tick(wire.now - DT) == wire.tick - 1 and wire.unheard.total() == round(2.0 / DT)
    wire.glitch = 0.0
    wire.run(round(1.2 / DT))
    assert wire.stream.arm.mode is Mode.RUN and np.ptp(wire.played[-round(1.0 / DT) :], axis=0).max() > 0.1
    wire.check()


def test_states_that_waited_for_the_node_are_as_old_as_they_are():
    wire = Wire()
    wire.begin()
    wire.run(150)
    wire.waited = 0.06
    wire.run(2)
    assert wire.stream.arm.mode is Mode.HOLD and "state" in wire.stream.decision.reasons
    wire.check()


@pytest.mark.parametrize("seconds", [3600.0, 1.0, -15.0])
def test_simulated_time_that_leaps_is_a_fault(seconds):
    """No tick passes without a state there. A new activation believes the new time."""
    wire = Wire(follow=True)
    wire.begin()
    wire.run(150)
    set_clock(wire, seconds)
    resumed, resume = [0], wire.chain.resume
    wire.chain.resume = lambda *how: (resumed.__setitem__(0, resumed[0] + 1), resume(*how))
    wire.step()
    assert wire.stream.arm.mode is Mode.FAULT and wire.chain.faulted
    wire.run(150)
    assert wire.speed == 0.0 and resumed[0] < 1000, "not every tick of the time that never was is gone through"
    wire.stream.stop()
    wire.run(5)
    moved = len(wire.played)
    wire.stream.start(seed=0, now=wire.now)
    wire.run(150)
    assert wire.stream.arm.mode is Mode.RUN and wire.speed > 0.1
    assert sum(joint_violations(np.array(wire.played[moved:])[:, None], wire.profile, DT).values()) == 0


def test_no_plan_begins_before_a_simulated_arm_waits_for_it():
    """It may take long, and an arm that has not heard of the episode would go on by its own clock meanwhile."""
    wire = Wire(follow=True, delay=100)
    wire.more = {"alone": True}
    wire.begin()
    wire.run(80)
    assert wire.stream.ticks == 0 and wire.sent > 50, "it is told again and again where it stands"
    wire.tick += 100  # states that a busy machine lost
    wire.timeline.rest(wire.played[-1], wire.tick)
    wire.run(3)
    wire.delay, wire.more = 0, {}
    wire.run(1)
    wire.run(150)
    assert wire.stream.arm.mode is Mode.RUN and wire.speed > 0.1
    wire.check()


@pytest.mark.parametrize(("missed", "heard"), [(25, 1), (60, 1), (200, 1), (200, 0)])
def test_simulated_time_begins_with_the_first_plan_however_long_the_arm_went_on_before(missed, heard):
    """A busy machine let the arm's own clock go on: neither is its state too far ahead, nor the last enable old."""
    wire = Wire(follow=True, inputs={"features": Patience(slow=0.05, hold=0.1, fault=1.0)})
    wire.more = {"alone": True}
    wire.begin()
    wire.run(1)
    wire.run(missed, node=False, states=False)
    wire.run(heard)
    wire.more = {}
    wire.run(4, enable=False)
    assert wire.stream.ticks > 0 and wire.stream.arm.mode is Mode.RUN, wire.unheard
    assert wire.stream.arm.time < 4 * DT and wire.stream.arm.counts["missed"] == 0
    assert wire.stream.reasons.keys() <= {"rate"} and wire.unheard.keys() <= {"ahead", "undated"}


@pytest.mark.parametrize(("late", "mode"), [(0.3, Mode.RUN), (1.0, Mode.FAULT)])
def test_simulated_time_waits_for_an_enable_that_a_busy_machine_holds_up(late, mode):
    wire = Wire(follow=True)
    wire.begin()
    wire.run(150)
    until = wire.now + late
    while wire.now < until:
        wire.step(enable=False, node=False)
        while not wire.stream.pump(wire.now) and wire.now < until:  # this arm waits for every answer
            wire.now += 0.01
    assert wire.stream.arm.mode is mode
    wire.run(100)
    assert wire.stream.arm.mode is mode
    wire.check()


@pytest.mark.parametrize("seconds", [3600.0, -15.0])
def test_simulated_time_that_was_set_between_two_episodes_changes_nothing_in_the_second(seconds):
    wire = Wire(follow=True)
    wire.begin()
    wire.run(150)
    wire.stream.stop()
    wire.run(150)
    set_clock(wire, seconds)
    wire.timeline.rest(wire.played[-1], wire.tick)
    wire.run(3)
    wire.stream.start(seed=0, now=wire.now)
    wire.run(100)
    assert wire.stream.arm.mode is Mode.RUN and wire.speed > 0.1
    wire.run(round(0.5 / DT), enable=False)
    assert wire.stream.arm.mode is Mode.FAULT and wire.speed == 0.0
    wire.check()


@pytest.mark.parametrize("what", ["enable", "states"])
def test_a_silence_that_nobody_saw_counts_all_the_same(what):
    """The node was held up while it lasted; what came next was heard before the next tick."""
    wire = Wire()
    wire.begin()
    wire.run(150)
    wire.run(round(0.25 / DT), node=False, **{what: False})
    wire.run(20)
    assert wire.stream.arm.mode is Mode.FAULT
    wire.check()


def test_an_activation_needs_an_enable_that_is_alive_now():
    """And so does a reset: one that fell silent is none, and neither is what an activation itself does."""
    wire = Wire()
    wire.begin()
    wire.run(150)
    wire.run(round(0.75 / DT), enable=False)
    assert wire.stream.arm.mode is Mode.FAULT and wire.speed == 0.0
    still = wire.played[-1]
    for silent in (0.75, 0.12):
        with pytest.raises(SafetyError, match="enable"):
            wire.stream.start(seed=0, now=wire.now)
        wire.run(100, enable=False)
        assert np.array_equal(wire.played[-1], still), silent
        wire.step()
        wire.run(round(0.12 / DT), enable=False)
    wire.step()
    wire.stream.start(seed=0, now=wire.now)
    modes = [wire.step(enable=False) or wire.stream.arm.mode for _ in range(round(0.15 / DT))]
    assert modes[0] is Mode.RUN and modes.index(Mode.FAULT) * DT <= WIRING.watchdogs["enable"].fault + DT
    wire.check()


@pytest.mark.parametrize("seconds", [0.2, 0.04, -0.2, 3600.0, -3600.0])
@pytest.mark.parametrize("active", [True, False])
def test_a_glitch_in_three_states_is_forgotten(seconds, active):
    """It delays no trajectory: commands are for as many ticks later as before."""
    wire = Wire()
    wire.begin()
    wire.run(150)
    if not active:
        wire.stream.stop()
        wire.run(150)
    wire.glitch = seconds
    wire.run(3)
    wire.glitch = 0.0
    wire.run(round(0.1 / DT))
    assert wire.stream.arm.clock.tick(wire.now - DT) == wire.tick - 1
    if not active:
        wire.stream.start(seed=0, now=wire.now)
        wire.run(50)
    assert wire.stream.arm.history.last == wire.tick - 1 + LEAD
    assert wire.stream.arm.mode is Mode.RUN
    wire.check()


@pytest.mark.parametrize("seconds", [10.0, 0.2, 3 * DT, -0.2, -3600.0])
def test_an_echo_of_another_moment_is_no_sign_of_what_was_lost(seconds):
    """One stamped later than what was commanded would hide every loss: it does not count, and the arm is stopped."""
    wire = Wire(inputs={"joint_commands": WIRING.watchdogs["state"]})
    wire.begin()
    wire.run(100)
    take = wire.stream.arm.on_commanded
    wire.stream.arm.on_commanded = lambda q, stamp, at: take(q, stamp + seconds, at)
    wire.run(round(0.05 / DT) + 2)
    assert wire.stream.arm.mode is Mode.HOLD and "joint_commands" in wire.stream.decision.reasons
    wire.run(round(0.2 / DT))
    assert wire.stream.arm.mode is Mode.FAULT and wire.unheard["ahead" if seconds > 0 else "late"] > 30
    wire.run(150)
    with pytest.raises(SafetyError, match="joint_commands"):
        wire.stream.start(seed=0, now=wire.now)
    wire.stream.arm.on_commanded = take
    wire.run(5)
    wire.stream.start(seed=0, now=wire.now)
    wire.run(100)
    assert wire.stream.arm.mode is Mode.RUN
    wire.check()


@pytest.mark.parametrize("active", [True, False])
def test_a_state_that_no_motion_leads_to_stops_the_arm(active):
    """A second stream beside the first, 0.15 rad off in one joint: a fault, or no start, by the joint's name."""
    wire = Wire()
    wire.begin()
    wire.run(150)
    if not active:
        wire.stream.stop()
        wire.run(150)
    still = wire.played[-1]
    for _ in range(100):
        wire.step()
        other = wire.stream.arm.newest.q + np.array([0.0, 0.0, 0.15, 0.0, 0.0, 0.0, 0.0])
        wire.hear(wire.stream.arm.on_state, State(other, np.zeros(7), 0.08), wire.tick * DT - 0.5 * DT, wire.now)
    assert bool(wire.unheard["state"]) is active
    if active:
        assert wire.stream.arm.mode is Mode.FAULT and "'panda_joint3'" in wire.stream.decision.reasons[-1]
        assert "fault:state_jump" in wire.stream.decision.reasons[-1] and wire.speed == 0.0
    else:
        assert np.array_equal(wire.played[-1], still)
    with pytest.raises(SafetyError, match="state_jump: 'panda_joint3'"):
        wire.stream.start(seed=0, now=wire.now)
    wire.run(100)
    wire.stream.start(seed=0, now=wire.now)
    wire.run(100)
    assert wire.stream.arm.mode is Mode.RUN and wire.speed > 0.05
    wire.check()


def test_whatever_goes_wrong_in_the_loop_brakes_the_arm():
    class Broken(Sweep):
        def tick(self):
            if self.clock() > self.begin + 0.5:
                raise ZeroDivisionError("of a bug")
            return super().tick()

    wire = Wire(make_loop=Broken)
    wire.begin()
    wire.run(120)
    assert wire.stream.arm.mode is Mode.RUN and wire.speed > 0.1
    wire.run(150)
    assert wire.stream.arm.mode is Mode.FAULT and wire.speed == 0.0
    assert "fault:ZeroDivisionError: of a bug" in wire.stream.reasons, wire.stream.reasons
    wire.check()


def test_a_stalled_node_goes_on_from_the_stop():
    """50 ms without a tick, ten times: the arm falls back to its stop, and is picked up from there."""
    wire = Wire()
    wire.begin()
    for _ in range(10):
        wire.run(40)
        wire.run(12, node=False)
    wire.run(100)
    wire.check()
    assert wire.stream.arm.counts["missed"] > 50 and wire.stream.arm.counts["foreign"] == 0


def test_refusals_name_what_is_missing():
    stream = Wire().stream
    assert "is the driver running" in "; ".join(stream.arm.refusals(0.0))
    wire = Wire()
    wire.run(3, enable=False)
    with pytest.raises(SafetyError, match="enable: nothing has come"):
        wire.stream.start(seed=0, now=wire.now)
    wire.step()
    wire.tick, wire.timeline.tick, wire.now = wire.tick + 1, wire.timeline.tick + 1, wire.now + DT
    wire.stream.arm.on_commanded(HOME + 20.0, (wire.tick - 1) * DT, wire.now)
    with pytest.raises(SafetyError, match="from where its driver holds it"):
        wire.stream.start(seed=0, now=wire.now)
    wire.step()
    assert wire.stream.arm.refusals(wire.now) == []
    assert "state: the newest is 1.00 s old" in "; ".join(wire.stream.arm.refusals(wire.now + 1.0 - DT))
    wire.echo = False
    wire.run(60)
    assert "joint_commands: the newest is" in "; ".join(wire.stream.arm.refusals(wire.now))
    wire.stream.arm.commanded = None
    assert "joint_commands: nothing has come" in "; ".join(wire.stream.arm.refusals(wire.now))
    wire.stream.arm.on_state(State(wire.stream.arm.newest.q, np.full(7, 0.06), 0.08), wire.tick * DT, wire.now)
    assert "the arm moves at 0.06 rad/s" in "; ".join(wire.stream.arm.refusals(wire.now))


def test_an_echo_that_comes_keeps_the_arm_running():
    wire = Wire(inputs={"joint_commands": WIRING.watchdogs["state"]})
    wire.begin()
    wire.run(150)
    assert wire.stream.arm.mode is Mode.RUN and not wire.stream.reasons["joint_commands"]


def test_a_state_of_numbers_that_are_none_holds_the_arm_in_the_next_tick():
    wire = Wire()
    wire.begin()
    wire.run(100)
    assert wire.stream.arm.mode is Mode.RUN
    wire.stream.arm.on_unreadable()
    wire.step()
    assert wire.stream.arm.mode is Mode.HOLD and "state_unreadable" in wire.stream.decision.reasons
    wire.run(400)
    assert wire.stream.arm.mode is Mode.RUN, "it goes on once all is well and the arm stood"
    wire.check()


@pytest.mark.parametrize("hangs", [False, True])
def test_a_driver_that_no_longer_says_what_it_plays_stops_the_arm(hangs):
    """Though its states still come, and though it may repeat itself: what was lost meanwhile would go unnoticed."""
    wire = Wire(inputs={"joint_commands": WIRING.watchdogs["state"]})
    wire.begin()
    wire.run(100)
    wire.echo = False
    last = wire.stream.arm.commanded.copy(), wire.stream.arm.commanded_at * DT
    if hangs:
        pump = wire.stream.pump
        wire.stream.pump = lambda now: (wire.hear(wire.stream.arm.on_commanded, *last, now), pump(now))[1]
    wire.run(round(0.05 / DT) - 1)
    assert wire.stream.arm.mode is Mode.RUN
    wire.run(3)
    assert wire.stream.arm.mode is Mode.HOLD and "joint_commands" in wire.stream.decision.reasons
    wire.run(round(0.15 / DT))
    assert wire.stream.arm.mode is Mode.FAULT and wire.stream.decision.reasons[-1] == "fault:joint_commands"
    wire.check()


def test_an_arm_that_plays_what_nobody_sent_is_a_fault():
    wire = Wire()
    wire.begin()
    wire.run(100)
    wire.stream.arm.on_commanded(HOME + 1.0, wire.tick * DT, wire.now)
    wire.step()
    assert wire.stream.arm.mode is Mode.FAULT


def test_a_trajectory_that_does_not_belong_is_refused():
    line = Timeline(HOME, 100)
    rest = np.tile(HOME, (8, 1))
    assert line.offer(96, rest + 1e-9).startswith("seam")
    assert line.offer(96, rest[:, :6]).startswith("shape")
    assert line.offer(96, np.full((8, 7), np.nan)) == "not finite"
    assert line.offer(50, rest).startswith("past")
    assert line.offer(5000, rest).startswith("ahead")
    moved = rest.copy()
    moved[6:] += 1e-4
    assert line.offer(96, moved) == "" and np.array_equal(line.at(102), moved[6])
    for _ in range(4):
        line.play()
    assert np.array_equal(line.at(105), moved[7]), "it stays where the last trajectory ends"
    assert line.offer(104 - MATCH, np.tile(HOME, (5, 1))).startswith("seam"), "it has moved on since"


def test_the_arm_s_clock():
    clock = ArmClock(DT)
    assert clock.tick(0.0) == 0
    clock.learn(1000.0, 5.0)
    assert clock.tick(5.0) == 250_000
    clock.learn(1000.004, 5.006)
    assert clock.tick(5.0061) == 250_001, "the least delayed state counts"
    assert clock.tick(5.1) == 250_025, "time goes on without states"


def test_a_camera_that_stops_holds_the_arm():
    """Pictures that no longer come: HOLD after the wiring's patience, though states and the operator are there."""
    patience = WIRING.watchdogs["images"]
    wire = Wire(inputs={"observation.images.front": patience})
    wire.begin()
    for _ in range(100):
        wire.stream.arm.hear("observation.images.front", wire.now)
        wire.step()
    assert wire.stream.arm.mode is Mode.RUN and wire.speed > 0.05
    wire.run(round((patience.hold + 0.5) / DT))
    assert wire.stream.arm.mode is Mode.HOLD and wire.speed < 1e-3
    assert any("observation.images.front" in reason for reason in wire.stream.reasons)
    wire.run(round(patience.fault / DT))
    assert wire.stream.arm.mode is Mode.FAULT
    wire.check()


class Shadow(Sweep):
    """A loop in a dry run: it writes nothing."""

    def tick(self):
        state, now = self.robot.read(), self.clock()
        return self.chain.filter(self.home + 0.3, None if state is None else Measured(state.q), now)


@pytest.mark.parametrize("amplitude", [0.0, 0.05])
def test_in_a_dry_run_the_driver_plays_what_others_command(amplitude):
    """Or stands: neither a foreign command nor a lost one of ours. The policy's way is computed as if it were sent."""
    wire = Wire(make_loop=Shadow)
    wire.stream.arm.dry_run = True
    wire.begin()
    for tick in range(150):
        wire.timeline.play = lambda tick=tick: HOME + amplitude * np.sin(0.02 * tick)
        wire.step()
    arm = wire.stream.arm
    assert arm.mode is Mode.RUN and not arm.counts["foreign"] and not arm.counts["lost"] and not wire.way
    assert np.abs(wire.chain.limiter.c[0, -1] - HOME).max() > 0.1, "before it was taken back every third tick"

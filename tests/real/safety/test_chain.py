"""The chain around the limiter: watchdogs, safety modes, limits changed live, energy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from robopolicy.real.safety import Mode, SafetyChain, SafetyError, load_profile
from robopolicy.real.safety.audit import joint_violations
from robopolicy.real.safety.decision import Measured, Patience

DT = 0.004


class Rig:
    """A chain whose arm is where it was told to be, on a clock of its own."""

    def __init__(self, **options) -> None:
        self.settings = {"tcp_speed": 1.0, "reference_clip": 10.0} | options.pop("settings", {})
        self.profile = load_profile("panda", **self.settings)
        self.chain = SafetyChain(self.profile, **options)
        self.home = np.array(self.profile.data["home"])
        self.now, self.alive, self.commands = 100.0, True, []
        self.chain.enable(self.now)
        self.chain.activate(Measured(self.home), self.now)

    @property
    def q(self) -> np.ndarray:
        return self.chain.limiter.c[0, -1]

    def tick(self, target=None, *, measured=None, torque=None):
        self.now += DT
        seen = measured if measured is not None else Measured(self.q, torque) if self.alive else None
        decision = self.chain.filter(self.home + 0.4 if target is None else target, seen, self.now)
        self.commands.append(decision.command)
        return decision

    def run(self, seconds: float, **kw):
        return [self.tick(**kw) for _ in range(round(seconds / DT))]

    def speed(self) -> float:
        return float(np.abs(self.commands[-1] - self.commands[-2]).max()) / DT


def test_a_state_that_stops_coming_ends_in_hold_then_fault():
    rig = Rig()
    rig.run(0.3)
    assert rig.chain.mode is Mode.RUN and rig.speed() > 0.1
    rig.alive, since = False, rig.now
    modes = [(rig.tick().mode, rig.now - since) for _ in range(100)]
    assert min(t for m, t in modes if m is Mode.HOLD) <= 0.1
    assert min(t for m, t in modes if m is Mode.FAULT) <= 0.25
    assert rig.speed() == 0.0
    rig.alive = True
    rig.run(0.5)
    assert rig.chain.mode is Mode.FAULT and rig.speed() == 0.0, "latched"
    rig.chain.activate(Measured(rig.q), rig.now)
    rig.run(0.2)
    assert rig.chain.mode is Mode.RUN and rig.speed() > 0.05


def test_the_enable_is_a_sign_of_life_not_a_message_that_can_get_lost():
    rig = Rig(enable=Patience(fault=0.1))
    for _ in range(100):
        rig.chain.enable(rig.now)
        rig.tick()
    assert rig.chain.mode is Mode.RUN
    silent = [rig.tick().mode for _ in range(40)]
    assert silent.index(Mode.FAULT) * DT <= 0.105
    rig.run(0.3)
    with pytest.raises(SafetyError, match="enable"):
        rig.chain.activate(Measured(rig.q), rig.now)
    rig.chain.enable(rig.now)
    assert rig.tick().mode is Mode.FAULT, "coming back does not un-stop it"
    rig.run(0.08)
    rig.chain.activate(Measured(rig.q), rig.now)
    silent = [rig.tick().mode for _ in range(40)]
    assert silent[0] is Mode.RUN and silent.index(Mode.FAULT) * DT <= 0.02, "an activation is no sign of life"


@pytest.mark.parametrize("alive", [True, False])
@pytest.mark.parametrize("jump", [-3600.0, np.nan])
def test_a_clock_that_runs_backwards_is_a_fault(jump: float, alive: bool):
    rig = Rig()
    rig.run(0.1)
    rig.alive, rig.now = alive, rig.now + jump
    decision = rig.tick()
    assert decision.mode is Mode.FAULT and "fault:clock" in decision.reasons


def test_hold_is_left_by_itself_once_all_is_well_and_the_arm_stood():
    rig = Rig()
    rig.run(0.2)
    bad = rig.home.copy()
    bad[2] = np.nan
    assert rig.tick(bad).mode is Mode.HOLD and rig.chain.counts["input"] == 1
    modes = [d.mode for d in rig.run(0.6)]
    assert modes[0] is Mode.HOLD and modes[-1] is Mode.RUN and rig.speed() > 0
    stood = [k for k in range(1, len(rig.commands)) if np.array_equal(rig.commands[k], rig.commands[k - 1])]
    assert stood, "it stood before it went on"


def test_hold_outlasts_its_cause_even_at_rest():
    rig = Rig()
    rig.now += DT
    assert rig.chain.filter(None, Measured(rig.q), rig.now).mode is Mode.HOLD
    modes = [d.mode for d in rig.run(0.2)]
    assert modes.index(Mode.RUN) == pytest.approx(0.1 / DT, abs=1), "0.1 s without a cause"


@pytest.mark.parametrize("bad", [np.zeros(3), np.zeros((2, 7)), np.zeros(0)])
def test_a_target_of_another_shape_is_held_not_raised(bad):
    rig = Rig()
    rig.run(0.2)
    decision = rig.tick(bad)
    assert decision.mode is Mode.HOLD and decision.changed and "input" in decision.reasons


@pytest.mark.parametrize("bad", [np.full(7, np.nan), np.zeros(6), np.full(7, 1e300)])
def test_a_state_that_cannot_be_read_is_no_state(bad):
    rig = Rig()
    rig.run(0.2)
    modes = [rig.tick(measured=Measured(bad)).mode for _ in range(70)]
    assert modes[0] is Mode.HOLD and modes[-1] is Mode.FAULT and np.isfinite(rig.commands).all()


def test_an_arm_that_is_not_where_it_should_be_is_a_fault():
    rig = Rig(settings={"tracking_error": 0.1})
    rig.tick()
    assert rig.tick(measured=Measured(rig.q + 0.2)).mode is Mode.FAULT


def test_the_command_does_not_run_away_from_a_blocked_arm():
    rig = Rig(settings={"reference_clip": 0.05, "tracking_error": 1.0})
    for _ in range(300):
        rig.tick(measured=Measured(rig.home))
    assert np.abs(rig.q - rig.home).max() <= 0.05 + 1e-9
    assert rig.chain.counts["reference_clip"] > 100


@pytest.mark.parametrize("every", [2, 8])
def test_nor_in_the_ticks_between_two_states(every):
    """Of a driver whose states are rarer than our ticks, or on a line that loses some."""
    rig = Rig(settings={"reference_clip": 0.05, "tracking_error": 1.0, "stall": None})
    for tick in range(300):
        rig.alive = False  # no state in this tick
        rig.tick(measured=Measured(rig.home) if tick % every == 0 else None)
        assert np.abs(rig.q - rig.home).max() <= 0.051
    assert rig.chain.mode is Mode.RUN and rig.chain.counts["reference_clip"] > 100


def test_limits_tighten_live_and_loosen_only_at_rest():
    rig = Rig()
    rig.run(0.3)
    with pytest.raises(SafetyError, match="tcp_speed"):
        rig.chain.tighten(tcp_speed=1.5)
    with pytest.raises(SafetyError, match="expected a number"):
        rig.chain.tighten(tcp_speed=float("nan"))
    rig.chain.tighten(velocity=0.1)
    rig.run(0.6)
    commands = np.array(rig.commands)
    assert sum(joint_violations(commands[:, None], rig.profile, DT).values()) == 0, "the old ones throughout"
    late = joint_violations(commands[-60:, None], rig.chain.profile, DT)
    assert sum(late.values()) == 0 and rig.chain.transitions == 1
    rig.chain.deactivate()
    rig.chain.tighten(tcp_speed=1.5)
    with pytest.raises(SafetyError, match="activate"):
        rig.tick()


def test_a_margin_that_leaves_nothing_of_a_joint_is_refused_and_changes_nothing():
    """Such a margin permits no position of the joint, so the arm could never start."""
    panda = load_profile("panda", tcp_speed=1.0, reference_clip=10.0)
    low, high = panda.maker["low"].copy(), panda.maker["high"].copy()
    low[3], high[3] = -2.5, -2.2  # as of a joint with a short stroke
    profile = replace(panda, data={**panda.data, "position": {"short": {"range": [low.tolist(), high.tolist()]}}})
    chain, home = SafetyChain(profile), np.array(panda.data["home"])
    home[3] = -2.35
    chain.activate(Measured(home), 0.0)
    for margin in (0.15, 0.2):
        with pytest.raises(SafetyError, match=rf"joint_margin: {margin} rad .* 'panda_joint4', .* less than 0\.15 rad"):
            chain.tighten(joint_margin=margin)
    assert chain.profile is profile and chain.filter(home, Measured(home), DT).reasons == ()
    with pytest.raises(SafetyError, match="joint_margin"):
        SafetyChain(profile.changed(joint_margin=0.2))


def test_speed_is_reduced_before_it_is_stopped():
    rig = Rig(state=Patience(slow=0.02, hold=1.0, fault=2.0), settings={"velocity": 0.5})
    rig.run(0.3)
    fast = rig.speed()
    rig.alive = False
    decisions = rig.run(0.4)
    assert decisions[-1].mode is Mode.SLOW and rig.speed() <= 0.2 * rig.profile.velocity.max() + 1e-9 < fast


def test_the_tank_never_runs_dry_on_a_spring():
    """Joint 1 is pushed into a spring of 200 N·m/rad with 2 J to give."""
    stiffness, budget = 200.0, 2.0
    rig = Rig(settings={"energy": budget, "contact_stiffness": 250.0, "tracking_error": 1.0})
    wall, given, last = rig.home[0] + 0.05, 0.0, None
    for _ in range(500):
        push = max(0.0, rig.q[0] - wall)
        given_now = 0.5 * stiffness * push**2
        given = max(given, given_now)
        torque = np.zeros(7)
        torque[0] = -stiffness * push
        rig.tick(rig.home + np.eye(7)[0], torque=torque)
        last = push
        assert rig.chain.tank.energy >= 0.0
    assert given <= budget + 1e-6
    assert last > 0.02, "it did lean on the spring"
    free = Rig(settings={"tracking_error": 1.0})
    for _ in range(500):
        free.tick(free.home + np.eye(7)[0])
    assert 0.5 * stiffness * max(0.0, free.q[0] - wall) ** 2 > budget, "without the tank it would have given more"


@pytest.mark.parametrize("gap", [0.15, 0.3, 0.6])
def test_a_wall_met_at_speed_gets_no_more_than_the_tank_holds(gap):
    """Nothing is felt before the wall: the speed in free space must already leave energy for it."""
    given = {}
    for tank in (2.0, None):
        rig = Rig(settings={"energy": tank, "contact_stiffness": 800.0, "tracking_error": 2.0})
        wall, most = rig.home[0] + gap, 0.0
        for _ in range(600):
            push = max(0.0, rig.q[0] - wall)
            most = max(most, 0.5 * 800.0 * push**2)
            rig.tick(rig.home + 2.0 * np.eye(7)[0], torque=-800.0 * push * np.eye(7)[0])
            assert tank is None or rig.chain.tank.energy >= 0.0
        given[tank] = most
    assert 0.0 < given[2.0] <= 2.0 + 1e-6 < given[None]
    assert not rig.chain.error


def test_who_moves_a_resting_arm_by_hand_neither_fills_nor_empties_the_tank():
    rig = Rig(settings={"energy": 2.0})
    for _ in range(25):
        rig.tick(rig.home, torque=np.zeros(7))
    rig.chain.deactivate()
    energy = rig.chain.tank.energy
    rig.chain.activate(Measured(rig.home + 0.15, np.zeros(7)), rig.now)
    rig.chain.filter(rig.home + 0.15, Measured(rig.home + 0.15, np.full(7, -9.0)), rig.now + 0.004)
    assert rig.chain.tank.energy == energy


def test_a_stiffer_contact_is_reckoned_with_at_once():
    rig = Rig(settings={"energy": 2.0, "contact_stiffness": 500.0})
    rig.chain.tighten(contact_stiffness=5000.0)
    assert rig.chain.tank.stiffness == 5000.0


def test_a_tank_without_torques_is_no_tank():
    rig = Rig(settings={"energy": 2.0})
    assert rig.tick(torque=np.zeros(7)).mode is Mode.RUN
    for torque in (None, np.full(7, np.nan), np.zeros(6)):
        decision = rig.tick(torque=torque)
        assert decision.mode is Mode.HOLD and "torque_unreadable" in decision.reasons


def test_an_exception_inside_is_braked_for_and_told():
    rig = Rig()
    rig.run(0.2)
    rig.chain.limiter.search.choose = None
    decision = rig.tick()
    assert "error" in decision.reasons and "TypeError" in rig.chain.error
    rig.run(1.0)
    assert rig.speed() == 0.0


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_target_that_is_no_number_holds_the_arm(wrong):
    """Clipped to the joints, an infinite one would drive the arm on."""
    rig = Rig(settings={"reference_clip": 0.05})
    target = rig.home.copy()
    target[3] = wrong
    found = rig.run(0.8, target=target)
    assert found[-1].mode is Mode.HOLD and "input" in found[-1].reasons
    assert np.abs(rig.q - rig.home).max() < 1e-9

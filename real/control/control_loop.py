"""The control loop: observe, plan, decode, filter, write, once a tick. Its clock is injected; nothing here sleeps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from robopolicy.core.errors import SpecError
from robopolicy.core.types import Obs
from robopolicy.real.control.joints import ActionDecoder, ChunkBuffer, Commanded, Delays
from robopolicy.real.control.observation_history import ObservationHistory, Observe
from robopolicy.real.control.robots import Robot, State
from robopolicy.real.control.trajectory_spline import follow, steps_behind
from robopolicy.real.planning.planner import PlanningError, Runner
from robopolicy.real.safety import Decision, Mode, SafetyChain, SafetyError
from robopolicy.real.safety.chain import Measured
from robopolicy.real.teleoperation.teleoperator import Driver, TeleopCommand

Array = NDArray[np.float64]
# What is asked for waits for a command that came to trail it: each tick for so much of what it trails by, and no more
# than this of a control step.
CATCH_UP, MAX_WAIT = 0.3, 0.2


class Journal(Protocol):
    """Is told what happens at the policy's rate; for recordings."""

    def step(
        self, now: float, step: int, obs: Obs, before: Commanded, action: Array | None, limited: bool,
        driver: Driver = "policy", proposed: Array | None = None,
    ) -> None:  # fmt: skip
        """A control step: what was seen [1 …] and commanded before it, the action [Da] if there was one, whose it was,
        and what the policy would have done [Da] where it was not the policy's."""
        ...

    def chunk(self, now: float, chunk: Array, observed: float, refused: str) -> None:
        """A chunk [Ta Da] came, planned from what was seen at `observed` s."""
        ...


class Operator(Protocol):
    """A human who may drive instead of the policy (real/teleoperation/teleoperator.py)."""

    def start(self) -> None: ...
    def command(self, now: float, commanded: Commanded) -> TeleopCommand | None:
        """What is wanted of a control step, the arm being told to be at `commanded`; None: as the policy wants."""
        ...


def _nothing(command: Array, opening: float, stop: Array) -> None:
    """In place of a robot's `write`."""
    del command, opening, stop


class ControlLoop:
    """One arm under one policy.

    Args:
        lead: control steps before a chunk runs out at which the next is asked for; must cover the planner's latency.
        delays: measures that latency, for a planner that goes on from the actions ahead; None: it does not.
        clock: s, steady; called once a tick.
        shadow: everything is computed, nothing written: the arm holds still.
        journal: is told of every control step and chunk.
        early: s before a control step at which it observes and asks for a plan, so that one made in a thread is there
            when the step begins.
        history, age: see ObservationHistory. Plans count from when their pictures were taken, in whole control steps.
        grace: s by which a control step may be put off where its plan is late. The arm goes on as it went meanwhile,
            and then holds. No more than 0.4 control steps.
        operator: may take over. The policy goes on planning then, for the journal alone; what it planned before a
            hand-over is dropped.
    """

    def __init__(
        self, robot: Robot, chain: SafetyChain, decoder: ActionDecoder, runner: Runner, observe: Observe,
        buffer: ChunkBuffer, *, clock: Callable[[], float], history: int = 1, lead: int = 0, shadow: bool = False,
        early: float = 0.0, grace: float = 0.0, journal: Journal | None = None, operator: Operator | None = None,
        delays: Delays | None = None, age: float = 0.0,
    ) -> None:  # fmt: skip
        if tuple(robot.joints) != chain.profile.joints:
            raise SafetyError(f"robot: joints {list(robot.joints)}, the limits are of {list(chain.profile.joints)}")
        self.robot, self.chain, self.decoder, self.runner = robot, chain, decoder, runner
        self.write = _nothing if shadow else robot.write  # in a dry run there is no way to the arm
        self.buffer, self.clock, self.lead, self.shadow = buffer, clock, lead, shadow
        self.early, self.asked, self.delays = early, False, delays
        self.observation_history = ObservationHistory(observe, history=history, age=age)
        self.picture_age = round(age / buffer.spec.dt) * buffer.spec.dt  # s, in whole control steps
        self.grace = min(grace, 0.4 * buffer.spec.dt)  # half a control step late is too late for its action
        self.counts, self.journal, self.operator = Counter[str](), journal, operator
        self.driver: Driver = "policy"
        self.halted = ""  # why the arm is to stop and stay, until the next start
        self.period = buffer.spec.dt
        self.goal: Array | None = None  # [n] rad, the joint target at the end of the control step; None: nothing to do
        self.points: Array = np.tile(chain.limiter.c[0, -1], (4, 1))  # [4 n] rad, of the reference's spline
        self.goal_from, self.grip = 0.0, 0.0  # s; m
        self.wanted: Array | None = None  # [Da] the action of this control step, as the policy wanted it
        self.proposed: Array | None = None  # [Da] what the policy would do while another drives
        self.limited = False  # it was slowed
        self.resting = True  # stands, and has not been told where to go since

    def start(self, *, seed: int = 0) -> None:
        """Activate where the arm stands.

        Raises:
            SafetyError: there is no state, or the arm stands where it may not.
        """
        state, now = self.robot.read(), self.clock()
        if state is None:
            raise SafetyError("robot: no state has come; is the driver running?")
        self.chain.deactivate()
        self.chain.activate(Measured(state.q), now)
        self.runner.reset(seed)
        self.seed, self.driver, self.halted = seed, "policy", ""
        if self.delays is not None:
            self.delays.reset()
        self.observation_history.start()
        self.origin = self.begin = now  # s: ticks count from the one; the other moves on where a step is put off
        self.at = math.inf  # s: no tick yet
        self.first = now  # s: the control step that was last planned for
        self.step, self.waiting, self.asked, self.grip = 0, False, False, state.opening
        self._resync(state.q)
        if self.operator is not None:
            self.operator.start()

    def tick(self) -> Decision:
        """One tick: the command that was decided on."""
        now, state = self.clock(), self.robot.read()
        dt = self.chain.limiter.dt
        at = self.origin + round((now - self.origin) / dt) * dt  # s, of this tick, however late it runs
        if (missed := at - self.at - dt) > 0.5 * dt:  # ticks passed without us: what was to be done waits for so long
            self._postpone(missed)
            if missed > self.buffer.max_delay:  # too long ago that it was planned
                self.buffer.clear()
            self.counts["missed"] += round(missed / dt)
        self.at = at
        reason = ""
        played = None if state is None or self.shadow else state.played
        if played is not None and not self.chain.heard(played):
            self.counts["lost"] += 1
        due = self.begin + self.step * self.period
        if state is not None and np.isfinite(state.q).all():
            self.observation_history.note(at, state)
        if self.early and not self.asked and at >= due - self.early - 1e-6 and state is not None:
            reason = self._collect(now)  # what is asked for next must not wait for another control step
            if not self.waiting and np.isfinite(state.q).all():
                reason = self._ask(now, due, due - self.early) or reason
        if at >= due - 1e-6 and state is not None and np.isfinite(state.q).all():
            step, before = self.step, self.decoder.commanded
            self.wanted, self.proposed, self.limited = None, None, False
            reason = self._control_step(state, now, due) or reason
            executed = self.step > step  # it was not put off
            self.counts[self.driver] += executed
            if self.journal is not None and executed:
                self.journal.step(
                    now,
                    step,
                    self.observation_history.newest,
                    before,
                    self.wanted,
                    self.limited,
                    self.driver,
                    self.proposed,
                )
        target: Array | None = None
        if self.halted:
            reason = self.halted
        elif self.goal is not None:
            target = follow(self.points, (at - self.goal_from) / self.period)
        elif self.resting and not reason:
            target = self.chain.limiter.c[0, -1]  # nothing has been asked for yet: stand
        measured = None if state is None else Measured(state.q, state.torque if self.chain.tank is not None else None)
        decision = self.chain.filter(target, measured, now, reason=reason or "underrun")
        if decision.mode >= Mode.HOLD:
            self._resync(decision.command)
        elif target is not None and self.goal is not None and not self.shadow:
            self._synchronise(decision.command, target, at, dt)
        self.write(decision.command, self.grip, decision.stop)
        return decision

    def delay_begin(self, seconds: float) -> None:
        """Let the first control step begin so much later, before any control step."""
        self.begin += seconds

    # -- inside -----------------------------------------------------------------------------------------------------
    def _resync(self, q: Array) -> None:
        """Let decoder and interpolation start from `q` [n]."""
        self.buffer.clear()
        self.decoder.reset(q, self.grip)
        self.goal, self.resting = None, True
        self.waited = 0.0  # s, of this control step, that the reference waited for the command
        self.points, self.goal_from = np.tile(q, (4, 1)), self.clock()

    def _synchronise(self, command: Array, target: Array, at: float, dt: float) -> None:
        """Slow down what is to be done where `command` [n] came to trail `target` [n], as commands were lost or a limit
        held them; hurry it where the command is ahead. A policy that asks for all the speed that is permitted leaves
        it none to catch up with."""
        lag = steps_behind(command, target, target - follow(self.points, (at - dt - self.goal_from) / self.period))
        self.counts["trailed"] += abs(lag) > 0.5
        most = MAX_WAIT * self.period
        wait = min(max(dt * min(max(CATCH_UP * lag, -0.5), 0.5), -most - self.waited), most - self.waited)
        if wait:
            self._postpone(wait)
            self.waited += wait

    def _postpone(self, seconds: float) -> None:
        """Do all that is to be done so much later."""
        self.begin, self.goal_from = self.begin + seconds, self.goal_from + seconds
        self.first += seconds
        self.buffer.postpone(seconds)

    def _control_step(self, state: State, now: float, due: float) -> str:
        """What happens at the policy's own rate; a reason where there is nothing to do next."""
        teleop = None if self.operator is None else self.operator.command(now, self.decoder.commanded)
        reason = self._hand_over("policy" if teleop is None else teleop.driver, now, due)
        reason = reason if self.asked else self._ask(now, due, due)
        if teleop is not None and teleop.halt:
            self.halted = teleop.halt
        if self.chain.mode >= Mode.HOLD:  # begin anew once the arm may move again
            self.asked = False
            self.step = max(self.step + 1, int((now - self.begin) / self.period + 1e-6))
            try:
                self.waiting = self.waiting and self.runner.poll(now) is None
            except PlanningError:
                self.waiting = False
            return ""
        reason = self._collect(now) or reason
        if teleop is None and self.waiting and not len(self.buffer) and now < due + self.grace:
            self.counts["put_off"] += 1
            return reason
        if self.resting and self.grace and now > due + self.chain.limiter.dt:  # nothing moves yet: put all off
            self._postpone(now - due)
            due = now
        self.asked = False
        self.step = max(self.step + 1, int((now - self.begin) / self.period + 1e-6))
        planned = self.buffer.pop(due)
        self.proposed = None if teleop is None else planned
        action = planned if teleop is None else teleop.action
        if teleop is not None and teleop.back is not None:
            target = self.decoder.retrace(teleop.back, self.chain.profile)
        elif action is not None:
            self.wanted = action
            target = self.decoder.decode(action, state.q, self.chain.profile)
        else:
            self.goal = None
            return reason
        self.resting, self.waited = False, 0.0
        self.goal, self.grip, self.limited = target
        self.points = np.concatenate([self.points[1:], self.goal[None]])
        self.goal_from = due
        self.counts["paced"] += self.limited
        return reason

    def _ask(self, now: float, due: float, seen: float) -> str:
        """Observe, and ask for a plan for the control step at `due` s; by rights that was at `seen` s."""
        self.asked = True
        self.observation_history.capture()
        return self._request(now, due, seen)

    def _hand_over(self, driver: Driver, now: float, due: float) -> str:
        """Let `driver` drive from here on. A plan made before belongs to another motion: it is dropped."""
        before, self.driver = self.driver, driver
        if (before == "policy") == (driver == "policy"):
            return ""
        self.counts["handed_over"] += 1
        self.buffer.clear()
        self.runner.reset(self.seed)
        self.waiting = False
        return self._request(now, due, now) if self.asked else ""

    def _request(self, now: float, due: float, seen: float) -> str:
        """Ask for what to do next where little is left to do. Times are those of control steps, not of the ticks that
        come up to one later: plans that take whole control steps would fall behind by that."""
        if self.chain.mode >= Mode.HOLD:
            return ""
        reason = self._collect(now)
        if len(self.buffer) <= self.lead and not self.waiting:
            ahead = None
            if self.delays is not None and self.driver == "policy":  # else nothing of the buffer will be executed
                ahead = self.buffer.ahead(due, self.delays.steps)
            self.runner.request(self.observation_history.stacked, self.step, min(seen, now) - self.picture_age, ahead)
            self.first, self.waiting = due - self.picture_age, True
            reason = self._collect(now) or reason
        return reason

    def _collect(self, now: float) -> str:
        """Take a chunk that is there; why not, where it is refused."""
        try:
            done = self.runner.poll(now)
        except PlanningError as error:
            self.waiting = False
            self.counts["failed"] += 1
            return f"planning_failed: {error}"
        if done is None:
            return ""
        self.waiting, refused = False, ""
        if self.delays is not None:
            self.delays.measured(max(0.0, now - self.first))
        try:
            self.counts["late"] += self.buffer.add(done[0], done[1], now, self.first)
        except SpecError as error:
            self.counts["refused"] += 1
            refused = f"chunk_refused: {error}"
        if self.journal is not None:
            self.journal.chunk(now, done[0], done[1], refused)
        return refused

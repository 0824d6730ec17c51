"""The control loop: observe, plan, decode, filter, write, once a tick. Its clock is injected, and it never sleeps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np

from robopolicy.real.control.chunk_buffer import ChunkBuffer, Delays
from robopolicy.real.control.joints import ActionDecoder
from robopolicy.real.control.observation_history import ObservationHistory, Observe
from robopolicy.real.control.plan_requests import Journal, PlanRequests
from robopolicy.real.control.robots import Robot, State
from robopolicy.real.control.state_forecast import StateForecaster
from robopolicy.real.control.trajectory_spline import follow, steps_behind
from robopolicy.real.planning.planner import Runner
from robopolicy.real.safety import Decision, Mode, SafetyChain, SafetyError
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.decision import Measured
from robopolicy.real.teleoperation.teleoperator import CommandSource, Driver

# The reference waits for a command that trails it: CATCH_UP of the lag each tick, at most MAX_WAIT of a step in sum.
CATCH_UP, MAX_WAIT = 0.3, 0.2


class ControlLoop:
    """Drive one arm by one policy.

    Args:
        lead: control steps before a chunk runs out at which the next is requested; must cover the planner's latency.
        delays: measures that latency, for a planner that continues the actions ahead; None: it does not.
        clock: s, steady; called once a tick.
        shadow: compute everything and write nothing: the arm holds still.
        journal: records every control step and chunk.
        early: s before a control step at which the loop observes and requests a plan, so that a plan made in a thread
            is there when the step begins.
        history, age: see ObservationHistory. Plans count from when their pictures were taken, in whole control steps.
        grace: s by which a control step may wait for its plan, at most 0.4 control steps; the arm goes on, then holds.
        forecaster: shows the planner the state in which its plan begins, even where none comes; None: the measured one.
        operator: may take over. The policy goes on planning then, for the journal alone; its plans from before a
            hand-over are dropped.

    Raises:
        SafetyError: the robot's joints are not those of the limits.
    """

    def __init__(
        self, robot: Robot, chain: SafetyChain, decoder: ActionDecoder, runner: Runner, observe: Observe,
        buffer: ChunkBuffer, *, clock: Callable[[], float], history: int = 1, lead: int = 0, shadow: bool = False,
        early: float = 0.0, grace: float = 0.0, journal: Journal | None = None, operator: CommandSource | None = None,
        delays: Delays | None = None, age: float = 0.0, forecaster: StateForecaster | None = None,
    ) -> None:  # fmt: skip
        if tuple(robot.joints) != chain.profile.joints:
            raise SafetyError(f"robot: joints {list(robot.joints)}, the limits are of {list(chain.profile.joints)}")
        self.robot, self.chain, self.decoder = robot, chain, decoder
        self.write = (lambda *_: None) if shadow else robot.write  # in a dry run there is no way to the arm
        self.buffer, self.clock, self.shadow = buffer, clock, shadow
        self.early, self.asked, self.forecaster = early, False, forecaster
        self.observation_history = ObservationHistory(observe, history=history, age=age)
        self.grace = min(grace, 0.4 * buffer.spec.dt)  # half a control step later the action is refused
        self.counts, self.operator = Counter[str](), operator
        self.plans = PlanRequests(
            runner, buffer, lead=lead, delays=delays, counts=self.counts, journal=journal,
            picture_age=round(age / buffer.spec.dt) * buffer.spec.dt,
        )  # fmt: skip
        self.driver: Driver = "policy"
        self.halted = ""  # why the arm is to stop and stay, until the next start
        self.period = buffer.spec.dt
        self.goal: Array | None = None  # [n] rad, the joint target at the end of the control step; None: nothing to do
        self.points: Array = np.tile(chain.limiter.c[0, -1], (4, 1))  # [4 n] rad, of the reference's spline
        self.goal_from, self.grip = 0.0, 0.0  # s; m
        self.wanted: Array | None = None  # [Da] the action of this control step, as the policy wanted it
        self.proposed: Array | None = None  # [Da] what the policy would do while another drives
        self.limited = False  # it was slowed
        self.resting = True  # stands, and has had no target since

    def start(self, *, seed: int = 0) -> None:
        """Activate where the arm stands.

        Raises:
            SafetyError: there is no state, or the arm stands where it may not.
        """
        state, now = self.robot.read(), self.clock()
        if state is None:
            raise SafetyError("robot: no state has come; is the driver running?")
        self.chain.deactivate()
        self.chain.activate(Measured(state.q, qd=state.qd), now)
        self.plans.start(seed, now)
        self.driver, self.halted = "policy", ""
        self.observation_history.start()
        self.origin = self.begin = now  # s: ticks count from the one; the other moves on where a step is put off
        self.at = math.inf  # s: no tick yet
        self.step, self.asked, self.grip = 0, False, state.opening
        self._resync(state.q)
        if self.operator is not None:
            self.operator.start()

    def tick(self) -> Decision:
        """Decide on one command, and write it to the robot."""
        now, state = self.clock(), self.robot.read()
        dt = self.chain.limiter.dt
        at = self.origin + round((now - self.origin) / dt) * dt  # s, of this tick, however late it runs
        if (missed := at - self.at - dt) > 0.5 * dt:  # ticks passed without us: all plans wait for so long
            self._postpone(missed)
            if missed > self.buffer.max_delay:  # the plan is too old
                self.buffer.clear()
            self.counts["missed"] += round(missed / dt)
        self.at = at
        reason = ""
        played = None if state is None or self.shadow else state.played
        if played is not None and not self.chain.heard(played):
            self.counts["lost"] += 1
        due = self.begin + self.step * self.period
        basis = readable = state if state is not None and np.isfinite(state.q).all() else None
        if readable is not None:
            self.observation_history.note(at, readable)
        if self.early and not self.asked and at >= due - self.early - 1e-6 and state is not None:
            reason = self.plans.collect(now)  # the next request must not wait for another control step
            if not self.plans.waiting and readable is not None:
                reason = self._ask(now, due, due - self.early) or reason
        if state is None and (self.forecaster is not None or len(self.buffer) > self.plans.lead):  # else it waits
            basis = self.observation_history.older(at, due, self.period)
        if at >= due - 1e-6 and basis is not None:
            step, before = self.step, self.decoder.commanded
            self.wanted, self.proposed, self.limited = None, None, False
            reason = self._control_step(basis, now, due) or reason
            executed = self.step > step  # it was not put off
            self.counts[self.driver] += executed
            self.counts["bridged"] += executed and basis is not readable
            if (journal := self.plans.journal) is not None and executed:
                journal.step(now, step, self.observation_history.newest, before, self.wanted, self.limited, self.driver,
                             self.proposed)  # fmt: skip
        target: Array | None = None
        if self.halted:
            reason = self.halted
        elif self.goal is not None:
            target = follow(self.points, (at - self.goal_from) / self.period)
        elif self.resting and not reason:
            target = self.chain.limiter.c[0, -1]  # no action has come yet: stand
        torque = state.torque if state is not None and self.chain.tank is not None else None
        measured = None if state is None else Measured(state.q, torque, state.qd)
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
        """Let decoder and interpolation start from `q` [n], without the plans of the motion before."""
        self.buffer.clear()
        if self.plans.waiting:
            self.plans.drop()
        self.decoder.start(q, self.grip)
        self.goal, self.resting = None, True
        self.waited = 0.0  # s, of this control step, that the reference waited for the command
        self.points, self.goal_from = np.tile(q, (4, 1)), self.clock()

    def _synchronise(self, command: Array, target: Array, at: float, dt: float) -> None:
        """Delay the reference where `command` [n] trails `target` [n] rad; hurry it where the command is ahead.

        Lost commands and limits make commands trail. A policy that uses all the permitted speed leaves none to catch
        up with.
        """
        lag = steps_behind(command, target, target - follow(self.points, (at - dt - self.goal_from) / self.period))
        self.counts["trailed"] += abs(lag) > 0.5
        most = MAX_WAIT * self.period
        wait = min(max(dt * min(max(CATCH_UP * lag, -0.5), 0.5), -most - self.waited), most - self.waited)
        if wait:
            self._postpone(wait)
            self.waited += wait

    def _postpone(self, seconds: float) -> None:
        """Delay the plans and the reference by `seconds`."""
        self.begin, self.goal_from = self.begin + seconds, self.goal_from + seconds
        self.plans.first += seconds
        self.buffer.postpone(seconds)

    def _control_step(self, state: State, now: float, due: float) -> str:
        """Set the next target, at the policy's rate; returns a reason where there is no target."""
        teleop = None if self.operator is None else self.operator.command(now, self.decoder.commanded)
        reason = self._hand_over("policy" if teleop is None else teleop.driver, now, due)
        reason = reason if self.asked else self._ask(now, due, due)
        if teleop is not None and teleop.halt:
            self.halted = teleop.halt
        if self.chain.mode >= Mode.HOLD:  # start again once the arm may move
            self._count_step(now)
            return ""
        reason = self.plans.collect(now) or reason
        if teleop is None and self.plans.waiting and not len(self.buffer) and now < due + self.grace:
            self.counts["put_off"] += 1
            return reason
        if self.resting and self.grace and now > due + self.chain.limiter.dt:  # nothing moves yet: put all off
            self._postpone(now - due)
            due = now
        self._count_step(now)
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

    def _count_step(self, now: float) -> None:
        """Go on to the control step of now; those that were slept through are left out."""
        self.asked = False
        self.step = max(self.step + 1, int((now - self.begin) / self.period + 1e-6))

    def _ask(self, now: float, due: float, seen: float) -> str:
        """Observe, and request a plan for the control step at `due` s; its observation was due at `seen` s."""
        self.asked = True
        reason = "" if self.chain.mode >= Mode.HOLD else self.plans.collect(now)  # the forecast needs what is under way
        self.observation_history.capture(None if self.forecaster is None else self.forecaster.to_plan(self, due))
        return self._request(now, due, seen) or reason

    def _hand_over(self, driver: Driver, now: float, due: float) -> str:
        """Let `driver` drive from here on, and drop the plans of the motion before."""
        before, self.driver = self.driver, driver
        if (before == "policy") == (driver == "policy"):
            return ""
        self.counts["handed_over"] += 1
        self.plans.drop()
        return self._request(now, due, now) if self.asked else ""

    def _request(self, now: float, due: float, seen: float) -> str:
        """Request a plan unless the arm holds; see PlanRequests.request."""
        if self.chain.mode >= Mode.HOLD:
            return ""
        return self.plans.request(
            now, due, seen, self.observation_history, self.step, continues=self.driver == "policy"
        )

"""One activation of an arm at a distance: states in, trajectories out, by the arm's own ticks. Knows nothing of ROS.

The command that is decided on when the arm plays tick i is for tick i + lead, and its trajectory repeats what was sent
for the ticks before, so that one lost or late on its way is made good by the next. What was not made good in time the
arm says by what it plays; commanding then goes on from the stop that it fell back to.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from robopolicy.real.control.robots import Robot, State
from robopolicy.real.ros2.ages import Ages
from robopolicy.real.ros2.clock import ArmClock, StampError, shortest, stamps_of
from robopolicy.real.ros2.command_history import KEPT, CommandHistory
from robopolicy.real.ros2.continuity import Continuity, JumpError
from robopolicy.real.ros2.timeline import MATCH
from robopolicy.real.ros2.wiring import Wiring
from robopolicy.real.safety import Decision, Mode, SafetyChain, SafetyError

Array = NDArray[np.float64]

FRESH = 0.5  # s: an older state is none to start from
STALE = 50  # ticks: what the driver said it plays is too old to start from
PLAYED = "joint_commands"  # the watchdog of what the driver says it plays: without it nobody knows what was lost
SETTLE = 0.25  # s that a controller which plays splines has to go from where it holds the arm to where we begin
GREETINGS = 5  # ticks in which it is told so
STILL = 0.05  # rad/s: a joint that is faster is not at rest


class Loop(Protocol):
    """What decides on commands: `robopolicy.real.control.control_loop.ControlLoop`, or a motion for tests."""

    begin: float
    step: int
    counts: Counter[str]
    halted: str  # why the arm is to stop and stay

    @property
    def driver(self) -> str:
        """Who drives, see robopolicy.real.teleoperation.teleoperator.Driver."""
        ...

    def start(self, *, seed: int = 0) -> None: ...
    def tick(self) -> Decision: ...


MakeLoop = Callable[[Robot, SafetyChain, Callable[[], float]], Loop]


class TrajectoryStream:
    """The limits and the loop of one arm whose driver plays trajectories by time. A `Robot` (real/control/robots.py).

    Args:
        chain: limits. Its watchdogs are told how old each input is by this machine's steady clock, whatever the stamps
            say; in simulated time, by the arm's.
        make_loop: from this robot, the chain and a clock [s].
        wiring: ticks, lead and patience.
        send: of a robopolicy.real.ros2.outputs.Output.
        grip: called with the opening [m] that is wanted, once a tick.
        follow: the arm waits for every command (simulated time).
    """

    def __init__(
        self, chain: SafetyChain, make_loop: MakeLoop, wiring: Wiring, *, send: Callable[[int, Array, int], None],
        grip: Callable[[float], None], follow: bool = False,
    ) -> None:  # fmt: skip
        self.joints, self.chain, self.wiring = chain.profile.joints, chain, wiring
        self.send, self.grip = send, grip
        window = round(wiring.topic("joint_states").rate_hz)  # a second
        self.clock = ArmClock(wiring.tick_s, follow=follow, window=min(max(window, 32), 1024))
        self.stamps = stamps_of(wiring, self.clock)
        self.newest: State | None = None
        self.continuity = Continuity(wiring.joints, chain.profile.maker["velocity"])
        self.ages = Ages(chain, simulated=follow)
        self.commanded: Array | None = None  # [n] rad that the driver plays, where it says so
        self.commanded_at = 0  # tick
        self.fresh = self.unreadable = False
        self.opening = math.nan
        self.zero, self.time, self.active, self.greeted = 0, 0.0, False, False
        self.settled = 0  # tick from which on commands may follow the first, standing trajectory; 0: at once
        self.muted = False  # the driver has given up, and must not be told to go on
        self.counts, self.reasons, self.ticks, self.changed = Counter[str](), Counter[str](), 0, 0
        self.decision: Decision | None = None
        self.now = -math.inf  # s of our steady clock, of the tick under way
        self.loop = make_loop(self, chain, lambda: self.time)
        self.history = CommandHistory(chain, 0)

    # -- real/control/robots.py: Robot ---------------------------------------------------------------------------------
    def read(self) -> State | None:
        fresh = self.fresh and self.ages.of("state", self.now) <= shortest(self.wiring.watchdogs["state"])
        state, self.fresh = (self.newest if fresh else None), False
        if self.unreadable and self.newest is not None:  # the limits hold the arm, and say why
            self.unreadable = False
            return replace(self.newest, q=np.full_like(self.newest.q, np.nan))
        return state

    def write(self, command: Array, opening: float, stop: Array) -> None:
        del command  # the ledger has it from the limiter
        self.history.note()
        first = self.history.last - self.wiring.lead_ticks - MATCH - 1
        before = [self.history.command(t) for t in range(first, self.history.last + 1)]
        if not self.muted:
            self.send(first, np.concatenate([np.array(before), stop]), len(before) - 1)
        self.opening = opening
        self.grip(opening)

    # -- what comes in ----------------------------------------------------------------------------------------------
    def on_state(self, state: State, stamp: float, at: float) -> None:
        """A state stamped `stamp` s by the arm, received at `at` s of our steady clock.

        Raises:
            StampError: its stamp is not of this moment. JumpError: no motion leads to it from the one before,
                and the arm runs; else it may have been placed elsewhere.
        """
        running = self.running
        if not running:  # nothing depends on the arm's clock now: it may have been set
            self.clock.restart(stamp, at)
        try:
            self.stamps["joint_states"].take(stamp, at)
        except StampError as error:
            if running and self.clock.follow and error.reason in ("late", "ahead"):
                self.chain.fault("clock")  # simulated time cannot leap
            raise
        if running:
            self.clock.learn(stamp, at)
        self.clock.newest = stamp
        try:
            self.continuity.take(state.q, stamp, at)
        except JumpError as error:
            if running:
                self.chain.fault(str(error))
                raise
        self.newest, self.fresh = state, True
        self._hear("state", at)

    def on_unreadable(self) -> None:
        """A state has come that holds numbers that are none."""
        self.unreadable = True

    def on_commanded(self, q: Array, stamp: float, at: float) -> None:
        """The driver plays `q` [n] rad in the tick at `stamp` s of its clock; received at `at` s of ours.

        Raises:
            StampError: its stamp is not of this moment, or it repeats itself: one that hangs may well.
        """
        self.stamps[PLAYED].take(stamp, at)
        tick = round(stamp / self.wiring.tick_s)
        self.commanded, self.commanded_at = q, tick
        self._hear(PLAYED, at)
        if not self.active:
            return
        found = self.history.heard(tick, q)
        if found:
            self.counts[found] += 1
        if found == "foreign":
            self.chain.fault("foreign_command")

    def on_input(self, name: str, at: float) -> None:
        """What the policy needs beside the arm's state has come, at `at` s of our steady clock."""
        self._hear(name, at)

    def on_enable(self, enabled: bool, at: float) -> None:
        """The operator's sign of life, received at `at` s of our steady clock; False is an emergency stop at once."""
        if enabled:
            self._hear("enable", at)
        else:
            self.ages.silence("enable")
            if self.chain.active:
                self.chain.fault("emergency_stop")

    def _hear(self, name: str, at: float) -> None:
        self.ages.hear(name, at, self.time, running=self.running)

    def on_stranger(self, why: str) -> None:
        """A second publisher has spoken on an input."""
        if self.running:
            self.chain.fault(why)

    def on_driver(self, why: str) -> None:
        """The driver has given up, and stops the arm by itself."""
        if self.active and not self.muted:
            self.muted = True
            self.chain.fault(why)

    # -- life -------------------------------------------------------------------------------------------------------
    @property
    def running(self) -> bool:
        """Whether the arm may be moving: what is believed of clocks and publishers stays as it is until it stands."""
        if self.active and self.chain.faulted:
            return not self.clock.follow and not bool(self.chain.limiter.at_rest[0])
        return self.active

    def refusals(self, now: float) -> list[str]:
        """Why the arm may not be started now, one sentence each."""
        found, state, age = [], self.newest, self.ages.of("state", now)
        if state is None:
            found.append(
                f"state: nothing has come on {self.wiring.topic('joint_states').name!r}; is the driver running?"
            )
        elif not age <= min(FRESH, self.wiring.watchdogs["state"].fault):
            found.append(f"state: the newest is {age:.2f} s old; is the driver still running?")
        found += self.continuity.problems(now)
        if state is not None and not np.abs(state.qd).max() <= STILL:
            found.append(f"state: the arm moves at {np.abs(state.qd).max():.2f} rad/s; wait until it stands")
        if self.wiring.topics["joint_commands"] is not None and self.commanded is None:
            name = self.wiring.topic("joint_commands").name
            found.append(f"joint_commands: nothing has come on {name!r}, which says what the driver plays")
        elif self.commanded is not None and not abs(behind := self.clock.tick(now) - self.commanded_at) <= STALE:
            found.append(f"joint_commands: the newest is {behind * self.wiring.tick_s:.2f} s old")
        elif self.commanded is not None and state is not None:
            away = float(np.abs(self.commanded - state.q).max())
            if not away <= self.chain.profile.astray:
                found.append(f"state: the arm is {away:.3f} rad from where its driver holds it")
        patience = shortest(self.wiring.watchdogs["enable"])
        if any(d.name == "enable" for d in self.chain.watchdogs) and not self.ages.silent("enable", now) <= patience:
            found.append(
                f"enable: nothing has come on {self.wiring.topic('enable').name!r} for {patience} s; the operator must "
                "enable"
            )
        if self.chain.active and not bool(self.chain.limiter.at_rest[0]):
            found.append("the arm is still braking; wait until it stands")
        return found

    def start(self, *, seed: int, now: float) -> None:
        """Activate at rest where the arm's driver holds it, and begin an episode.

        Raises:
            SafetyError: it may not be started; says why.
        """
        if problems := self.refusals(now):
            raise SafetyError("; ".join(problems))
        assert self.newest is not None
        measured = self.newest
        self.newest = measured if self.commanded is None else replace(measured, q=self.commanded)
        self.fresh, self.unreadable, self.opening = True, False, math.nan
        for counts in (self.counts, self.reasons, self.loop.counts):
            counts.clear()
        self.ticks = self.changed = 0
        self.decision, self.greeted, self.settled = None, False, 0
        tick = self.clock.tick(now) + self.wiring.lead_ticks
        self.zero, self.time, self.now = tick, 0.0, self.ages.heard["state"]  # nothing of an episode before counts
        self.ages.begin(now, self.time)
        try:
            self.loop.start(seed=seed)
        finally:
            self.newest = measured
        self.muted = False  # not before: nothing of an episode that a fault has ended may follow it
        self.history = CommandHistory(self.chain, tick)
        self.active = True

    def stop(self) -> None:
        """No more commands: the arm plays the rest of the last trajectory, which ends at rest."""
        if self.active:
            self.active = False
            self.chain.deactivate()
            if not self.muted:
                self.send(self.history.last, np.zeros((0, len(self.joints))), 0)

    def pump(self, now: float) -> int:
        """Decide on every command that is due at `now`; how many."""
        if not self.active:
            return 0
        self.now = now
        if not self.greeted:  # stand: so that an arm that waits for us does so from before the first plan on
            self.greeted = True
            if self.wiring.output.type != "positions":  # no such driver waits
                if self.wiring.output.points == "spline":
                    self.settled = self.history.last + round(SETTLE / self.wiring.tick_s)
                self._stand()
                return 0
        arm, done = self.clock.tick(now), 0
        goal = arm + self.wiring.lead_ticks
        if self.settled:
            self.time = max(self.time, (goal - 1 - self.zero) * self.wiring.tick_s)  # signs of life are not old then
            if arm < self.settled + MATCH:
                if arm - self.history.last <= GREETINGS and not (self.muted or self.chain.faulted):
                    self._stand()  # the way there is the same again: a lost message is made good
                return 0
            self.loop.begin += (goal - 1 - self.history.last) * self.wiring.tick_s
            self.history, self.settled = CommandHistory(self.chain, goal), 0
        if self.wiring.output.type == "positions" and goal - 1 > self.history.last and self.ticks:
            self._fell_behind(goal)
        if goal - self.history.last > 2 * self.wiring.lead_ticks and bool(self.chain.limiter.at_rest[0]):
            self._rested(goal)
        while self.history.last < goal:
            if goal - self.history.last > KEPT and bool(self.chain.limiter.at_rest[0]):
                self._rested(goal)
            tick = self.history.last + 1
            self.time = max(self.time, (tick - self.zero) * self.wiring.tick_s)
            if tick <= arm:
                self.history.miss()
                self.counts["missed"] += 1
                continue
            self._decide()
            if self.history.last < tick:  # a dry run writes nothing
                self.history.note()
            done += 1
        return done

    @property
    def mode(self) -> Mode:
        return Mode.FAULT if self.active and self.chain.faulted else self.chain.mode

    def _rested(self, goal: int) -> None:
        """Go on at tick `goal`: the arm has stood all the while."""
        gone = goal - 1 - self.history.last
        self.history = CommandHistory(self.chain, goal)
        self.counts["missed"] += gone
        if not self.ticks:  # nothing has begun yet
            self.loop.begin += gone * self.wiring.tick_s

    def _stand(self) -> None:
        """Tell the driver to be where we begin, at once or by the time when it must have settled there."""
        rest = self.history.command(self.history.last)
        self.send(self.settled or self.history.last, np.tile(rest, (MATCH, 1)), 0)

    def _fell_behind(self, goal: int) -> None:
        """Go on at tick `goal` from the last position that was sent, where the driver has stayed: it plays no stop of
        ours meanwhile, as it knows of none."""
        gone = goal - 1 - self.history.last
        self.counts["missed"] += gone
        self.history = CommandHistory(self.chain, goal)
        if (silence := (gone + 2) * self.wiring.tick_s) > self.wiring.output.timeout_s:
            self.on_driver(f"stream_timeout: nothing was sent for {silence:.3f} s, so the driver stopped by itself")
        elif gone > 1 and not bool(self.chain.limiter.at_rest[0]):
            self.on_driver(f"stream_gap: {gone} positions in a row were missed in motion; the driver stood meanwhile, "
                           "and to go on at speed would be a jump")  # fmt: skip

    def _decide(self) -> None:
        if not self.clock.follow:
            self.ages.tell(self.now, self.time)
        try:
            decision = self.loop.tick()
        except Exception as problem:  # whatever it is, the arm brakes and stays
            self.chain.fault(f"{type(problem).__name__}: {problem}")
            decision = self.chain.filter(None, None, self.time, reason="error")
            self.write(decision.command, self.opening, decision.stop)
        self.decision = decision
        self.ticks, self.changed = self.ticks + 1, self.changed + decision.changed
        self.reasons.update(decision.reasons)

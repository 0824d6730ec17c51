"""One activation of an arm at a distance: the control loop runs by the arm's own ticks. Independent of ROS.

The command that is decided on when the arm plays tick i is for tick i + lead. Its trajectory repeats the commands of
the ticks before: a trajectory that was lost or late is made good by the next one. The arm echoes the trajectory that
it plays. Where commands came too late, it played the certified stop; commanding then continues from there.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Protocol

import numpy as np

from robopolicy.real.ros2.command_history import KEPT, CommandHistory
from robopolicy.real.ros2.remote_arm import PLAYED, RemoteArm
from robopolicy.real.ros2.timeline import MATCH
from robopolicy.real.safety import Decision, SafetyError

SETTLE = 0.25  # s that a controller which plays splines has to go from where it holds the arm to where we begin
GREETINGS = 5  # ticks in which that trajectory is repeated


class Loop(Protocol):
    """Decide on commands: `robopolicy.real.control.control_loop.ControlLoop`, or a motion for tests."""

    step: int
    counts: Counter[str]
    halted: str  # why the arm is to stop and stay

    @property
    def driver(self) -> str:
        """Who drives, see robopolicy.real.teleoperation.teleoperator.Driver."""
        ...

    def start(self, *, seed: int = 0) -> None: ...
    def tick(self) -> Decision: ...
    def delay_begin(self, seconds: float) -> None:
        """Let the first control step begin so much later."""
        ...


class TrajectoryStream:
    """Run a control loop by the ticks of a remote arm.

    Args:
        arm: the robot of the loop.
        loop: commands `arm`, on the clock `arm.time`.
    """

    def __init__(self, arm: RemoteArm, loop: Loop) -> None:
        self.arm, self.loop, self.chain, self.wiring = arm, loop, arm.chain, arm.wiring
        self.zero = self.greeted = 0  # greeted: tick at which the arm was last sent where it stands
        self.settled = 0  # tick from which on commands may follow the first, standing trajectory; 0: at once
        self.early = False  # simulated time has not begun, as the arm does not wait for us yet
        self.reasons, self.ticks, self.changed = Counter[str](), 0, 0
        self.decision: Decision | None = None

    def start(self, *, seed: int, now: float) -> None:
        """Activate at rest where the arm's driver holds it, and begin an episode.

        Raises:
            SafetyError: it may not be started; says why.
        """
        arm = self.arm
        if problems := arm.refusals(now):
            raise SafetyError("; ".join(problems))
        assert arm.newest is not None
        measured = arm.newest
        arm.newest = measured if arm.commanded is None else replace(measured, q=arm.commanded)
        arm.fresh, arm.unreadable, arm.opening = True, False, math.nan
        for counts in (arm.counts, self.reasons, self.loop.counts):
            counts.clear()
        self.ticks = self.changed = 0
        self.decision, self.greeted, self.settled = None, 0, 0
        arm.begun = False
        arm.waiting = not arm.clock.follow or self.wiring.topics[PLAYED] is None
        self.early = not arm.waiting
        tick = arm.clock.tick(now) + self.wiring.lead_ticks
        self.zero, arm.time, arm.now = tick, 0.0, arm.ages.heard["state"]  # inputs of an episode before do not count
        arm.ages.begin(now, arm.time)
        try:
            self.loop.start(seed=seed)
        finally:
            arm.newest = measured
        arm.muted = False  # not earlier: no command of a faulted episode may follow it
        arm.history = CommandHistory(self.chain, tick)
        arm.active = True

    def stop(self) -> None:
        """Send no more commands: the arm plays the rest of the last trajectory, which ends at rest."""
        arm = self.arm
        if arm.active:
            arm.active = False
            self.chain.deactivate()
            if not arm.muted:
                arm.send(arm.history.last, np.zeros((0, len(arm.joints))), 0)

    def pump(self, now: float) -> int:
        """Decide on every command that is due at `now` s of our steady clock; how many."""
        arm = self.arm
        if not arm.active:
            return 0
        arm.now = now
        tick = arm.clock.tick(now)
        goal = tick + self.wiring.lead_ticks
        if not self._begun(tick, goal) or arm.awaits_enable(now):
            return 0
        if self.wiring.output.type == "positions" and goal - 1 > arm.history.last and self.ticks:
            self._fell_behind(goal)
        if goal - arm.history.last > 2 * self.wiring.lead_ticks and bool(self.chain.limiter.at_rest[0]):
            self._rested(goal)
        return self._catch_up(tick, goal)

    def _begun(self, arm_tick: int, goal: int) -> bool:
        """Whether commands may be sent: an arm first gets a standing trajectory, and may need time to settle."""
        arm = self.arm
        if not self.greeted:  # stand: so that an arm that waits for us does so from before the first plan on
            self.greeted = arm_tick
            if self.wiring.output.type != "positions":  # no such driver waits
                if self.wiring.output.points == "spline":
                    self.settled = arm.history.last + round(SETTLE / self.wiring.tick_s)
                self._stand()
                return False
        if not arm.waiting:  # a first plan may take long, and simulated time must not go on meanwhile
            if arm_tick > self.greeted:
                self.greeted = arm_tick
                self._stand()
            return False
        if self.early:  # time begins now, however long the arm went on by its own clock: nothing heard so far is old
            self.zero, arm.history, self.early = goal, CommandHistory(self.chain, goal), False
        if self.settled:
            arm.time = max(arm.time, (goal - 1 - self.zero) * self.wiring.tick_s)  # signs of life are not old then
        if self.settled:
            if arm_tick < self.settled + MATCH:
                if arm_tick - arm.history.last <= GREETINGS and not (arm.muted or self.chain.faulted):
                    self._stand()  # the way there is the same again: a lost message is made good
                return False
            self.loop.delay_begin((goal - 1 - arm.history.last) * self.wiring.tick_s)
            arm.history, self.settled = CommandHistory(self.chain, goal), 0
        return True

    def _catch_up(self, arm_tick: int, goal: int) -> int:
        """Decide on the commands of all ticks up to `goal`; those that the arm has passed were missed."""
        arm, done = self.arm, 0
        while arm.history.last < goal:
            if goal - arm.history.last > KEPT and bool(self.chain.limiter.at_rest[0]):
                self._rested(goal)
            tick = arm.history.last + 1
            arm.time = max(arm.time, (tick - self.zero) * self.wiring.tick_s)
            if tick <= arm_tick:
                arm.history.miss()
                arm.counts["missed"] += 1
                continue
            self._decide()
            if arm.history.last < tick:  # a dry run does not write
                arm.history.note()
            done += 1
        return done

    def _rested(self, goal: int) -> None:
        """Go on at tick `goal`: the arm has stood all the while."""
        gone = self._skip_to(goal)
        if not self.ticks:  # no motion has begun yet
            self.loop.delay_begin(gone * self.wiring.tick_s)

    def _skip_to(self, goal: int) -> int:
        """Let the history begin at tick `goal`; returns the number of ticks without a command."""
        gone = goal - 1 - self.arm.history.last
        self.arm.history = CommandHistory(self.chain, goal)
        self.arm.counts["missed"] += gone
        return gone

    def _stand(self) -> None:
        """Send the driver where we begin, at once or by the time when it must have settled there."""
        arm = self.arm
        rest = arm.history.command(arm.history.last)
        arm.send(self.settled or arm.history.last, np.tile(rest, (MATCH, 1)), 0)

    def _fell_behind(self, goal: int) -> None:
        """Go on at tick `goal` from the last position that was sent, where the driver has stayed: it knows of no stop
        that it could play meanwhile."""
        arm, gone = self.arm, self._skip_to(goal)
        if (silence := (gone + 2) * self.wiring.tick_s) > self.wiring.output.timeout_s:
            arm.on_driver_failure(
                f"stream_timeout: nothing was sent for {silence:.3f} s, so the driver stopped by itself"
            )
        elif gone > 1 and not bool(self.chain.limiter.at_rest[0]):
            arm.on_driver_failure(
                f"stream_gap: {gone} positions in a row were missed in motion; the driver stood meanwhile, "
                "and to go on at speed would be a jump"
            )

    def _decide(self) -> None:
        """Let the loop decide on one command; where it raises, the arm brakes and stays."""
        arm = self.arm
        if not arm.clock.follow:
            arm.ages.tell(arm.now, arm.time)
        try:
            decision = self.loop.tick()
        except Exception as problem:
            self.chain.fault(f"{type(problem).__name__}: {problem}")
            decision = self.chain.filter(None, None, arm.time, reason="error")
            arm.write(decision.command, arm.opening, decision.stop)
        self.decision = decision
        self.ticks, self.changed = self.ticks + 1, self.changed + decision.changed
        self.reasons.update(decision.reasons)

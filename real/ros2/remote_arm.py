"""The arm at a distance: its states and signs of life come in, and trajectories go out. Independent of ROS."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from robopolicy.real.control.depth_cameras import JointLog
from robopolicy.real.control.robots import State
from robopolicy.real.ros2.ages import Ages
from robopolicy.real.ros2.clock import ArmClock, StampError, oldest_picture, shortest, stamps_of
from robopolicy.real.ros2.command_history import CommandHistory
from robopolicy.real.ros2.continuity import Continuity, JumpError
from robopolicy.real.ros2.timeline import MATCH
from robopolicy.real.ros2.wiring import Wiring
from robopolicy.real.safety import Mode, SafetyChain
from robopolicy.real.safety.array_ops import Array

FRESH = 0.5  # s: no arm starts from an older state
STALE = 50  # ticks: no arm starts from an older echo of the driver
PLAYED = "joint_commands"  # watchdog of the driver's echo, which alone shows which commands were lost
OVERDUE = 0.4  # s of our clock for which simulated time waits for a sign of life
STILL = 0.05  # rad/s: a joint that is faster is not at rest

Send = Callable[[int, Array, int], None]
Grip = Callable[[float, float, Mode], None]


class RemoteArm:
    """Be the `Robot` (real/control/robots.py) of a control loop for an arm whose driver plays trajectories by time.

    Args:
        chain: limits. Its watchdogs learn the age of each input by this machine's steady clock, whatever the stamps
            say; in simulated time, by the arm's.
        wiring: ticks, lead and patience.
        send: of a robopolicy.real.ros2.outputs.Output.
        grip: called once a tick with the wanted and the measured opening [m], and the mode.
        follow: the arm waits for every command (simulated time).
        dry_run: nothing is sent, so the driver plays what others command, or stands.

    Attributes:
        time: s since the start of the episode, of the tick under way; set by the trajectory stream.
        now: s of our steady clock, of the tick under way; set by the trajectory stream.
        muted: the driver has given up, and must not get more commands.
    """

    def __init__(
        self, chain: SafetyChain, wiring: Wiring, *, send: Send, grip: Grip, follow: bool = False, dry_run: bool = False
    ) -> None:  # fmt: skip
        self.joints, self.chain, self.wiring, self.dry_run = chain.profile.joints, chain, wiring, dry_run
        self.send, self.grip = send, grip
        window = round(wiring.topic("joint_states").rate_hz)  # a second
        self.clock = ArmClock(wiring.tick_s, follow=follow, window=min(max(window, 32), 1024))
        self.stamps = stamps_of(wiring, self.clock)
        self.newest: State | None = None
        self.log = JointLog(1.0 + oldest_picture(wiring))
        self.continuity = Continuity(wiring.joints, chain.profile.maker["velocity"])
        self.ages = Ages(chain, simulated=follow)
        self.commanded: Array | None = None  # [n] rad that the driver plays, where it says so
        self.commanded_at = 0  # tick
        self.begun = False  # a command was written since the start
        self.waiting = True  # the arm waits for the answer to every state, or never does
        self.fresh = self.unreadable = False
        self.opening = math.nan
        self.time, self.now, self.active, self.muted = 0.0, -math.inf, False, False
        self.counts = Counter[str]()
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
        del command  # the history has it from the limiter
        self.begun = True
        self.history.note()
        first = self.history.last - self.wiring.lead_ticks - MATCH - 1
        before = [self.history.command(t) for t in range(first, self.history.last + 1)]
        if not self.muted:
            self.send(first, np.concatenate([np.array(before), stop]), len(before) - 1)
        self.opening = opening
        self.grip(opening, math.nan if self.newest is None else self.newest.opening, self.mode)

    # -- inputs -----------------------------------------------------------------------------------------------------
    def on_state(self, state: State, stamp: float, at: float) -> None:
        """Take a state stamped `stamp` s by the arm, received at `at` s of our steady clock.

        Raises:
            StampError: its stamp is not of this moment.
            JumpError: no motion leads to it from the state before, and the arm runs. An arm that does not run may have
                been moved by hand.
        """
        running = self.running
        if not (running and (self.begun or not self.clock.follow)):  # the arm stands: its clock may have been set
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
        self.newest, self.fresh = replace(state, stamp=stamp), True
        self.log.take(stamp, state.q)
        self.hear("state", at)

    def on_unreadable(self) -> None:
        """Hold the arm in the next tick: a state with NaN or infinite values has come."""
        self.unreadable = True

    def on_commanded(self, q: Array, stamp: float, at: float, *, alone: bool = False) -> None:
        """Take the driver's echo: it plays `q` [n] rad at `stamp` s of its clock, received at `at` s of ours.

        `alone`: a simulated arm has not heard a trajectory yet, so it plays by its own clock.

        Raises:
            StampError: its stamp is not of this moment, or repeats the one before, as a driver that hangs does.
        """
        self.stamps[PLAYED].take(stamp, at)
        tick = round(stamp / self.wiring.tick_s)
        self.commanded, self.commanded_at = q, tick
        self.hear(PLAYED, at)
        if not self.active:
            return
        self.waiting |= not alone
        found = "" if self.dry_run else self.history.heard(tick, q)
        if found:
            self.counts[found] += 1
        if found == "foreign":
            self.chain.fault("foreign_command")

    def on_enable(self, enabled: bool, at: float) -> None:
        """Take the operator's sign of life, received at `at` s of our steady clock; False stops the arm at once."""
        if enabled:
            self.hear("enable", at)
        else:
            self.ages.silence("enable")
            if self.chain.active:
                self.chain.fault("emergency_stop")

    def awaits_enable(self, now: float) -> bool:
        """Whether simulated time stands still at `now` s of our clock for the operator's next sign of life.

        On a busy machine it may be on its way. After OVERDUE, time goes on, and its watchdog faults.
        """
        if not self.clock.follow or self.chain.faulted or self.ages.silent("enable", now) > OVERDUE:
            return False
        due = self.time + 2 * self.wiring.tick_s
        return any(dog.name == "enable" and dog.level(due) >= Mode.HOLD for dog in self.chain.watchdogs)

    def on_second_publisher(self, why: str) -> None:
        """Fault where a second publisher speaks on an input while the arm runs."""
        if self.running:
            self.chain.fault(why)

    def on_driver_failure(self, why: str) -> None:
        """Fault, and send no more commands: the driver has given up, and stops the arm by itself."""
        if self.active and not self.muted:
            self.muted = True
            self.counts["driver_failed"] += 1
            self.chain.fault(why)

    def on_gripper_failure(self, why: str) -> None:
        """Fault: the gripper has given up. The arm's driver has not, and gets the certified stop."""
        if self.active:
            self.counts["gripper_failed"] += 1
            self.chain.fault(why)

    def hear(self, name: str, at: float) -> None:
        """Note that an input of a watchdog came at `at` s of our steady clock."""
        self.ages.hear(name, at, self.time, running=self.running)

    # -- state ------------------------------------------------------------------------------------------------------
    @property
    def running(self) -> bool:
        """Whether the arm may be moving. Until it stands, its clock and its publishers may not be replaced."""
        if self.active and self.chain.faulted:
            return not self.clock.follow and not bool(self.chain.limiter.at_rest[0])
        return self.active

    @property
    def mode(self) -> Mode:
        return Mode.FAULT if self.active and self.chain.faulted else self.chain.mode

    def refusals(self, now: float) -> list[str]:
        """List why the arm may not be started at `now` s of our steady clock, one sentence each."""
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
            if not away <= self.chain.profile.max_tracking_error:
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

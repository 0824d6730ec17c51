"""An arm behind LeRobot's `Robot` class, as the control loop knows arms.

Two threads share it. The control loop decides on a command every tick. Another thread exchanges with the bus, whose
calls may block: it reads the arm, and sends the goal that is due then. Where the loop is late, that is the certified
stop. Where the bus is late, no state comes, and the watchdogs hold the arm, then fault.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from robopolicy.real.control.depth_cameras import JointLog
from robopolicy.real.control.robots import State
from robopolicy.real.lerobot.units import MotorUnits
from robopolicy.real.safety import Profile
from robopolicy.real.safety.array_ops import Array

WINDOW = 0.04  # s over which velocities are measured: LeRobot reads positions alone, in steps of 1.5 mrad
LATE = 0.1  # s: a state whose reading took longer is as good as none
HURRY = 2.0  # exchanges of motion that a goal may go on at once, after the bus was late
SAME = 1e-6  # of LeRobot's units, by which the action that was sent may differ from the one that was asked for


class BusRobot(Protocol):
    """The part of LeRobot's `Robot` that is used while the arm moves."""

    def get_observation(self) -> dict[str, Any]: ...
    def send_action(self, action: dict[str, Any]) -> dict[str, Any]: ...


class LeRobotArm:
    """Be the `Robot` (real/control/robots.py) of a control loop, for an arm of LeRobot.

    Args:
        robot: LeRobot's, connected.
        units: of its motors.
        profile: limits in force.
        dt: s between ticks of the loop, and between exchanges.
        clock: s, steady.
        pictures: takes an observation's values by name, after each reading; for cameras.
        log: remembers each reading, by the clock.

    Attributes:
        counts: `reads`, `reads_failed`, `reads_late`, `pictures_failed`, `writes_failed`, `caught_up` (a goal was put
            off, as the bus had been late), `stop_played` (the loop was late), `driver_changed` (LeRobot sent another
            action).
        error: text of the newest failure.
        sent: [n] rad, the newest goal that was sent, before it the first one; None: none yet.
        sent_action: the same as LeRobot's action, with the gripper; empty: none yet.
    """

    def __init__(
        self, robot: BusRobot, units: MotorUnits, profile: Profile, *, dt: float, clock: Callable[[], float],
        pictures: Callable[[dict[str, Any]], None] | None = None, log: JointLog | None = None,
    ) -> None:  # fmt: skip
        self.robot, self.units, self.profile, self.joints = robot, units, profile, profile.joints
        self.dt, self.clock, self.pictures, self.log = dt, clock, pictures, log
        self.counts, self.error = Counter[str](), ""
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Drop the newest state and command: an episode begins."""
        with self._lock:
            self._since = self.clock()
            self._state: State | None = None
            self._command: tuple[Array, float, float] | None = None  # [1+S n] rad, m, s
            self._past: deque[tuple[float, Array]] = deque(maxlen=16)
            self.sent: Array | None = None
            self.sent_action: dict[str, float] = {}
            self._sent_at = self._since

    @property
    def fresh(self) -> bool:
        """Whether a state has come that was not read yet."""
        return self._state is not None

    @property
    def stops_in(self) -> float:
        """Seconds until the stop of the newest command has been sent whole."""
        with self._lock:
            if self._command is None:
                return 0.0
            points, _, written = self._command
            return max(0.0, written + (len(points) + 1) * self.dt - self.clock())

    def read(self) -> State | None:
        with self._lock:
            state, self._state = self._state, None
        return state

    def write(self, command: Array, opening: float, stop: Array) -> None:
        with self._lock:
            self._command = np.concatenate([command[None], stop]), opening, self.clock()

    def exchange(self) -> None:
        """Read the arm, and send the goal that is due. Called by the bus's thread alone; never raises."""
        began = self.clock()
        try:
            values = self.robot.get_observation()
            q, opening = self.units.state(values)
        except Exception as error:  # whatever a driver raises, there is no state; the watchdogs act on that
            self._failed("reads_failed", error)
        else:
            self._take(q, opening, began)
            try:
                if self.pictures is not None:
                    self.pictures(values)
            except Exception as error:  # a camera that fails must not end this thread; its watchdog holds the arm
                self._failed("pictures_failed", error)
        if (goal := self._due()) is None:
            return
        at = self.clock()
        try:
            action = self.units.action(*goal)
            sent = self.robot.send_action(action)
            changed = any(abs(sent.get(k, np.inf) - v) > SAME for k, v in action.items())
        except Exception as error:
            self._failed("writes_failed", error)
            return
        with self._lock:
            if self._command is not None:  # no new episode began meanwhile
                self.sent, self._sent_at, self.sent_action = goal[0], at, sent
        self.counts["driver_changed"] += changed

    # -- inside -----------------------------------------------------------------------------------------------------
    def _failed(self, what: str, error: Exception) -> None:
        self.counts[what] += 1
        self.error = f"{type(error).__name__}: {' '.join(str(error).split())}"

    def _take(self, q: Array, opening: float, began: float) -> None:
        """Keep a reading as the newest state, unless it took too long or began before the episode."""
        now = self.clock()
        self.counts["reads"] += 1
        if now - began > LATE:
            self.counts["reads_late"] += 1
            return
        with self._lock:
            if began < self._since:
                return
            while len(self._past) > 1 and now - self._past[1][0] >= WINDOW:
                self._past.popleft()
            at, before = self._past[0] if self._past else (now, q)
            qd = (q - before) / (now - at) if now > at else np.zeros(len(q))
            self._past.append((now, q))
            if self.log is not None:
                self.log.take(now, q)
            self._state = State(q, qd, opening)

    def _due(self) -> tuple[Array, float] | None:
        """Return the goal [n] rad and the opening [m] to send now; None before the first command.

        A goal is at most HURRY exchanges of permitted motion from the one before: after a gap the arm catches up.
        """
        with self._lock:
            if self._command is None:
                return None
            points, opening, written = self._command
            now, elapsed = self.clock(), self.clock() - self._sent_at
            late = max(0, int((now - written) / self.dt - 0.5))
            point = points[min(late, len(points) - 1)]
            self.counts["stop_played"] += late > 0 and float(np.abs(point - points[0]).max()) > SAME
            if self.sent is None:  # the episode's first goal: where the arm stands
                self.sent, self._sent_at = point, now
            step = point - self.sent
            most = self.profile.velocity * min(max(elapsed, self.dt), HURRY * self.dt)
            share = float((np.abs(step) / most).max())
            if share > 1.0 + 1e-9:
                self.counts["caught_up"] += 1
                point = self.sent + step / share
            return point, opening

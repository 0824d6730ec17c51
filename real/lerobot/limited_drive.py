"""Drive one of LeRobot's arms to the targets of another program, behind the limits."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from robopolicy.core.errors import closest
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import ActionSpec, Obs
from robopolicy.real.control.chunk_buffer import Ahead, ChunkBuffer
from robopolicy.real.control.control_loop import ControlLoop
from robopolicy.real.control.joints import ActionDecoder, Commanded
from robopolicy.real.lerobot.arm import LeRobotArm
from robopolicy.real.lerobot.bus import FIRST, ArmBus, wait_until_fresh, wait_until_still
from robopolicy.real.lerobot.connection import connect
from robopolicy.real.lerobot.wiring import LeRobotWiring
from robopolicy.real.ros2.joint_state_adapter import GRIPPER, NamedJoints
from robopolicy.real.safety import Mode, Profile, SafetyChain, SafetyError
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.decision import Patience
from robopolicy.real.safety.tracking import checked
from robopolicy.real.teleoperation.teleoperator import TeleopCommand
from robopolicy.sim.arm import FINGER_STROKE

RESERVE = 0.006  # s of a period that are left to the caller once it has its answer, at least
EASED = 0.995  # by which a longer reserve shrinks with each answer: the caller may have become faster
LATE = 0.001  # s beyond its reserve from which a caller needs a longer one
SILENCE = 0.25  # s without a target until the arm brakes and holds; LeRobot's loops pause between two episodes
BRAKING = 0.6  # of the permitted acceleration, by which a far target is approached: the command trails its reference
TINY = 1e-9  # rad
BUDGET = 0.6  # of a tick, for the choice of a command: the caller's threads compute in this process too


class Targets:
    """Lead a control loop to the newest target [Da] of the caller. Where there is none, the arm stands.

    A far target is approached so that constant deceleration ends there: the arm does not overshoot.

    Args:
        braking: [n] rad/s². period: s a control step.
    """

    def __init__(self, braking: Array, period: float) -> None:
        self.newest: Array | None = None
        self.braking, self.period = braking, period

    def start(self) -> None:
        self.newest = None

    def command(self, now: float, commanded: Commanded) -> TeleopCommand:
        if self.newest is None:
            return TeleopCommand("human")
        action, n, lost = self.newest.copy(), len(self.braking), 0.5 * self.braking * self.period  # rad/s
        gap = action[:n] - commanded.q
        far = np.maximum(np.abs(gap), TINY)
        speed = np.sqrt(lost**2 + 2 * self.braking * far) - lost  # v²/2a + v·period/2 = gap
        action[:n] = commanded.q + min(1.0, float((speed * self.period / far).min())) * gap
        return TeleopCommand("human", action=action)


class NoPlans:
    """Plan nothing: the caller decides."""

    def request(self, obs: Obs, step: int, now: float, ahead: Ahead | None = None) -> None: ...
    def poll(self, now: float) -> tuple[Array, float] | None: ...
    def reset(self, seed: int) -> None: ...


class LimitedDrive:
    """Own one of LeRobot's arms, and follow targets as far as its limits permit.

    Two threads run between `start` and `stop`: the control loop, and the exchange with the bus. Without a target for
    SILENCE s, the arm plays its certified stop and holds.

    Args:
        robot: LeRobot's, not connected. wiring: of the arm.
        settings: of the limits, see `robopolicy.real.safety.Settings`.
        period: s between two targets.

    Attributes:
        refused: number of targets that held a value that is no finite number.

    Raises:
        SafetyError: the settings do not go together.
    """

    def __init__(
        self, robot: Any, wiring: LeRobotWiring, *, settings: Mapping[str, Any] | None = None, period: float
    ) -> None:
        self.robot, self.wiring, self.period = robot, wiring, period
        self.given: Profile = checked(wiring.arm.profile(**(settings or wiring.arm.safety)), wiring.arm.tick_s)
        self.targets, self.refused = Targets(BRAKING * self.given.acceleration, period), 0
        self._came, self._values, self._taken = threading.Condition(), dict[str, Any](), True
        self._ending, self._contexts, self._error = threading.Event(), ExitStack(), ""
        self._observed, self._until = -math.inf, -math.inf  # when a reading was given, and when its period is over
        self._answered, self._reserve = math.inf, RESERVE  # when an action was given, and s left to the caller then
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        return self._thread is not None

    def start(self) -> Profile:
        """Connect the arm, hold it where it stands, and return the limits in force.

        Raises:
            SafetyError: arm and wiring do not fit, or the arm moves or stands where it may not.
        """
        with ExitStack() as stack:
            bus = stack.enter_context(ArmBus(self.robot))
            units, profile = connect(self.robot, self.wiring, self.given)
            self.arm = LeRobotArm(
                self.robot, units, profile, dt=self.wiring.arm.tick_s, clock=time.monotonic, pictures=self._take
            )
            self.loop = self._loop(profile)
            stack.enter_context(bus.exchanging(self.arm))
            wait_until_still(self.arm)
            wait_until_fresh(self.arm)
            self.loop.start()
            self._ending.clear()
            self._taken = True
            self._error, self._thread = "", threading.Thread(target=self._drive, name="limits", daemon=True)
            stack.callback(self._end)
            self._thread.start()
            until = time.monotonic() + FIRST
            while not self.arm.sent_action:
                if time.monotonic() > until:
                    raise SafetyError(f"robot: no goal could be sent. {self.arm.error or self._error}")
                time.sleep(self.arm.dt)
            self._contexts = stack.pop_all()
        return profile

    def stop(self) -> None:
        """Brake, and disconnect the arm."""
        self._contexts.close()

    def observe(self) -> dict[str, Any]:
        """Return the next reading of LeRobot's arm, which no earlier call has returned.

        Raises:
            SafetyError: none comes, or the limits ended the motion.
        """
        self._fit_reserve(time.monotonic() - self._answered)
        with self._came:
            patience = min(FIRST, self.wiring.arm.watchdogs["state"].fault)
            came = self._came.wait_for(lambda: not self._taken, timeout=patience)
            self._taken, values = True, self._values
        now = time.monotonic()
        self._observed, self._until = now, now + min(self.period, now - self._observed)
        self._check()
        if not came:
            raise SafetyError(f"robot: no state comes any more. {self.arm.error}")
        return dict(values)

    def want(self, action: Mapping[str, Any]) -> dict[str, float]:
        """Take a target in LeRobot's names and units, and return the action that the motors have at the period's end.

        It waits for that: an action that is recorded beside a reading is where the arm goes in the period after it.
        What is left of the period is as long as the caller has needed until its next reading.

        Raises:
            SafetyError: no mapping, another set of names, or the limits ended the motion.
        """
        self._check()
        expected = [f"{m}.pos" for m in self.wiring.motors]
        if unknown := sorted(map(str, set(action if isinstance(action, Mapping) else [str(action)]) - set(expected))):
            raise SafetyError(f"action: {unknown[0]!r} is no motor of the wiring. {closest(unknown[0], expected)}")
        if missing := [k for k in expected if k not in action]:
            raise SafetyError(f"action: {missing} are missing: expected a target of every motor, {expected}")
        try:
            q, opening = self.arm.units.state(action)
        except ValueError:  # the arm goes on to the target before, and then holds
            self.refused += 1
        else:
            target, decoder = np.append(q, opening) if self.wiring.gripper else q, self.loop.decoder
            self.targets.newest = np.clip(target, decoder.low, decoder.high)
            self.loop.chain.feed("action", time.monotonic())
        time.sleep(max(0.0, self._until - self._reserve - time.monotonic()))
        self._until, self._answered = -math.inf, time.monotonic()
        return dict(self.arm.sent_action)

    # -- inside -----------------------------------------------------------------------------------------------------
    def _fit_reserve(self, needed: float) -> None:
        """Leave more time to a caller that came back later than it was to; `needed`: s since the latest action."""
        if self._reserve + LATE < needed < self.period:  # longer pauses are between episodes
            self._reserve = needed + LATE
        else:
            self._reserve = max(RESERVE, EASED * self._reserve)

    def _loop(self, profile: Profile) -> ControlLoop:
        """Build the control loop. Its actions are joint angles [rad] and the opening [m]."""
        arm, names = self.wiring.arm, [f"{j}.pos" for j in profile.joints]
        low, high, n = profile.low.tolist(), profile.high.tolist(), len(profile.joints)
        if self.wiring.gripper is not None:
            names, low, high = [*names, f"{GRIPPER}.pos"], [*low, 0.0], [*high, arm.opening]
        action = ActionSpec(
            names=tuple(names), units=(*("rad",) * n, "m")[: len(names)], low=tuple(low), high=tuple(high),
            frame="joint", tcp=arm.frames["tcp"], rotation="joint", reference="absolute",
            gripper=n if len(names) > n else None, gripper_meaning="opening in m",
        )  # fmt: skip
        chain = SafetyChain(
            profile, dt=arm.tick_s, state=arm.watchdogs["state"], inputs={"action": Patience(hold=SILENCE)},
            clock=time.monotonic, budget=BUDGET * arm.tick_s,
        )  # fmt: skip
        decoder = ActionDecoder(NamedJoints(action, arm, dt=self.period), stroke=FINGER_STROKE, dt=self.period)
        buffer = ChunkBuffer(PolicySpec({}, action, self.period, 1, 1, 1, ("",)))
        return ControlLoop(
            self.arm, chain, decoder, NoPlans(), lambda state: {}, buffer, clock=time.monotonic, operator=self.targets
        )

    def _take(self, values: dict[str, Any]) -> None:
        """Keep a reading of the bus's thread for `observe`."""
        with self._came:
            self._values, self._taken = values, False
            self._came.notify_all()

    def _drive(self) -> None:
        """Tick until `stop`, and then until the arm stands."""
        due = time.monotonic()
        try:
            while not self._ending.is_set() or not bool(self.loop.chain.limiter.at_rest[0]):
                if self._ending.is_set():
                    self.loop.halted = "disconnected"
                self.loop.tick()
                due = max(due + self.arm.dt, time.monotonic())
                time.sleep(max(0.0, due - time.monotonic()))
        except Exception as error:  # the bus's thread sends the certified stop of the newest command
            self._error = f"{type(error).__name__}: {' '.join(str(error).split())}"

    def _end(self) -> None:
        self._ending.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(FIRST)

    def _check(self) -> None:
        """Raise SafetyError where the arm cannot go on."""
        if self._thread is None:
            raise SafetyError("robot: is not connected. Call connect first")
        if self._error:
            raise SafetyError(f"robot: the control loop ended ({self._error}). The arm has stopped; connect again")
        if self.loop.chain.mode is Mode.FAULT:
            raise SafetyError(f"fault: {self.loop.chain.why}. The arm has stopped. {self.arm.error}")

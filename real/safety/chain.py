"""SafetyChain: one arm's limiter, its watchdogs and its safety modes. Everything that is commanded goes through it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

import numpy as np

from robopolicy.real.safety.array_ops import Array, clip, within
from robopolicy.real.safety.command_limiter import CommandLimiter
from robopolicy.real.safety.decision import Decision, Measured, Mode, Patience, Watchdog
from robopolicy.real.safety.energy_tank import EnergyTank, tank_for
from robopolicy.real.safety.errors import SafetyError
from robopolicy.real.safety.limiter_state import Past
from robopolicy.real.safety.limits import Limit
from robopolicy.real.safety.profile import Profile
from robopolicy.real.safety.projection import Projection, project
from robopolicy.real.safety.risk import RiskCritic
from robopolicy.real.safety.tracking import TrackingCheck

SLOW_PACE = 0.2  # of the joints' velocity limits
SETTLE = 0.1  # s without a cause, at rest, before HOLD ends


class SafetyChain:
    """Limits, watchdogs and safety modes of one arm.

    Args:
        profile: limits.
        dt: s between ticks.
        state: patience with the arm's state; `enable`: with the operator's periodic enable (None: not used);
            `inputs`: patience with further inputs of the policy, by name.
        clock, budget: s that a tick's computation may take by `clock`; a later one is braked.
        limits, projection: instead of the usual; for tests.
        risk: a learned critic, which may only slow down.
    """

    def __init__(
        self, profile: Profile, *, dt: float = 0.004, state: Patience | None = None, enable: Patience | None = None,
        clock: Callable[[], float] | None = None, budget: float = 0.003, limits: Sequence[Limit] | None = None,
        projection: Projection = project, risk: RiskCritic | None = None,
        inputs: Mapping[str, Patience] | None = None,
    ) -> None:  # fmt: skip
        self.limiter = CommandLimiter(profile, dt=dt, projection=projection, limits=limits, clock=clock, budget=budget)
        self.risk = risk
        self.tank: EnergyTank | None = None
        self._given = limits
        self.tracking = TrackingCheck(len(profile.joints))
        self._arm(profile)
        self.watchdogs = [Watchdog("state", state or Patience(hold=0.05, fault=0.2))]
        if enable is not None:
            self.watchdogs.append(Watchdog("enable", enable))
        self.watchdogs += [Watchdog(name, patience) for name, patience in (inputs or {}).items()]
        self.mode, self.counts, self.transitions = Mode.HOLD, Counter[str](), 0
        self.active, self._since, self._now, self._fault = False, 0.0, 0.0, ""
        self._measured: Array = np.zeros(len(profile.joints))  # [n] rad, the newest that could be read
        self.error = ""  # text of the latest exception inside, which was braked for: a bug to report

    @property
    def profile(self) -> Profile:
        return self.limiter.profile

    def activate(self, measured: Measured, now: float) -> None:
        """Start at rest where the arm is; an operator's reset after a fault calls it too.

        Raises:
            SafetyError: it moves, is not readable, or stands where a limit would not allow it; or the operator's enable
                is not alive now.
        """
        if self.active and not bool(self.limiter.at_rest[0]):
            raise SafetyError("activate: the arm is still braking; wait until it stands")
        if any(dog.name == "enable" and dog.level(now) >= Mode.HOLD for dog in self.watchdogs):
            raise SafetyError("enable: no sign of life of the operator; it must come before the arm is activated")
        q = measured.joints(self.limiter.c.shape[2])
        low, high = self.profile.maker["low"], self.profile.maker["high"]
        if (np.abs(q) > 4 * np.pi).any() and ((low <= np.deg2rad(q)) & (np.deg2rad(q) <= high)).all():
            raise SafetyError(f"state: {np.round(q, 2).tolist()} look like degrees; joint angles are expected in rad")
        clip(q, q, self.profile.settings.reference_clip, np.empty_like(q))  # compiled now, not in the first tick
        self._measured = q
        self.tracking.start(q, now)
        if self.tank is not None:
            self.tank.rest()
        self.limiter.start(q[None])
        for dog in self.watchdogs:
            if dog.name != "enable":  # which the operator alone feeds
                dog.feed(now)
        self.mode, self.active, self._fault, self._since, self._now = Mode.RUN, True, "", now, now

    @property
    def faulted(self) -> bool:
        """Whether something has faulted since the last activation."""
        return bool(self._fault)

    @property
    def why(self) -> str:
        """The first reason of a fault; "" without a fault."""
        return self._fault

    def enable(self, now: float) -> None:
        """Take a sign of life of the operator's enable; without it for long enough, FAULT."""
        self.feed("enable", now)

    def feed(self, name: str, now: float) -> None:
        """Note that the input `name` has come."""
        for dog in self.watchdogs:
            if dog.name == name:
                dog.feed(now)

    def heard(self, played: Array) -> bool:
        """Take note of the control point [n] that the arm plays; False where the last command was lost."""
        reached = self.limiter.heard(played)
        if not reached:
            self.tracking.note(self.limiter.c[:, -1])
        return reached

    def resume(self, past: Past, ticks: int) -> None:
        """Go on from `past` by its stored stop, as an arm does that has missed `ticks` commands since."""
        self.limiter.resume(past, ticks)
        self.tracking.note(self.limiter.c[:, -1])

    def load_resumed(self, state: dict[str, Array]) -> None:
        """Resume from a recorded `state` of the limiter."""
        self.limiter.load_state_dict(state)
        self.tracking.note(self.limiter.c[:, -1])

    def fault(self, reason: str) -> None:
        """Stop and stay stopped until `activate`."""
        self._fault = self._fault or reason

    def tighten(self, **settings: Any) -> None:
        """Change limits. While active only to tighter ones; they bind through the certified stop.

        Raises:
            SafetyError: a limit would be loosened while active, or the value is out of range.
        """
        new = replace(self.profile.settings, **settings)
        if self.active and (loose := self.profile.settings.loosened_by(new)):
            raise SafetyError(f"{', '.join(loose)}: limits may be loosened only while inactive")
        self._arm(replace(self.profile, settings=new))
        self.transitions += 1

    def deactivate(self) -> None:
        """Forget where the arm is; `activate` must come before the next command."""
        self.active, self.mode = False, Mode.HOLD

    def filter(self, target: Array | None, measured: Measured | None, now: float, *, reason: str = "") -> Decision:
        """Decide on the next command.

        Args:
            target: [n] rad, wanted next; None to hold, `reason` saying why.
            measured: the arm's state if a new one has come since the last tick.
            now: s, of a steady clock.

        Raises:
            SafetyError: not active.
        """
        if not self.active:
            raise SafetyError("filter: activate(measured, now) must come first")
        reasons: list[str] = []
        if not now >= self._now:  # no age can be trusted any more
            self.fault("clock")
        self._now = now
        if measured is not None:
            target = self._take(target, measured, now, reasons)
        target = self._within_reach(target, reasons)
        level = Mode.RUN
        for dog in self.watchdogs:
            if (found := dog.level(now)) > Mode.RUN:
                level = max(level, found)
                reasons.append(dog.name)
                if found is Mode.FAULT:
                    self.fault(dog.name)
        if target is None:
            level = max(level, Mode.HOLD)
            reasons.append(reason or "no_target")
        if self._fault:
            level = Mode.FAULT
            reasons.append(f"fault:{self._fault}")
        hold = np.array([self._waiting(level, now)])
        pace = SLOW_PACE if level is Mode.SLOW else 1.0
        if self.risk is not None and target is not None and np.shape(target) == self.limiter.last[0].shape:
            slower = min(pace, self.risk.pace(self.limiter.c[0], np.asarray(target, dtype=np.float64)))
            reasons += ["risk"] if slower < pace else []
            pace = slower
        wanted = self.limiter.c[:, -1] if target is None else np.asarray(target, dtype=np.float64)[None]
        verdict = self.limiter.filter(wanted, hold=hold, pace=pace)
        why = list(compress(self.limiter.reasons, verdict.reasons[0].tolist()))
        if "input" in why:  # unreadable numbers: hold until they are gone
            level, self._since = max(level, Mode.HOLD), now
        self.mode = level if not hold[0] else max(level, Mode.HOLD)
        reasons += why
        self.counts.update(reasons)
        self.error = verdict.error or self.error
        self.tracking.note(self.limiter.c[:, -1])
        command, stop = verdict.command[0], self.limiter.stop_ahead()[0]
        return Decision(command, stop, self.mode, tuple(reasons), bool(verdict.changed[0]))

    # -- inside -----------------------------------------------------------------------------------------------------
    def _arm(self, profile: Profile) -> None:
        if self._given is None:
            self.tank = tank_for(profile.settings, self.tank)
        self.limiter.use(profile, self._given, also=() if self.tank is None else (self.tank,))
        self.tracking.use(profile, self.limiter.body, self.limiter.dt)

    def _take(self, target: Array | None, measured: Measured, now: float, reasons: list[str]) -> Array | None:
        """Check the arm's state; None where there is a reason to hold."""
        try:
            q = measured.joints(self.limiter.c.shape[2])
        except SafetyError:
            reasons.append("state_unreadable")  # it does not count as a sign of life
            return None
        self.watchdogs[0].feed(now)
        self._measured = q
        if why := self.tracking.fault(q, now):
            self.fault(why)
        if self.tank is not None:
            torque = np.zeros(0) if measured.torque is None else np.array(measured.torque, dtype=np.float64)
            if torque.shape != q.shape or not within(torque, np.inf):
                reasons.append("torque_unreadable")  # without it the tank's energy is unknown
                return None
            self.tank.update(q, torque)
        return target

    def _within_reach(self, target: Array | None, reasons: list[str]) -> Array | None:
        """Keep the target within reach of the newest state, also in a tick without one: states may be rarer."""
        q = self._measured
        if target is None or np.shape(target) != q.shape:
            return target
        target = np.array(target, dtype=np.float64)
        clipped = np.empty_like(q)
        if not within(target, np.inf):  # clipped, an infinite one would drive the arm on
            return target
        if not clip(target, q, self.profile.settings.reference_clip, clipped) or not within(clipped, np.inf):
            return target
        reasons.append("reference_clip")
        return clipped

    def _waiting(self, level: Mode, now: float) -> bool:
        """HOLD ends SETTLE after its last cause, and only at rest."""
        if level >= Mode.HOLD:
            self._since = now
            return True
        if self.mode < Mode.HOLD:
            return False
        return not (bool(self.limiter.at_rest[0]) and now - self._since >= SETTLE)

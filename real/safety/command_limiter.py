"""The limiter: find the nearest permitted command, and publish certified commands alone. Batched over N arms.

A command is published together with a stop from there that was checked against every limit, and the stop is stored.
If no further command passes, or anything raises, is infeasible or non-finite, the next sample of the stored stop is
played. So from a certified rest, for every input, the commanded trajectory stays inside the limits (by induction).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from robopolicy.real.safety.array_ops import Array, Bool, Ints, all_true, any_true, within
from robopolicy.real.safety.body import Body
from robopolicy.real.safety.errors import SafetyError
from robopolicy.real.safety.joint_space import joint_limits
from robopolicy.real.safety.limiter_state import Past, advance, check_state, inside, settle
from robopolicy.real.safety.limits import Limit, broken
from robopolicy.real.safety.motion import HISTORY
from robopolicy.real.safety.path import Path
from robopolicy.real.safety.profile import Profile
from robopolicy.real.safety.projection import Projection, project
from robopolicy.real.safety.safe_command_search import SafeCommandSearch, put
from robopolicy.real.safety.space import space_limits

# Reasons beside the limits' names.
INPUT, RATE, PROJECTED, OVER_BUDGET, POST, ERROR = "input", "rate", "projected", "late", "post_check", "error"


class LimitVerdict(NamedTuple):
    """Commands of one tick, and why they differ from the targets."""

    command: Array  # [N n] rad, to publish
    stopping: Bool  # [N] the stored stop is being played
    changed: Bool  # [N] the command is not the target, bit for bit
    reasons: Bool  # [N R] why, by `CommandLimiter.reasons`
    error: str = ""  # of an exception, which is a bug and braked for all the same


class CommandLimiter:
    """Limits on the commands of N arms that share a profile.

    Args:
        profile: limits and shape.
        num_arms: N.
        dt: s between commands.
        limits: instead of the profile's own; for tests.
        projection: solves the quadratic programme; None: commands that fail are only blended with the stop.
        clock, budget: s that the choice of a command may take by `clock`; a later one is not published.
    """

    def __init__(
        self, profile: Profile, num_arms: int = 1, *, dt: float = 0.004, limits: Sequence[Limit] | None = None,
        projection: Projection | None = project, clock: Callable[[], float] | None = None, budget: float = 0.003,
    ) -> None:  # fmt: skip
        self.dt, self.num_arms, self._projection = dt, num_arms, projection
        self.clock, self.budget = clock or (lambda: 0.0), budget
        n = len(profile.joints)
        self.c: Array = np.zeros((num_arms, HISTORY, n))  # published commands, oldest first
        self.last: Array = np.zeros((num_arms, n))  # the last finite target
        self._stop: Array = np.zeros((num_arms, 1, n))
        self._at: Ints = np.zeros(num_arms, dtype=np.int64)  # next sample of the stop
        self._rows = np.arange(num_arms)
        self.active: Bool = np.zeros(num_arms, dtype=bool)
        self.use(profile, limits)

    def use(self, profile: Profile, limits: Sequence[Limit] | None = None, *, also: Sequence[Limit] = ()) -> None:
        """Take other limits from the next tick on. A stop that is stored stays as it was certified.

        Args:
            limits: instead of the profile's own; `also`: beside them.

        Raises:
            SafetyError: they leave nothing of a joint's range.
        """
        profile.check_room()
        self.profile, self.body = profile, Body(profile)
        own = (*joint_limits(profile), *space_limits(self.body)) if limits is None else limits
        self.limits = (*own, *also)
        self.search = SafeCommandSearch(profile, self.body, self.limits, dt=self.dt, projection=self._projection)
        self.reasons = (*(limit.name for limit in self.limits), INPUT, RATE, PROJECTED, OVER_BUDGET, POST, ERROR)
        self._index = {name: i for i, name in enumerate(self.reasons)}

    def start(self, q: Array, rows: Ints | None = None) -> None:
        """Start at rest at `q` [M n] rad, in `rows` [M] (all when None).

        Raises:
            SafetyError: rest there breaks a limit; the limits are named.
        """
        rows = np.arange(self.num_arms) if rows is None else rows
        q = np.asarray(q, dtype=np.float64)
        if q.shape != (len(rows), self.c.shape[2]) or not np.isfinite(q).all():
            raise SafetyError(f"start: expected {(len(rows), self.c.shape[2])} finite joint angles, found {q!r}")
        history = np.repeat(q[:, None], HISTORY, axis=1)
        failed: Bool = broken(self.limits, Path.of(history, q, self.body, self.dt))
        if failed.any():
            names = [n for n, bad in zip(self.reasons, np.asarray(failed.any(axis=0)), strict=False) if bad]
            raise SafetyError(
                f"{self.profile.robot}: the arm stands where {', '.join(names)} would not allow it, at "
                f"{np.round(q[failed.any(axis=1).argmax()], 3).tolist()} rad. Move it by hand, or correct the limits."
            )
        if not self.active.any():
            self.warm_up(history)
        self.c[rows], self.last[rows], self.active[rows] = history, q, True
        self._stop[rows], self._at[rows] = q[:, None], 0
        self._before = self.past()
        self.search.near, self.search.first = False, 0  # an only arm begins as a new limiter's does

    def warm_up(self, history: Array) -> None:
        """Compile, or load, all that a tick may call, at rest in `history` [M HISTORY n] rad, permitted or not."""
        self.search.warm_up(history)
        rest = history[:, -1].copy()
        path = Path.of(history, rest, self.body, self.dt)
        for limit in self.limits:  # a search asks none after the first that is broken
            limit.margin(path)
        fine = self._post_check(rest)
        settle(fine, rest, rest, rest, fine)
        every = np.arange(len(rest))
        put(rest[:, None], every, rest[:, None], every)
        advance(history, rest[:, None], every, rest, fine, history.copy(), every.copy())

    def filter(self, target: Array, *, hold: Bool | None = None, pace: float = 1.0) -> LimitVerdict:
        """Decide on the next commands for joint targets `target` [N n] rad.

        Args:
            hold: [N] bool: play the stop, whatever the target.
            pace: fraction of the joints' velocity limits for the search.

        Raises:
            SafetyError: `start` was never called.
        """
        if not all_true(self.active):
            raise SafetyError("filter: start(q) must come first; the arm's position is not known")
        reasons = np.zeros((self.num_arms, len(self.reasons)), dtype=bool)
        braking, error, start = self._braking(), "", self.clock()
        going: Bool
        wanted = command = braking
        stop, going = self._stop, np.zeros(self.num_arms, dtype=bool)
        try:
            wanted = self._readable(target, reasons)
            free = ~reasons[:, self._index[INPUT]] & (True if hold is None else ~hold)
            if any_true(free):
                found = self.search.choose(self.c, wanted, self.last, free, braking, pace)
                command, stop, going, self.last = found.command, found.stop, found.going, wanted
                reasons[:, : len(self.limits)] = found.failed
                reasons[:, self._index[RATE]] = found.rate
                reasons[:, self._index[PROJECTED]] = found.projected
        except Exception as problem:  # whatever it is, the arm brakes
            error = f"{type(problem).__name__}: {problem}"
            going = np.zeros(self.num_arms, dtype=bool)
            reasons[:, self._index[ERROR]] = True
        if any_true(going) and self.clock() - start > self.budget:
            reasons[:, self._index[OVER_BUDGET]], going = True, np.zeros(self.num_arms, dtype=bool)
        refused = going & ~self._post_check(command)
        reasons[:, self._index[POST]] = refused
        going = going & ~refused
        stopping, changed = ~going, np.empty_like(going)
        settle(going, command, braking, wanted, changed)
        self._accept(command, stop, going)
        return LimitVerdict(command, stopping, changed, reasons, error)

    def heard(self, played: Array) -> bool:
        """Take note of the control point [n] that the only arm plays; False where the last command was lost.

        The arm then went on with the stop that it had; the next command starts from there.
        """
        if np.array_equal(played, self.c[0, -1]) or not np.array_equal(played, self._before.ahead(1)):
            return True
        self.resume(self._before, 1)
        return False

    def past(self) -> Past:
        """Return the state of now, for `resume`."""
        return Past(self.c, self._stop, self._at)

    def resume(self, past: Past, ticks: int) -> None:
        """Go on from `past` by the stored stops, as arms do that have missed `ticks` commands since."""
        self.c, self._stop, self._at = past
        for _ in range(ticks):
            self._accept(self._braking(), self._stop, np.zeros(self.num_arms, dtype=bool))

    @property
    def at_rest(self) -> Bool:
        """[N]: the last commands are one and the same."""
        return (self.c[:, -3:] == self.c[:, -1:]).all(axis=(1, 2))

    def stop_ahead(self) -> Array:
        """Return the commands [N S n] rad that follow if no other is certified; they end at rest."""
        if self.num_arms == 1:
            return self._stop[:, self._at[0] :]
        index = np.minimum(self._at[:, None] + np.arange(self._stop.shape[1]), self._stop.shape[1] - 1)
        return np.take_along_axis(self._stop, index[:, :, None], axis=1)

    def state_dict(self) -> dict[str, Array | Bool | Ints]:
        """Return the state that the next commands depend on, limits aside."""
        return {
            "c": self.c, "last": self.last, "stop": self._stop, "at": self._at, "active": self.active,
            "search": np.array([self.search.near, self.search.first], dtype=np.int64),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Array]) -> None:
        """Go on from the `state_dict` of a limiter of as many arms, under the same limits.

        Raises:
            SafetyError: it is of other arms.
        """
        if state["c"].shape != self.c.shape:
            raise SafetyError(f"limiter: the saved state is of arms {state['c'].shape}, these are {self.c.shape}")
        check_state(state, self.c.shape, len(self.limits))
        self.c, self.last, self._stop = (np.array(state[k], dtype=np.float64) for k in ("c", "last", "stop"))
        self._at, self.active = np.array(state["at"], dtype=np.int64), np.array(state["active"], dtype=bool)
        self.search.near, self.search.first = bool(state["search"][0]), int(state["search"][1])
        self._before = self.past()

    # -- inside -----------------------------------------------------------------------------------------------------
    def _readable(self, target: Array, reasons: Bool) -> Array:
        """Return a copy of `target` where it can be read, else of the last one."""
        target = np.array(target, dtype=np.float64, order="C")
        if target.shape != self.last.shape:
            reasons[:, self._index[INPUT]] = True
            return self.last.copy()
        if not within(target.ravel(), 1e6):
            bad = ~np.asarray((np.abs(target) < 1e6).all(axis=1))  # NaN compares false
            reasons[bad, self._index[INPUT]], target[bad] = True, self.last[bad]
        return target

    def _braking(self) -> Array:
        """Return [N n] the next sample of the stored stop."""
        return self._stop[self._rows, self._at]

    def _post_check(self, command: Array) -> Bool:
        """Return [N] the command alone, by other arithmetic than the certificate's, just before it is published."""
        fine = np.empty(len(command), dtype=np.bool_)
        inside(self.c, command, self.profile.bounds, self.dt, fine)
        return fine

    def _accept(self, command: Array, stop: Array, going: Bool) -> None:
        self._before = self.past()
        self.c, self._at = np.empty_like(self.c), np.empty_like(self._at)
        advance(*self._before, command, going, self.c, self._at)
        if any_true(going):
            rows = np.flatnonzero(going)
            self._stop = put(self._stop, rows, stop, rows)

"""The search for a command near the target that has a certified stop. Batched over N arms.

Three candidates: the target (or the permitted way towards it), its projection onto the limits' inequalities, and
half-way from there to the stop. The certificate alone decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit

from robopolicy.real.safety.array_ops import Array, Bool, Ints, any_true, max_abs_diff
from robopolicy.real.safety.body import Body
from robopolicy.real.safety.limits import Limit, broken
from robopolicy.real.safety.path import Here, Path
from robopolicy.real.safety.profile import Profile
from robopolicy.real.safety.projection import TOLERANCE, Projection
from robopolicy.real.safety.velocity_bounds import velocity_bounds


class SearchResult(NamedTuple):
    """One tick's commands, and why they are not the targets."""

    command: Array  # [N n] rad
    stop: Array  # [N S n] rad, after the command
    going: Bool  # [N] both are certified
    failed: Bool  # [N L] limits that the first candidate breaks
    rate: Bool  # [N] the target is too far for one tick
    projected: Bool  # [N] the first candidate was given up, or replaced beforehand


class SafeCommandSearch:
    """Search commands near targets for N arms that share limits.

    Args:
        projection: solves the quadratic programme; None: commands that fail are only blended with the stop.
    """

    def __init__(
        self, profile: Profile, body: Body, limits: Sequence[Limit], *, dt: float, projection: Projection | None
    ) -> None:
        self.profile, self.body, self.limits, self.dt, self.projection = profile, body, tuple(limits), dt, projection
        self.near = False  # a limit changed the last command
        self.first = 0  # the limit that an only arm broke last: most often the next one too, so asked first

    def choose(self, c: Array, wanted: Array, before: Array, free: Bool, braking: Array, pace: float) -> SearchResult:
        """Commands after history `c` [N H n] towards `wanted` [N n], which was `before` [N n] a tick ago.

        Args:
            free: [N] arms that may move on; the others play their stop.
            braking: [N n] the stored stops' next samples.
            pace: fraction of the joints' velocity limits.
        """
        low, high, wish, inside, command = velocity_bounds(c, wanted, before, self.profile, self.dt, pace)
        given_up = np.zeros(len(c), dtype=bool)
        solved = False
        # A limit is close by: ask the inequalities first, spare a certificate.
        if len(c) == 1 and self.near and self.projection is not None:
            v, solved = self._project(c[0], wish[0], low[0], high[0]), True
            if v is not None and max_abs_diff(v, wish[0]) > TOLERANCE:
                command, given_up[:] = c[:, -1] + self.dt * v, True
        path = Path.of(c, command, self.body, self.dt)
        failed, stop = self._broken(path), path.stop
        going = none(failed, free)
        self.near = any_true(given_up) or any_true(failed.ravel())
        for blend in (0.0, 0.5):  # the projection; half-way from there to the stop
            rows = left(free, going)
            if not len(rows):
                break
            those = rows if len(rows) < len(c) else slice(None)  # all, without copies
            given_up[those] = True
            if blend == 0.0 and self.projection is not None:
                if solved:
                    continue  # it was just tried
                for row in rows:
                    if (v := self._project(c[row], wish[row], low[row], high[row])) is not None:
                        command[row] = c[row, -1] + self.dt * v
            else:
                command[those] += 0.5 * (braking[those] - command[those])
            path = Path.of(c[those], command[those], self.body, self.dt)
            fine = none(self._broken(path), free[those])
            going[those] = fine
            stop = put(stop, rows[fine], path.stop, np.flatnonzero(fine))
        return SearchResult(command, stop, going, failed & free[:, None], free & ~inside, given_up)

    def _broken(self, path: Path) -> Bool:
        """Return [M L]: see `broken`. One arm's first broken limit is asked first the next time."""
        if len(path.c) > 1:
            return broken(self.limits, path)
        k = self.first
        failed = np.roll(broken((*self.limits[k:], *self.limits[:k]), path), k, axis=1)
        if any_true(failed[0]):
            self.first = int(failed[0].argmax())
        return failed

    def warm_up(self, c: Array) -> None:
        """Compile, or load, all that a tick may call: the first one must not be late. `c` [N H n] is at rest."""
        free = np.ones(len(c), dtype=bool)
        for near, target in ((True, c[:, -1] + 1e-6), (False, c[:, -1] + 1.0)):
            self.near = near
            self.choose(c, target, c[:, -1].copy(), free, c[:, -1].copy(), 1.0)
        self.near, self.first = False, 0
        if self.projection is not None:
            still = np.zeros(c.shape[2])
            self._project(c[0], still, still, still)
            self.projection(still, still, still, still[None], np.zeros(1))
            Here.of(c[0], self.body, self.dt).brake(still[None].copy(), np.zeros(1), 1)

    def _project(self, history: Array, wish: Array, low: Array, high: Array) -> Array | None:
        """Return [n] rad/s nearest to `wish` [n] that meets the limits' inequalities for one arm."""
        assert self.projection is not None
        here = Here.of(history, self.body, self.dt)
        rows = [r for limit in self.limits if (r := limit.rows(here)) is not None]
        g = np.concatenate([r.g for r in rows]) if rows else np.zeros((0, len(wish)))
        h = np.concatenate([r.h for r in rows]) if rows else np.zeros(0)
        return self.projection(wish, low, high, g, h)


def put(stops: Array, rows: Ints, new: Array, picks: Ints) -> Array:
    """Put `new` [M' S' n] of `picks` [M] into `rows` [M] of `stops` [N S n]; shorter ones repeat their last point."""
    out = np.empty((stops.shape[0], max(stops.shape[1], new.shape[1]), stops.shape[2]))
    _put(stops, rows, new, picks, out)
    return out


@njit(cache=True, nogil=True)
def _put(stops: Array, rows: Ints, new: Array, picks: Ints, out: Array) -> None:
    if len(rows) < len(stops):
        for arm in range(len(stops)):
            _lengthen(stops[arm], out[arm])
    for k in range(len(rows)):
        _lengthen(new[picks[k]], out[rows[k]])


@njit(cache=True, nogil=True)
def _lengthen(stop: Array, out: Array) -> None:
    for k in range(len(out)):
        for i in range(out.shape[1]):
            out[k, i] = stop[min(k, len(stop) - 1), i]


@njit(cache=True, nogil=True)
def none(failed: Bool, free: Bool) -> Bool:
    """Return [N] the arms that are `free` [N] and have no flag of `failed` [N L] set."""
    out = free.copy()
    for arm in range(failed.shape[0]):
        for i in range(failed.shape[1]):
            out[arm] &= not failed[arm, i]
    return out


@njit(cache=True, nogil=True)
def left(free: Bool, going: Bool) -> Ints:
    """Return [M] arms that are `free` [N] and not `going` [N]."""
    return np.flatnonzero(free & ~going)

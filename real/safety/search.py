"""The search for a command near the target that has a certified stop. Batched over N arms.

Three candidates: the target (or the permitted way towards it), its projection onto the limits' inequalities, and
half-way from there to the stop. The certificate alone decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from real.safety.body import Body
from real.safety.limits import Limit, broken
from real.safety.path import Here, Path
from real.safety.profile import Profile
from real.safety.projection import TOLERANCE, Projection
from real.safety.propose import box_of, track

Array = NDArray[np.float64]
Bool = NDArray[np.bool_]


class Found(NamedTuple):
    """One tick's commands, and why they are not the targets."""

    command: Array  # [N n] rad
    stop: Array  # [N S n] rad, after the command
    going: Bool  # [N] both are certified
    failed: Bool  # [N L] limits that the first candidate breaks
    rate: Bool  # [N] the target is too far for one tick
    projected: Bool  # [N] the first candidate was given up, or replaced beforehand


class Search:
    """Of N arms that share limits.

    Args:
        projection: solves the quadratic programme; None: commands that fail are only blended with the stop.
    """

    def __init__(
        self, profile: Profile, body: Body, limits: Sequence[Limit], *, dt: float, projection: Projection | None
    ) -> None:
        self.profile, self.body, self.limits, self.dt, self.projection = profile, body, tuple(limits), dt, projection
        self.near = False  # a limit changed the last command

    def choose(self, c: Array, wanted: Array, before: Array, free: Bool, braking: Array, pace: float) -> Found:
        """Commands after history `c` [N H n] towards `wanted` [N n], which was `before` [N n] a tick ago.

        Args:
            free: [N] arms that may move on; the others play their stop.
            braking: [N n] the stored stops' next samples.
            pace: fraction of the joints' velocity limits.
        """
        box = box_of(c, self.profile, self.dt, pace)
        direct: Array = (wanted - c[:, -1]) / self.dt
        inside: Bool = np.asarray(((direct >= box.low) & (direct <= box.high)).all(axis=1))
        wish: Array = direct
        if not inside.all():
            wish = np.where(inside[:, None], direct, track(c, wanted, before, box, self.profile, self.dt))
        command: Array = np.where(inside[:, None], wanted, c[:, -1] + self.dt * wish)
        given_up = np.zeros(len(c), dtype=bool)
        solved: dict[int, Array | None] = {}
        # A limit is close by: ask the inequalities first, spare a certificate.
        if len(c) == 1 and self.near and self.projection is not None:
            v = solved[0] = self._project(c[0], wish[0], box.low[0], box.high[0])
            if v is not None and np.abs(v - wish[0]).max() > TOLERANCE:
                command, given_up[:] = c[:, -1] + self.dt * v, True
        path = Path.of(c, command, self.body, self.dt)
        failed = broken(self.limits, path)
        self.near = bool(failed.any()) or bool(given_up.any())
        going, stop = free & ~failed.any(axis=1), path.stop
        for blend in (0.0, 0.5):  # the projection; half-way from there to the stop
            rows = np.flatnonzero(free & ~going)
            if not len(rows):
                break
            given_up[rows] = True
            if blend == 0.0 and self.projection is not None:
                for row in rows:
                    if row not in solved:
                        solved[row] = self._project(c[row], wish[row], box.low[row], box.high[row])
                    if (v := solved[row]) is not None:
                        command[row] = c[row, -1] + self.dt * v
            else:
                command[rows] += 0.5 * (braking[rows] - command[rows])
            path = Path.of(c[rows], command[rows], self.body, self.dt)
            fine = ~broken(self.limits, path).any(axis=1)
            going[rows] = fine
            stop = put(stop, rows[fine], path.stop[fine])
        return Found(command, stop, going, failed & free[:, None], free & ~inside, given_up)

    def _project(self, history: Array, wish: Array, low: Array, high: Array) -> Array | None:
        """[n] rad/s nearest to `wish` [n] that meets the limits' inequalities for one arm."""
        assert self.projection is not None
        here = Here.of(history, self.body, self.dt)
        rows = [r for limit in self.limits if (r := limit.rows(here)) is not None]
        g = np.concatenate([r.g for r in rows]) if rows else np.zeros((0, len(wish)))
        h = np.concatenate([r.h for r in rows]) if rows else np.zeros(0)
        return self.projection(wish, low, high, g, h)


def put(stops: Array, rows: NDArray[np.int64], new: Array) -> Array:
    """`stops` [N S n] with `new` [M S' n] in `rows` [M]; the shorter are lengthened by their last sample."""
    size = max(stops.shape[1], new.shape[1])
    stops, new = _lengthen(stops, size), _lengthen(new, size)
    if len(rows) == len(stops):
        return new
    stops = stops.copy()
    stops[rows] = new
    return stops


def _lengthen(stop: Array, size: int) -> Array:
    more = size - stop.shape[1]
    return stop if more <= 0 else np.concatenate([stop, np.repeat(stop[:, -1:], more, axis=1)], axis=1)

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
from real.safety.kinematics import gradients
from real.safety.limits import Limit, broken
from real.safety.path import Here, Path
from real.safety.profile import Profile
from real.safety.projection import TOLERANCE, Projection
from real.safety.propose import propose
from real.safety.tool import jacobian_derivative

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
        low, high, wish, inside = propose(c, wanted, before, self.profile, self.dt, pace)
        command: Array = np.where(inside[:, None], wanted, c[:, -1] + self.dt * wish)
        given_up = np.zeros(len(c), dtype=bool)
        solved = False
        # A limit is close by: ask the inequalities first, spare a certificate.
        if len(c) == 1 and self.near and self.projection is not None:
            v, solved = self._project(c[0], wish[0], low[0], high[0]), True
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
                if solved:
                    continue  # it was just tried
                for row in rows:
                    if (v := self._project(c[row], wish[row], low[row], high[row])) is not None:
                        command[row] = c[row, -1] + self.dt * v
            else:
                command[rows] += 0.5 * (braking[rows] - command[rows])
            path = Path.of(c[rows], command[rows], self.body, self.dt)
            fine = ~broken(self.limits, path).any(axis=1)
            going[rows] = fine
            stop = put(stop, rows[fine], path.stop[fine])
        return Found(command, stop, going, failed & free[:, None], free & ~inside, given_up)

    def warm_up(self, c: Array) -> None:
        """Compile, or load, all that a tick may call: the first one must not be late. `c` [N H n] is at rest."""
        free = np.ones(len(c), dtype=bool)
        for near, target in ((True, c[:, -1] + 1e-6), (False, c[:, -1] + 1.0)):
            self.near = near
            self.choose(c, target, c[:, -1].copy(), free, c[:, -1].copy(), 1.0)
        self.near = False
        here = Here.of(c[0], self.body, self.dt)
        gradients(here.frames, here.points[:1], self.body.links[:1], np.zeros((1, 3)))
        jacobian_derivative(np.zeros((6, c.shape[2])))

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

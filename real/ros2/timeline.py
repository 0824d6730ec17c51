"""The points that an arm's driver plays, tick by tick: trajectories are spliced where they agree with them."""

from __future__ import annotations

from collections import deque

import numpy as np

from robopolicy.real.safety.array_ops import Array

MATCH = 3  # control points that must agree at a seam: then position, velocity, acceleration and jerk go on smoothly
AHEAD = 500  # ticks by which a trajectory may begin later than now


class Timeline:
    """Control points by tick. Beyond the end of the last trajectory the arm stays where it ends.

    A trajectory is taken only where its points agree, bit for bit, with `MATCH` that were played or are about to be.
    One that does not continue the motion is refused, and the arm goes on with its last trajectory, which ends in a
    certified stop.
    """

    def __init__(self, q: Array, tick: int) -> None:
        """At rest at `q` [n] rad; `tick` is played next."""
        self.rest(q, tick)

    def rest(self, q: Array, tick: int) -> None:
        """Start over at rest at `q` [n]; `tick` is played next."""
        self.tick, self.first, self.plan = tick, tick, np.array(q, dtype=np.float64)[None]
        self.played: deque[Array] = deque([self.plan[0]] * MATCH, maxlen=MATCH)

    def at(self, tick: int) -> Array:
        """Return [n] rad of `tick`, not more than `MATCH` ticks past."""
        if tick < self.tick:
            return self.played[tick - self.tick]
        return np.asarray(self.plan[min(max(tick - self.first, 0), len(self.plan) - 1)])

    def offer(self, first: int, points: Array) -> str:
        """Take a trajectory of `points` [K n] rad, a tick each from `first` on; returns why it is refused, or ""."""
        n = self.plan.shape[1]
        if points.ndim != 2 or points.shape[1] != n or not len(points):
            return f"shape: expected [K {n}] with K ≥ 1, found {list(points.shape)}"
        if not np.isfinite(points).all():
            return "not finite"
        if first + len(points) <= self.tick - MATCH:
            return "past: it ended before now"
        if first > self.tick + AHEAD:
            return f"ahead: it begins {first - self.tick} ticks from now"
        seam = max(first, self.tick - MATCH)
        for tick in range(seam, seam + MATCH):
            if not np.array_equal(points[min(tick - first, len(points) - 1)], self.at(tick)):
                return "seam: it does not go on from what is being played"
        between = [self.at(t) for t in range(self.tick, first)]
        self.plan = np.concatenate([np.array(between), points]) if between else points[max(0, self.tick - first) :]
        if not len(self.plan):
            self.plan = points[-1:]
        self.first = self.tick
        return ""

    def play(self) -> Array:
        """Play a tick: returns its control point [n] rad."""
        q = self.at(self.tick)
        self.played.append(q)
        self.tick += 1
        return q

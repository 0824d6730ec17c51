"""How real controllers turn what is sent to them into positions for the arm, once in each of their cycles.

Written after the documentation of ros2_controllers (joint_trajectory_controller: trajectory representation, parameters)
and of forward command controllers. Shares no code with what sends: polynomials by solving their conditions.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import BPoly, BSpline
from trajectory_msgs.msg import JointTrajectory

Array = NDArray[np.float64]
S = 1_000_000_000


class TrajectoryController:
    """A joint_trajectory_controller with `interpolate_from_desired_state: true`, holding the arm at `q` [n] rad.

    A segment whose ends have velocities and accelerations is the quintic, one with velocities the cubic, one with
    positions alone the line. A trajectory replaces the one before in the cycle in which it comes. Before its first
    point it is a segment from what was desired in the cycle before.
    """

    def __init__(self, joints: tuple[str, ...], q: Array) -> None:
        self.joints, self.rejected = joints, []
        self.desired: tuple[Array, ...] = (q, np.zeros_like(q), np.zeros_like(q))
        self.times: NDArray[np.int64] = np.zeros(0, dtype=np.int64)  # ns, of points
        self.points: list[tuple[Array, ...]] = []  # position, and derivatives where there are any
        self.now = 0  # ns, of the cycle before

    def take(self, message: JointTrajectory, now: int) -> None:
        """Accept a trajectory at `now` ns, or note why it is rejected."""
        if why := self._wrong(message, now):
            self.rejected.append(why)
            return
        order = [list(message.joint_names).index(name) for name in self.joints]
        start = message.header.stamp.sec * S + message.header.stamp.nanosec
        points, times = [], []
        for p in message.points:
            times.append(start + p.time_from_start.sec * S + p.time_from_start.nanosec)
            kinds = [p.positions, p.velocities, p.accelerations]
            points.append(tuple(np.array(kind)[order] for kind in kinds if len(kind)))
        if times[0] > self.now:
            times, points = [self.now, *times], [self.desired, *points]
        self.times, self.points = np.array(times, dtype=np.int64), points

    def cycle(self, now: int) -> Array:
        """[n] rad that the arm is told at `now` ns."""
        self.now = now
        if not len(self.times):
            return self.desired[0]
        k = int(np.searchsorted(self.times, now, side="right")) - 1
        if k >= len(self.times) - 1:
            self.desired = (self.points[-1][0], *(np.zeros_like(self.points[-1][0]) for _ in range(2)))
            return self.desired[0]
        ends = self.points[k], self.points[k + 1]
        given = min(len(ends[0]), len(ends[1]))
        span = (self.times[k + 1] - self.times[k]) / S
        at = (now - self.times[k]) / S
        curve = BPoly.from_derivatives([0.0, span], [np.array(end[:given]) for end in ends])
        found = [curve(at), curve.derivative()(at), curve.derivative(2)(at) if given > 1 else np.zeros_like(ends[0][0])]
        self.desired = tuple(np.asarray(v) for v in found)
        return self.desired[0]

    def _wrong(self, message: JointTrajectory, now: int) -> str:
        if sorted(message.joint_names) != sorted(self.joints):
            return "joints"
        if not len(message.points):
            return "empty"
        if any(v != 0.0 for v in message.points[-1].velocities):
            return "velocity at the end"
        since = [p.time_from_start.sec * S + p.time_from_start.nanosec for p in message.points]
        if any(b <= a for a, b in zip(since, since[1:], strict=False)):
            return "times"
        sizes = {len(p.positions) for p in message.points} | {
            len(v) or len(self.joints) for p in message.points for v in (p.velocities, p.accelerations)
        }
        if sizes != {len(self.joints)}:
            return "sizes"
        stamp = message.header.stamp.sec * S + message.header.stamp.nanosec
        return "past" if stamp and stamp + since[-1] < now else ""


class PositionController:
    """A driver that takes one position [n] rad a tick and gives the arm `times` of them.

    `upsampling`: `none` gives the newest again and again, `linear` goes to it in a tick, `bspline` plays positions as
    control points.
    """

    def __init__(self, q: Array, upsampling: str, times: int) -> None:
        self.upsampling, self.times, self.window = upsampling, times, [q] * 4

    def tick(self, position: Array | None) -> Array:
        """[times n] rad of a tick that begins with `position`; None: nothing came."""
        self.window = [*self.window[1:], self.window[-1] if position is None else position]
        u = np.arange(1, self.times + 1)[:, None] / self.times
        before, newest = self.window[-2:]
        if self.upsampling == "none":
            return np.tile(newest, (self.times, 1))
        if self.upsampling == "linear":
            return before + u * (newest - before)
        return np.asarray(BSpline(np.arange(-3.0, 5.0), np.array(self.window), 3)(np.minimum(u[:, 0], 1 - 1e-15)))


def ratios(q: Array, maker: dict[str, Array], rate: float, edge: dict[str, Array] | None) -> dict[str, float]:
    """Largest velocity, acceleration and jerk of positions [T n] rad at `rate` Hz, as multiples of the maker's limits.

    By differences, less what the rounding of positions makes of them. `position` is above 1 where one is outside.
    `edge`: offset, deceleration and range of an FR3's velocity limit near the ends of its joints.
    """
    middle, half = 0.5 * (maker["high"] + maker["low"]), 0.5 * (maker["high"] - maker["low"])
    found = {"position": float((np.abs(q - middle) / half).max())}
    difference = q
    for order, name in enumerate(("velocity", "acceleration", "jerk"), 1):
        difference = np.diff(difference, axis=0) * rate
        noise = 16 * np.finfo(float).eps * max(1.0, float(np.abs(q).max())) * (2 * rate) ** order
        found[name] = float(((np.abs(difference) - noise) / maker[name]).max())
    if edge is not None:
        v, here = np.diff(q, axis=0) * rate, 0.5 * (q[1:] + q[:-1])
        (low, high), offset, slow = edge["range"], edge["offset"], edge["deceleration"]
        up = np.sqrt(np.maximum(0.0, 2 * slow * (high - here))) - offset
        down = np.sqrt(np.maximum(0.0, 2 * slow * (here - low))) - offset
        bound = np.where(v > 0, up, down)
        found["velocity"] = max(found["velocity"], float((np.abs(v) / np.maximum(bound, 1e-6)).max()))
    if not all(map(math.isfinite, found.values())):
        return dict.fromkeys(found, math.inf)
    return found

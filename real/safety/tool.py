"""Limits on the tool: its speed, its workspace, and the distance of the arm from a singularity."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from real.safety.body import Body
from real.safety.kinematics import jacobian
from real.safety.limits import EXTRA, NEAR, Rows
from real.safety.path import Array, Bool, Here, Path
from real.safety.profile import Box


def _tcp_jacobian(here: Here, body: Body) -> Array:
    """[3 n] m/rad."""
    return jacobian(here.frames, here.points[body.tcp], len(here.q))[:, :, 0].T


@dataclass(frozen=True, eq=False)
class TcpSpeed:
    """|ṗ| ≤ limit [m/s] of the tool's point.

    Between knots a vector function exceeds its linear interpolation by at most h²/8 · |f″| (here f = ṗ); |p⃛| of a
    serial arm is bounded from the joints' speeds, accelerations and jerks.
    """

    body: Body
    limit: float
    name: str = "tcp_speed"

    def holds(self, path: Path) -> Bool:
        arm, step = path.body.tcp_reach, path.stride * path.dt
        qd = path.qd.reshape(-1, len(arm)).T  # [n N·S]
        speed = np.sqrt(np.square((path.tcp_jacobian * qd[:, None]).sum(axis=0)).sum(axis=0)).reshape(path.q.shape[:2])
        w, alpha = path.speed.sum(axis=2), path.accel.sum(axis=2)
        third = path.jerk @ arm + 4 * w * (path.accel @ arm) + (2 * alpha + 4 * w**2) * (path.speed @ arm)
        peak = np.maximum(speed[:, :-1], speed[:, 1:]) + step**2 / 8 * third
        return (peak <= self.limit).all(axis=1)

    def rows(self, here: Here) -> Rows | None:
        jac = _tcp_jacobian(here, self.body)
        now = jac @ here.v
        if (speed := float(np.linalg.norm(now))) < 0.5 * self.limit:
            return None
        sides = np.linalg.svd(now[None] / speed)[2]  # the way it goes, and two directions across
        margin = (Path.stride_at(here.dt) * here.dt) ** 2 / 8 * float(self.body.profile.jerk @ self.body.tcp_reach)
        bound = np.array([0.98, 0.2, 0.2, 0.2, 0.2]) * max(self.limit - margin, 0.5 * self.limit)
        return Rows(np.concatenate([now[None] / speed, sides[1:], -sides[1:]]) @ jac, bound)


@dataclass(frozen=True, eq=False)
class Workspace:
    """The tool's point stays inside a box."""

    body: Body
    box: Box
    name: str = "workspace"

    def holds(self, path: Path) -> Bool:
        tcp = path.points[self.body.tcp]  # [3 M]
        low, high = np.array(self.box.low)[:, None], np.array(self.box.high)[:, None]
        room = np.minimum(tcp - low, high - tcp).min(axis=0)
        return path.between(room[None], path.body.tcp_reach[None])[0] >= 0

    def rows(self, here: Here) -> Rows | None:
        jac, tcp = _tcp_jacobian(here, self.body), here.points[self.body.tcp, :, 0]
        room = np.concatenate([tcp - self.box.low, self.box.high - tcp])
        near = room < NEAR
        if not near.any():
            return None
        return Rows(*here.brake(np.concatenate([jac, -jac])[near], room[near] - EXTRA))


@dataclass(frozen=True, eq=False)
class Singularity:
    """Condition number of the Jacobian (metres and radians as they are) stays below `limit`.

    Singular values change no faster than the Jacobian's norm, which a path's joint travel bounds; so a few samples do.
    """

    body: Body
    limit: float
    samples: int = 8
    name: str = "singularity"

    def _rates(self) -> Array:
        """[n]: how fast the Jacobian's norm changes per radian of each joint, at most (see `_jacobian_derivative`).

        The first joint turns everything alike, which leaves singular values as they are.
        """
        arm = self.body.tcp_reach.copy()
        arm[-1] = np.hypot(*self.body.profile.chain.tcp[:2])
        n = len(arm)
        index = np.arange(n)
        rates = np.sqrt([np.square(arm[np.maximum(i, index)]).sum() + (n - 1 - i) for i in range(n)])
        rates[0] = 0.0
        return rates

    def holds(self, path: Path) -> Bool:
        n, s = path.q.shape[:2]
        pick = np.unique(np.linspace(0, s - 1, min(self.samples, s)).astype(int))
        index = (np.arange(n)[:, None] * s + pick).ravel()
        jac = np.concatenate([path.tcp_jacobian[:, :, index], path.frames.axis[:, :, index]], axis=1)  # [n 6 M]
        gram = jac.transpose(2, 1, 0) @ jac.transpose(2, 0, 1)
        value = np.sqrt(np.maximum(np.linalg.eigvalsh(gram), 0.0)).reshape(n, len(pick), 6)
        walked = np.concatenate([np.zeros((n, 1)), np.cumsum(path.travel @ self._rates(), axis=1)], axis=1)[:, pick]
        change, half = (
            np.zeros((n, len(pick))),
            0.5 * np.diff(walked, axis=1),
        )  # half-way to the next sample, either side
        change[:, :-1] = half
        change[:, 1:] = np.maximum(change[:, 1:], half)
        return (value[..., -1] + change <= self.limit * (value[..., 0] - change)).all(axis=1)

    def rows(self, here: Here) -> Rows | None:
        jac = self._jacobian(here)
        u, value, vt = np.linalg.svd(jac, full_matrices=False)
        floor = value[0] / self.limit
        if value[-1] > 3 * floor:
            return None
        left, right = u[:, -1], vt[-1]
        gradient = np.array([left @ d @ right for d in _jacobian_derivative(here.frames.axis[:, :, 0], jac)])
        return Rows(*here.brake(gradient[None], np.array([value[-1] - 1.1 * floor])))

    def _jacobian(self, here: Here) -> Array:
        """[6 n]."""
        moves = jacobian(here.frames, here.points[self.body.tcp], len(here.q))
        return np.concatenate([moves, here.frames.axis], axis=1)[:, :, 0].T


def _jacobian_derivative(axis: Array, jac: Array) -> Array:
    """[n 6 n]: ∂J/∂qᵢ of a serial arm from its axes [n 3] and its Jacobian [6 n]."""
    n = len(axis)
    out = np.zeros((n, 6, n))
    for i in range(n):
        for k in range(n):
            out[i, :3, k] = np.cross(axis[min(i, k)], jac[:3, max(i, k)])
            if i < k:
                out[i, 3:, k] = np.cross(axis[i], axis[k])
    return out

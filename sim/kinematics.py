"""Forward kinematics, Jacobian and damped-least-squares inverse kinematics of the arm, batched over N.

Each is one compiled loop over arms (numba, cached on disk). One arm of a 1 kHz controller costs microseconds, 512
frames of a batched step a tenth of a millisecond. An arm's numbers are the same bits for any N.
tests/sim/test_kinematics.py checks against mj_forward and mj_jacSite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from robopolicy.sim.arm import PANDA as PANDA_MODEL
from robopolicy.sim.arm_model import ArmModel

Array = NDArray[np.float64]
_DAMPING, _POSTURE = 0.02, 0.1  # λ and the pull of the posture, of `ik_step`


@dataclass(frozen=True, eq=False)
class SerialArm:
    """Frame i = frame i−1 · translation · rotation · Rz(qᵢ); the rotation is Rx(quarter turns), or of `rotations`."""

    quarter_turns: Array  # [n] about x: −1, 0 or 1; unused where there are rotations
    offsets: Array  # [n 3] m
    tool: Array  # [3] m, TCP in the last link's frame
    axes: Array  # [3 3] x, y, z axes of the TCP frame, in the last link's
    home: Array  # [n] rad, to which `ik_step` pulls
    low: Array  # [n] rad
    high: Array
    velocity: Array  # [n] rad/s
    rotations: Array = field(default_factory=lambda: np.empty((0, 3, 3)))  # [n 3 3], or [0 3 3]: quarter turns
    tilt: float = 1.0  # weight of a tool that points down, in `ik_step`

    @property
    def dof(self) -> int:
        """n joints."""
        return len(self.home)


def serial_arm(model: ArmModel) -> SerialArm:
    """Return the kinematics of a simulated arm."""
    return SerialArm(
        np.array([turn if isinstance(turn, int) else 0 for turn, _ in model.frames], dtype=np.float64),
        np.array([pos for _, pos in model.frames], dtype=np.float64),
        model.mount.tcp, model.mount.axes, model.home, model.low, model.high, model.velocity, model.rotations,
        model.tilt,
    )  # fmt: skip


PANDA = serial_arm(PANDA_MODEL)


class Frame(NamedTuple):
    """Tool pose and the geometric Jacobian."""

    pos: Array  # [N 3] m, TCP in the base frame
    axes: Array  # [N 3 3] x, y, z axes of the TCP frame: the fingers open along y, z points out of the hand
    jac: Array  # [N n 6] per joint: linear [m/rad], angular (the unit joint axis)

    def rows(self, index: slice) -> Frame:
        """Views of some of the N frames."""
        return Frame(self.pos[index], self.axes[index], self.jac[index])


def forward(q: Array, arm: SerialArm = PANDA) -> Frame:
    """TCP frame and Jacobian at joint angles `q` [N n] rad."""
    n = q.shape[0]
    frame = Frame(np.empty((n, 3)), np.empty((n, 3, 3)), np.empty((n, arm.dof, 6)))
    _forward(q, arm.quarter_turns, arm.offsets, arm.rotations, arm.tool, arm.axes, *frame)
    return frame


@njit(cache=True, nogil=True)
def _forward(
    q: Array, quarter_turns: Array, offsets: Array, rotations: Array, tool: Array, tool_axes: Array, pos: Array,
    axes: Array, jac: Array,
) -> None:  # fmt: skip
    x, y, z, p, turned = np.empty(3), np.empty(3), np.empty(3), np.empty(3), np.empty(3)
    dof = q.shape[1]
    origin = np.empty((dof, 3))
    for n in range(q.shape[0]):
        x[:], y[:], z[:], p[:] = 0.0, 0.0, 0.0, 0.0
        x[0] = y[1] = z[2] = 1.0
        for i in range(dof):
            s, c, quarter = math.sin(q[n, i]), math.cos(q[n, i]), quarter_turns[i]
            for k in range(3):
                p[k] += offsets[i, 0] * x[k] + offsets[i, 1] * y[k] + offsets[i, 2] * z[k]
            for k in range(3):
                if len(rotations) > 0:
                    r = rotations[i]
                    x[k], y[k], z[k] = (
                        r[0, 0] * x[k] + r[1, 0] * y[k] + r[2, 0] * z[k],
                        r[0, 1] * x[k] + r[1, 1] * y[k] + r[2, 1] * z[k],
                        r[0, 2] * x[k] + r[1, 2] * y[k] + r[2, 2] * z[k],
                    )
                elif quarter != 0.0:  # Rx(±90°) relabels the axes
                    y[k], z[k] = quarter * z[k], -quarter * y[k]
                origin[i, k] = p[k]
                jac[n, i, 3 + k] = z[k]
                turned[k] = c * x[k] + s * y[k]
                y[k] = c * y[k] - s * x[k]
                x[k] = turned[k]
        for k in range(3):
            p[k] += tool[0] * x[k] + tool[1] * y[k] + tool[2] * z[k]
            pos[n, k] = p[k]
            for a in range(3):
                axes[n, a, k] = tool_axes[a, 0] * x[k] + tool_axes[a, 1] * y[k] + tool_axes[a, 2] * z[k]
        for i in range(dof):
            ax, ay, az = jac[n, i, 3], jac[n, i, 4], jac[n, i, 5]
            bx, by, bz = p[0] - origin[i, 0], p[1] - origin[i, 1], p[2] - origin[i, 2]
            jac[n, i, 0], jac[n, i, 1], jac[n, i, 2] = ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx


def yaw_of(frame: Frame) -> Array:
    """Return [N] rad: rotation about the vertical of a gripper that points down; 0 where the fingers open along y."""
    return np.arctan2(frame.axes[:, 0, 1], frame.axes[:, 0, 0])


def twist(frame: Frame, qvel: Array) -> Array:
    """Return [N 6] linear m/s and angular rad/s velocity of the TCP at joint velocities `qvel` [N n]."""
    out = np.empty((qvel.shape[0], 6))
    _twist(frame.jac, qvel, out)
    return out


@njit(cache=True, nogil=True)
def _twist(jac: Array, qvel: Array, out: Array) -> None:
    for n in range(qvel.shape[0]):
        for k in range(6):
            total = 0.0
            for i in range(qvel.shape[1]):
                total += jac[n, i, k] * qvel[n, i]
            out[n, k] = total


def ik_step(
    q: Array, frame: Frame, target_pos: Array, target_yaw: Array, *, dt: float, arm: SerialArm = PANDA
) -> Array:
    """Take one damped-least-squares step from joint targets `q` [N n] towards a tool that points down.

    Minimises |J dq − e|² + λ²|dq − v|², where e is the pose error of the target (position [N 3] m, yaw [N] rad) and
    v = _POSTURE · (home − q) keeps a redundant elbow near home (Nakamura & Hanafusa, 1986, with a posture term).
    The rows of J and e that tilt the tool have the weight `arm.tilt`.
    The step is shortened, direction kept, to the joints' velocity limits over `dt` s, and clipped to joint limits.

    Args:
        frame: `forward(q, arm)`, which the caller has at hand.

    Returns:
        [N n] new joint targets.
    """
    out = np.empty_like(q)
    _ik_step(q, *frame, target_pos, target_yaw, dt, arm.home, arm.low, arm.high, arm.velocity, arm.tilt, out)
    return out


@njit(cache=True, nogil=True)
def _ik_step(
    q: Array, pos: Array, axes: Array, jac: Array, target_pos: Array, target_yaw: Array, dt: float, home: Array,
    low: Array, high: Array, velocity: Array, tilt: float, out: Array,
) -> None:  # fmt: skip
    dof = q.shape[1]
    error, pull, step, wanted = np.empty(6), np.empty(dof), np.empty(dof), np.zeros((3, 3))
    gram, weight, rows = np.empty((6, 6)), np.ones(6), np.empty((dof, 6))
    weight[3] = weight[4] = tilt
    wanted[2, 2] = -1.0
    for n in range(q.shape[0]):
        # Rz(yaw) · diag(1, −1, −1): the axes of a tool that points down
        c, s = math.cos(target_yaw[n]), math.sin(target_yaw[n])
        wanted[0, 0], wanted[0, 1], wanted[1, 0], wanted[1, 1] = c, s, s, -c
        for k in range(3):
            error[k] = target_pos[n, k] - pos[n, k]
            i, j = (k + 1) % 3, (k + 2) % 3
            turn = 0.0
            for a in range(3):
                turn += axes[n, a, i] * wanted[a, j] - axes[n, a, j] * wanted[a, i]
            error[3 + k] = 0.5 * turn * weight[3 + k]  # rotation vector to first order
        for i in range(dof):
            for r in range(6):
                rows[i, r] = weight[r] * jac[n, i, r]
            pull[i] = _POSTURE * (home[i] - q[n, i])
        for r in range(6):
            for i in range(dof):
                error[r] -= rows[i, r] * pull[i]
            for k in range(r + 1):
                total = 0.0
                for i in range(dof):
                    total += rows[i, r] * rows[i, k]
                gram[r, k] = total
            gram[r, r] += _DAMPING**2
        _solve_spd(gram, error)
        fastest = 1.0
        for i in range(dof):
            step[i] = pull[i]
            for r in range(6):
                step[i] += rows[i, r] * error[r]
            fastest = max(fastest, abs(step[i]) / (velocity[i] * dt))
        for i in range(dof):
            out[n, i] = min(max(q[n, i] + step[i] / fastest, low[i]), high[i])


@njit(cache=True, nogil=True)
def _solve_spd(a: Array, b: Array) -> None:
    """b ← a⁻¹ b by Cholesky; the lower triangle of `a` is overwritten by its factor."""
    size = b.shape[0]
    for r in range(size):
        for k in range(r + 1):
            total = a[r, k]
            for m in range(k):
                total -= a[r, m] * a[k, m]
            a[r, k] = math.sqrt(total) if k == r else total / a[k, k]
        for k in range(r):
            b[r] -= a[r, k] * b[k]
        b[r] /= a[r, r]
    for r in range(size - 1, -1, -1):
        for k in range(r + 1, size):
            b[r] -= a[k, r] * b[k]
        b[r] /= a[r, r]

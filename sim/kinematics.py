"""Forward kinematics, Jacobian and damped-least-squares inverse kinematics of the arm, batched over N.

Each is one compiled loop over arms (numba, cached on disk). One arm of a 1 kHz controller costs microseconds, 512
frames of a batched step a tenth of a millisecond. An arm's numbers are the same bits for any N.
tests/sim/test_kinematics.py checks against mj_forward and mj_jacSite.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from robopolicy.sim.arm import DH, FLANGE, HAND_YAW, HOME, JOINT_HIGH, JOINT_LOW, JOINT_VELOCITY, TCP

Array = NDArray[np.float64]
_QUARTER = np.array([row[0] for row in DH], dtype=np.float64)  # [7] rotation about x, in quarter turns
_OFFSET = np.array([row[1] for row in DH])  # [7 3] m
_TOOL = FLANGE + TCP  # m
_DAMPING, _POSTURE = 0.02, 0.1  # λ and the pull of the posture, of `ik_step`
_COS, _SIN = math.cos(HAND_YAW), math.sin(HAND_YAW)


class Frame(NamedTuple):
    """Tool pose and the geometric Jacobian."""

    pos: Array  # [N 3] m, TCP in the base frame
    axes: Array  # [N 3 3] x, y, z axes of the TCP frame: the fingers open along y, z points out of the hand
    jac: Array  # [N 7 6] per joint: linear [m/rad], angular (the unit joint axis)

    def rows(self, index: slice) -> Frame:
        """Views of some of the N frames."""
        return Frame(self.pos[index], self.axes[index], self.jac[index])


def forward(q: Array) -> Frame:
    """TCP frame and Jacobian at joint angles `q` [N 7] rad."""
    n = q.shape[0]
    frame = Frame(np.empty((n, 3)), np.empty((n, 3, 3)), np.empty((n, 7, 6)))
    _forward(q, *frame)
    return frame


@njit(cache=True, nogil=True)
def _forward(q: Array, pos: Array, axes: Array, jac: Array) -> None:
    x, y, z, p, turned = np.empty(3), np.empty(3), np.empty(3), np.empty(3), np.empty(3)
    origin = np.empty((7, 3))
    for n in range(q.shape[0]):
        x[:], y[:], z[:], p[:] = 0.0, 0.0, 0.0, 0.0
        x[0] = y[1] = z[2] = 1.0
        for i in range(7):
            s, c, quarter = math.sin(q[n, i]), math.cos(q[n, i]), _QUARTER[i]
            for k in range(3):
                p[k] += _OFFSET[i, 0] * x[k] + _OFFSET[i, 1] * y[k] + _OFFSET[i, 2] * z[k]
            for k in range(3):
                if quarter != 0.0:  # Rx(±90°) relabels the axes
                    y[k], z[k] = quarter * z[k], -quarter * y[k]
                origin[i, k] = p[k]
                jac[n, i, 3 + k] = z[k]
                turned[k] = c * x[k] + s * y[k]
                y[k] = c * y[k] - s * x[k]
                x[k] = turned[k]
        for k in range(3):
            p[k] += _TOOL * z[k]
            pos[n, k] = p[k]
            axes[n, 0, k] = _COS * x[k] + _SIN * y[k]
            axes[n, 1, k] = _COS * y[k] - _SIN * x[k]
            axes[n, 2, k] = z[k]
        for i in range(7):
            ax, ay, az = jac[n, i, 3], jac[n, i, 4], jac[n, i, 5]
            bx, by, bz = p[0] - origin[i, 0], p[1] - origin[i, 1], p[2] - origin[i, 2]
            jac[n, i, 0], jac[n, i, 1], jac[n, i, 2] = ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx


def yaw_of(frame: Frame) -> Array:
    """Return [N] rad: rotation about the vertical of a gripper that points down; 0 where the fingers open along y."""
    return np.arctan2(frame.axes[:, 0, 1], frame.axes[:, 0, 0])


def twist(frame: Frame, qvel: Array) -> Array:
    """Return [N 6] linear m/s and angular rad/s velocity of the TCP at joint velocities `qvel` [N 7]."""
    out = np.empty((qvel.shape[0], 6))
    _twist(frame.jac, qvel, out)
    return out


@njit(cache=True, nogil=True)
def _twist(jac: Array, qvel: Array, out: Array) -> None:
    for n in range(qvel.shape[0]):
        for k in range(6):
            total = 0.0
            for i in range(7):
                total += jac[n, i, k] * qvel[n, i]
            out[n, k] = total


def ik_step(q: Array, frame: Frame, target_pos: Array, target_yaw: Array, *, dt: float) -> Array:
    """Take one damped-least-squares step from joint targets `q` [N 7] towards a tool that points down.

    Minimises |J dq − e|² + λ²|dq − v|², where e is the pose error of the target (position [N 3] m, yaw [N] rad) and
    v = _POSTURE · (HOME − q) keeps the redundant elbow near HOME (Nakamura & Hanafusa, 1986, with a posture term).
    The step is shortened, direction kept, to the joints' velocity limits over `dt` s, and clipped to joint limits.

    Args:
        frame: `forward(q)`, which the caller has at hand.

    Returns:
        [N 7] new joint targets.
    """
    out = np.empty_like(q)
    _ik_step(q, frame.pos, frame.axes, frame.jac, target_pos, target_yaw, dt, out)
    return out


@njit(cache=True, nogil=True)
def _ik_step(
    q: Array, pos: Array, axes: Array, jac: Array, target_pos: Array, target_yaw: Array, dt: float, out: Array
) -> None:
    error, pull, step, wanted = np.empty(6), np.empty(7), np.empty(7), np.zeros((3, 3))
    gram = np.empty((6, 6))
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
            error[3 + k] = 0.5 * turn  # rotation vector to first order
        for i in range(7):
            pull[i] = _POSTURE * (HOME[i] - q[n, i])
        for r in range(6):
            for i in range(7):
                error[r] -= jac[n, i, r] * pull[i]
            for k in range(r + 1):
                total = 0.0
                for i in range(7):
                    total += jac[n, i, r] * jac[n, i, k]
                gram[r, k] = total
            gram[r, r] += _DAMPING**2
        _solve_spd(gram, error)
        fastest = 1.0
        for i in range(7):
            step[i] = pull[i]
            for r in range(6):
                step[i] += jac[n, i, r] * error[r]
            fastest = max(fastest, abs(step[i]) / (JOINT_VELOCITY[i] * dt))
        for i in range(7):
            out[n, i] = min(max(q[n, i] + step[i] / fastest, JOINT_LOW[i]), JOINT_HIGH[i])


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

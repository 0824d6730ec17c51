"""Forward kinematics, Jacobian and damped-least-squares inverse kinematics of the arm, vectorised over N.

Component-first arrays ([3 N], [7 N]) and elementwise arithmetic: fast in numpy, and the same bits whatever N,
since no sum's order depends on the batch. Checked against mj_forward and mj_jacSite in tests/sim/test_kinematics.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.arm import DH, FLANGE, HAND_YAW, HOME, JOINT_HIGH, JOINT_LOW, JOINT_VELOCITY, TCP

Array = NDArray[np.float64]
_DIAGONAL = np.arange(6)
_COS, _SIN = np.cos(HAND_YAW), np.sin(HAND_YAW)


class Frame(NamedTuple):
    """Tool pose and the geometric Jacobian."""

    pos: Array  # [3 N] m, TCP in the base frame
    axes: Array  # [3 3 N] x, y, z axes of the TCP frame: the fingers open along y, z points out of the hand
    jac: Array  # [7 6 N] per joint: linear [m/rad], angular (the unit joint axis)

    def rows(self, index: slice) -> Frame:
        """Views of some of the N frames."""
        return Frame(self.pos[:, index], self.axes[..., index], self.jac[..., index])


def cross(a: Array, b: Array, out: Array) -> Array:
    """out = a × b over the second-last axis: [... 3 N]."""
    ax, ay, az = a[..., 0, :], a[..., 1, :], a[..., 2, :]
    bx, by, bz = b[..., 0, :], b[..., 1, :], b[..., 2, :]
    np.subtract(ay * bz, az * by, out=out[..., 0, :])
    np.subtract(az * bx, ax * bz, out=out[..., 1, :])
    np.subtract(ax * by, ay * bx, out=out[..., 2, :])
    return out


def forward(q: Array) -> Frame:
    """TCP frame and Jacobian at joint angles `q` [N 7] rad."""
    n = q.shape[0]
    qt = np.ascontiguousarray(q.T)
    cos, sin = np.cos(qt), np.sin(qt)
    jac, origin, axes = np.empty((7, 6, n)), np.empty((7, 3, n)), np.empty((3, 3, n))
    axis = jac[:, 3:]
    # Joint 1 turns the base frame about the vertical.
    x, y, z = np.zeros((3, n)), np.zeros((3, n)), np.zeros((3, n))
    x[0], x[1], y[0], y[1], z[2] = cos[0], sin[0], -sin[0], cos[0], 1.0
    pos = np.zeros((3, n))
    pos[2] = DH[0][1][2]
    origin[0], axis[0] = pos, z
    for i in range(1, 7):
        quarter, (px, py, pz) = DH[i]
        for offset, direction in ((px, x), (py, y), (pz, z)):
            if offset:
                pos = pos + offset * direction
        y, z = (z, -y) if quarter == 1 else (-z, y)  # Rx(±90°) relabels the axes
        origin[i], axis[i] = pos, z
        x, y = cos[i] * x + sin[i] * y, cos[i] * y - sin[i] * x
    pos = pos + (FLANGE + TCP) * z
    axes[0], axes[1], axes[2] = _COS * x + _SIN * y, _COS * y - _SIN * x, z
    cross(axis, pos - origin, out=jac[:, :3])
    return Frame(pos=pos, axes=axes, jac=jac)


def yaw_of(frame: Frame) -> Array:
    """[N] rad: rotation about the vertical of a gripper that points down; 0 where the fingers open along y."""
    return np.arctan2(frame.axes[0, 1], frame.axes[0, 0])


def twist(frame: Frame, qvel: Array) -> Array:
    """[6 N] linear m/s and angular rad/s velocity of the TCP at joint velocities `qvel` [N 7]."""
    return _combine(frame.jac, np.ascontiguousarray(qvel.T))


def _combine(jac: Array, weight: Array) -> Array:
    """Σ_i jac[i] · weight[i] over joints, in a fixed order: [7 6 N], [7 N] -> [6 N]."""
    terms = jac * weight[:, None]
    return (terms[0] + terms[1] + (terms[2] + terms[3])) + (terms[4] + terms[5] + terms[6])


def ik_step(
    q: Array,
    frame: Frame,
    target_pos: Array,
    target_yaw: Array,
    *,
    dt: float,
    home: Array = HOME,
    damping: float = 0.02,
    posture: float = 0.1,
) -> Array:
    """One damped-least-squares step from joint targets `q` [N 7] towards a tool that points down.

    Minimises |J dq − e|² + λ²|dq − v|², where e is the pose error of the target (position [3 N] m, yaw [N] rad) and
    v = posture · (home − q) keeps the redundant elbow near `home` (Nakamura & Hanafusa, 1986, with a posture term).
    The step is shortened, direction kept, to the joints' velocity limits over `dt` s, and clipped to joint limits.

    Args:
        frame: `forward(q)`, which the caller has at hand.

    Returns:
        [N 7] new joint targets.
    """
    n = q.shape[0]
    wanted = np.zeros((3, 3, n))  # Rz(yaw) · diag(1, −1, −1)
    wanted[0, 0], wanted[0, 1] = np.cos(target_yaw), np.sin(target_yaw)
    wanted[1, 0], wanted[1, 1], wanted[2, 2] = wanted[0, 1], -wanted[0, 0], -1.0
    turn = cross(frame.axes, wanted, out=np.empty((3, 3, n)))
    error = np.empty((6, n))
    error[:3] = target_pos - frame.pos
    error[3:] = 0.5 * (turn[0] + turn[1] + turn[2])  # rotation vector to first order

    pull = posture * (home[:, None] - q.T)  # [7 N]
    rhs = error - _combine(frame.jac, pull)
    jac = np.ascontiguousarray(frame.jac.transpose(2, 1, 0))  # [N 6 7]
    gram = jac @ np.ascontiguousarray(frame.jac.transpose(2, 0, 1))
    gram[:, _DIAGONAL, _DIAGONAL] += damping**2
    weight = np.linalg.solve(gram, np.ascontiguousarray(rhs.T)[:, :, None])[:, :, 0].T  # [6 N]
    terms = frame.jac * weight
    step = pull + ((terms[:, 0] + terms[:, 1] + terms[:, 2]) + (terms[:, 3] + terms[:, 4] + terms[:, 5]))
    over = (np.abs(step) * (1 / (JOINT_VELOCITY * dt))[:, None]).max(axis=0)
    step /= np.maximum(over, 1.0)
    return np.clip(q + step.T, JOINT_LOW, JOINT_HIGH)

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
_COS, _SIN = np.cos(HAND_YAW), np.sin(HAND_YAW)


class Frame(NamedTuple):
    """Tool pose and the geometric Jacobian."""

    pos: Array  # [3 N] m, TCP in the base frame
    x: Array  # [3 N] axes of the TCP frame: y is the direction in which the fingers open, z points out of the hand
    y: Array
    z: Array
    jac_pos: Array  # [7 3 N] m/rad
    jac_rot: Array  # [7 3 N] unit joint axes


def cross(a: Array, b: Array) -> Array:
    """a × b over the second-last axis: [... 3 N]."""
    out = np.empty(np.broadcast_shapes(a.shape, b.shape))
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
    x, y, z = (np.repeat(np.eye(3)[:, i : i + 1], n, axis=1) for i in range(3))
    pos = np.zeros((3, n))
    origin, axis = np.empty((7, 3, n)), np.empty((7, 3, n))
    for i, (quarter, (px, py, pz)) in enumerate(DH):
        if px:
            pos = pos + px * x
        if py:
            pos = pos + py * y
        if pz:
            pos = pos + pz * z
        if quarter == 1:  # Rx(90°) relabels the axes
            y, z = z, -y
        elif quarter == -1:
            y, z = -z, y
        origin[i], axis[i] = pos, z
        x, y = cos[i] * x + sin[i] * y, cos[i] * y - sin[i] * x
    pos = pos + (FLANGE + TCP) * z
    x, y = _COS * x + _SIN * y, _COS * y - _SIN * x
    return Frame(pos=pos, x=x, y=y, z=z, jac_pos=cross(axis, pos - origin), jac_rot=axis)


def yaw_of(frame: Frame) -> Array:
    """[N] rad: rotation about the vertical of a gripper that points down; 0 where the fingers open along y."""
    return np.arctan2(frame.x[1], frame.x[0])


def twist(frame: Frame, qvel: Array) -> tuple[Array, Array]:
    """Linear [3 N] m/s and angular [3 N] rad/s velocity of the TCP at joint velocities `qvel` [N 7]."""
    rate = np.ascontiguousarray(qvel.T)
    linear, angular = frame.jac_pos[0] * rate[0], frame.jac_rot[0] * rate[0]
    for i in range(1, 7):
        linear += frame.jac_pos[i] * rate[i]
        angular += frame.jac_rot[i] * rate[i]
    return linear, angular


def ik_step(
    q: Array,
    target_pos: Array,
    target_yaw: Array,
    *,
    dt: float,
    home: Array = HOME,
    damping: float = 0.02,
    posture: float = 0.1,
) -> Array:
    """One damped-least-squares step from joint targets `q` [N 7] towards a tool that points down.

    Minimises |J dq − e|² + λ²|dq − v|², where e is the pose error of the target (position [3 N], yaw [N]) and
    v = posture · (home − q) keeps the redundant elbow near `home` (Nakamura & Hanafusa, 1986, with a posture term).
    The step is shortened, direction kept, to the joints' velocity limits over `dt` s, and clipped to joint limits.
    Returns new joint targets [N 7].
    """
    frame = forward(q)
    cos, sin = np.cos(target_yaw), np.sin(target_yaw)
    zero = np.zeros_like(cos)
    # Desired axes: Rz(yaw) · diag(1, −1, −1). The rotation error is half the sum of crossed axes.
    rot = cross(frame.x, np.stack([cos, sin, zero]))
    rot += cross(frame.y, np.stack([sin, -cos, zero]))
    rot += cross(frame.z, np.stack([zero, zero, zero - 1.0]))
    error = np.concatenate([target_pos - frame.pos, 0.5 * rot])  # [6 N]

    jac = np.concatenate([frame.jac_pos, frame.jac_rot], axis=1)  # [7 6 N]
    pull = posture * (home[:, None] - q.T)  # [7 N]
    rhs = error
    for i in range(7):
        rhs = rhs - jac[i] * pull[i]
    jac_n = np.ascontiguousarray(jac.transpose(2, 1, 0))  # [N 6 7]
    gram = jac_n @ np.ascontiguousarray(jac_n.transpose(0, 2, 1))
    gram[:, np.arange(6), np.arange(6)] += damping**2
    weight = np.linalg.solve(gram, np.ascontiguousarray(rhs.T)[:, :, None])[:, :, 0].T  # [6 N]
    step = pull
    for k in range(6):
        step = step + jac[:, k] * weight[k]
    limit = (JOINT_VELOCITY * dt)[:, None]
    step = step / np.maximum(1.0, (np.abs(step) / limit).max(axis=0))
    return np.clip(q + step.T, JOINT_LOW, JOINT_HIGH)

"""Forward kinematics of a serial arm of revolute joints, and points that ride on its links. One compiled loop each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from robopolicy.real.safety.array_ops import Array, Ints


@dataclass(frozen=True, eq=False)
class KinematicChain:
    """Frame i = frame i−1 · translation · rotation · Rz(qᵢ). Link 0 is the base, link i turns with joint i.

    The rotation is Rx(quarter turns), which costs no product, or the matrix of `rotations`.
    """

    offsets: Array  # [n 3] m
    quarter_turns: Array  # [n] quarter turns about x: −1, 0 or 1; unused where there are rotations
    tcp: Array  # [3] m, in the last link's frame
    rotations: Array = field(default_factory=lambda: np.empty((0, 3, 3)))  # [n 3 3], or [0 3 3]: quarter turns


class Pose(NamedTuple):
    """M poses of an arm. Joint i sits at the origin of link i and turns about its z axis."""

    frames: Array  # [M L 4 3] origin [m], x, y and z axis of each of L = n + 1 links
    points: Array  # [M R 3] m, the last of them on the last link
    jacobian: Array  # [M n 6] of the last point, per joint, linear [m/rad] and angular


def pose(chain: KinematicChain, q: Array, links: Ints, local: Array) -> Pose:
    """At joint angles `q` [M n] rad, with the points `local` [R 3] m in the frames of `links` [R]."""
    m, n = q.shape
    found = Pose(np.empty((m, n + 1, 4, 3)), np.empty((m, len(links), 3)), np.empty((m, n, 6)))
    _pose(q, chain.offsets, chain.quarter_turns, chain.rotations, links, local, found)
    return found


@njit(cache=True, nogil=True)
def _pose(
    q: Array, offsets: Array, quarter_turns: Array, rotations: Array, links: Ints, local: Array, found: Pose
) -> None:
    frames, points, jacobian = found
    for m in range(q.shape[0]):
        _forward(q[m], offsets, quarter_turns, rotations, frames[m])
        for r in range(links.shape[0]):
            frame = frames[m, links[r]]
            for k in range(3):
                points[m, r, k] = (
                    frame[0, k] + local[r, 0] * frame[1, k] + local[r, 1] * frame[2, k] + local[r, 2] * frame[3, k]
                )
        _jacobian(frames[m], points[m, links.shape[0] - 1], jacobian[m])


@njit(cache=True, nogil=True)
def _forward(q: Array, offsets: Array, quarter_turns: Array, rotations: Array, frames: Array) -> None:
    frames[0] = 0.0
    frames[0, 1, 0] = frames[0, 2, 1] = frames[0, 3, 2] = 1.0
    for i in range(q.shape[0]):
        last, this = frames[i], frames[i + 1]
        s, c, turn = math.sin(q[i]), math.cos(q[i]), quarter_turns[i]
        for k in range(3):
            x, y, z = last[1, k], last[2, k], last[3, k]
            this[0, k] = last[0, k] + offsets[i, 0] * x + offsets[i, 1] * y + offsets[i, 2] * z
            if len(rotations) > 0:
                r = rotations[i]
                x, y, z = (
                    r[0, 0] * x + r[1, 0] * y + r[2, 0] * z,
                    r[0, 1] * x + r[1, 1] * y + r[2, 1] * z,
                    r[0, 2] * x + r[1, 2] * y + r[2, 2] * z,
                )
            elif turn != 0.0:  # Rx(±90°) relabels the axes
                y, z = turn * z, -turn * y
            this[1, k] = c * x + s * y
            this[2, k] = c * y - s * x
            this[3, k] = z


@njit(cache=True, nogil=True)
def _jacobian(frames: Array, point: Array, out: Array) -> None:
    for i in range(out.shape[0]):
        origin, axis = frames[i + 1, 0], frames[i + 1, 3]
        x, y, z = point[0] - origin[0], point[1] - origin[1], point[2] - origin[2]
        out[i, 0] = axis[1] * z - axis[2] * y
        out[i, 1] = axis[2] * x - axis[0] * z
        out[i, 2] = axis[0] * y - axis[1] * x
        for k in range(3):
            out[i, 3 + k] = axis[k]


def rotation(rpy: ArrayLike) -> Array:
    """Return [… 3 3] of fixed-axis roll, pitch and yaw [… 3] rad: Rz(yaw) · Ry(pitch) · Rx(roll), as URDF has them."""
    r, p, y = np.moveaxis(np.asarray(rpy, dtype=np.float64), -1, 0)
    (sr, sp, sy), (cr, cp, cy) = (np.sin(r), np.sin(p), np.sin(y)), (np.cos(r), np.cos(p), np.cos(y))
    rows = (
        (cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr),
        (sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr),
        (-sp, cp * sr, cp * cr),
    )
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def reach(chain: KinematicChain, links: Sequence[int], local: Array) -> Array:
    """Bound [R n] m the distance of point r from the axis of joint i; 0 where the joint does not move it."""
    n = len(chain.offsets)
    lengths = np.linalg.norm(chain.offsets, axis=1)  # from link i−1 to link i
    out = np.zeros((len(links), n))
    for r, link in enumerate(links):
        for i in range(link):
            out[r, i] = np.linalg.norm(local[r]) + lengths[i + 1 : link].sum()
    return out

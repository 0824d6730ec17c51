"""Forward kinematics of a serial arm of revolute joints, and points that ride on its links. One compiled loop each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Chain:
    """Frame i = frame i−1 · translation · Rx(quarter turns) · Rz(qᵢ). Link 0 is the base, link i turns with joint i."""

    offsets: Array  # [n 3] m
    turns: tuple[int, ...]  # [n] quarter turns about x: −1, 0 or 1
    tcp: Array  # [3] m, in the last link's frame

    @cached_property
    def _turns(self) -> Array:
        return np.array(self.turns, dtype=np.float64)

    def forward(self, q: Array) -> Array:
        """Link frames [M L 4 3] at joint angles `q` [M n] rad: origin [m], x, y and z axis of each of L = n + 1 links.

        Joint i sits at the origin of link i and turns about its z axis.
        """
        frames = np.empty((len(q), len(self.turns) + 1, 4, 3))
        _forward(q, self.offsets, self._turns, frames)
        return frames


@njit(cache=True, nogil=True)
def _forward(q: Array, offsets: Array, turns: Array, frames: Array) -> None:
    for m in range(q.shape[0]):
        frames[m, 0] = 0.0
        frames[m, 0, 1, 0] = frames[m, 0, 2, 1] = frames[m, 0, 3, 2] = 1.0
        for i in range(q.shape[1]):
            last, this = frames[m, i], frames[m, i + 1]
            s, c, turn = math.sin(q[m, i]), math.cos(q[m, i]), turns[i]
            for k in range(3):
                x, y, z = last[1, k], last[2, k], last[3, k]
                this[0, k] = last[0, k] + offsets[i, 0] * x + offsets[i, 1] * y + offsets[i, 2] * z
                if turn != 0.0:  # Rx(±90°) relabels the axes
                    y, z = turn * z, -turn * y
                this[1, k] = c * x + s * y
                this[2, k] = c * y - s * x
                this[3, k] = z


def place(frames: Array, links: Ints, local: Array) -> Array:
    """[M R 3] m: positions of the points `local` [R 3] m in the frames of `links` [R], at `frames` [M L 4 3]."""
    points = np.empty((len(frames), len(links), 3))
    _place(frames, links, local, points)
    return points


@njit(cache=True, nogil=True)
def _place(frames: Array, links: Ints, local: Array, points: Array) -> None:
    for m in range(frames.shape[0]):
        for r in range(links.shape[0]):
            frame = frames[m, links[r]]
            for k in range(3):
                points[m, r, k] = (
                    frame[0, k] + local[r, 0] * frame[1, k] + local[r, 1] * frame[2, k] + local[r, 2] * frame[3, k]
                )


def jacobian(frames: Array, points: Array, links: Ints) -> Array:
    """[M n 6] per joint, linear [m/rad] and angular: of one point `points` [M 3] m on link `links` [M] at each pose."""
    out = np.empty((len(frames), frames.shape[1] - 1, 6))
    _jacobian(frames, points, links, out)
    return out


@njit(cache=True, nogil=True)
def _jacobian(frames: Array, points: Array, links: Ints, out: Array) -> None:
    for m in range(frames.shape[0]):
        for i in range(out.shape[1]):
            origin, axis, row = frames[m, i + 1, 0], frames[m, i + 1, 3], out[m, i]
            row[:] = 0.0
            if i < links[m]:
                x, y, z = points[m, 0] - origin[0], points[m, 1] - origin[1], points[m, 2] - origin[2]
                row[0] = axis[1] * z - axis[2] * y
                row[1] = axis[2] * x - axis[0] * z
                row[2] = axis[0] * y - axis[1] * x
                row[3:] = axis


def gradients(frames: Array, points: Array, links: Ints, normals: Array) -> Array:
    """[m n] m/rad: how `points` [m 3] on `links` [m] move along `normals` [m 3] by joint, at one pose [L 4 3]."""
    out = np.zeros((len(points), len(frames) - 1))
    _gradients(frames, points, links, normals, out)
    return out


@njit(cache=True, nogil=True)
def _gradients(frames: Array, points: Array, links: Ints, normals: Array, out: Array) -> None:
    for r in range(points.shape[0]):
        for i in range(links[r]):
            origin, axis = frames[i + 1, 0], frames[i + 1, 3]
            for k in range(3):
                j, l = (k + 1) % 3, (k + 2) % 3
                turned = axis[j] * (points[r, l] - origin[l]) - axis[l] * (points[r, j] - origin[j])
                out[r, i] += normals[r, k] * turned


def reach(chain: Chain, links: Sequence[int], local: Array) -> Array:
    """[R n] m: no point r is ever farther from the axis of joint i than this; 0 where the joint does not move it."""
    n = len(chain.turns)
    lengths = np.linalg.norm(chain.offsets, axis=1)  # from link i−1 to link i
    out = np.zeros((len(links), n))
    for r, link in enumerate(links):
        for i in range(link):
            out[r, i] = np.linalg.norm(local[r]) + lengths[i + 1 : link].sum()
    return out

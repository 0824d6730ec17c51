"""Forward kinematics of a serial arm of revolute joints, and which points ride on which link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Frames:
    """Link frames at M poses. Link 0 is the base, link i turns with joint i."""

    rows: Array  # [L 4 3 M]: origin [m], x, y and z axis of each of the L = n + 1 links

    @property
    def origin(self) -> Array:
        """[n 3 M] m, of the joints."""
        return self.rows[1:, 0]

    @property
    def axis(self) -> Array:
        """[n 3 M] unit vectors about which the joints turn."""
        return self.rows[1:, 3]


@dataclass(frozen=True, eq=False)
class Chain:
    """Frame i = frame i−1 · translation · Rx(quarter turns) · Rz(qᵢ)."""

    offsets: Array  # [n 3] m
    turns: tuple[int, ...]  # [n] quarter turns about x: −1, 0 or 1
    tcp: Array  # [3] m, in the last link's frame

    def forward(self, q: Array) -> Frames:
        """Frames at joint angles `q` [M n] rad."""
        m = len(q)
        rows = np.zeros((len(self.turns) + 1, 4, 3, m))
        rows[0, 1, 0] = rows[0, 2, 1] = rows[0, 3, 2] = 1.0
        qt = np.ascontiguousarray(q.T)
        cos, sin = np.cos(qt), np.sin(qt)
        origin, x, y, z = rows[0]
        for i, turn in enumerate(self.turns):
            px, py, pz = self.offsets[i].tolist()
            for offset, direction in ((px, x), (py, y), (pz, z)):
                if offset:
                    origin = origin + offset * direction
            if turn:
                y, z = (z, -y) if turn == 1 else (-z, y)
            frame = rows[i + 1]
            frame[0], frame[3] = origin, z
            frame[1] = cos[i] * x + sin[i] * y
            frame[2] = cos[i] * y - sin[i] * x
            origin, x, y, z = frame
        return Frames(rows)


@dataclass(frozen=True, eq=False)
class Points:
    """R points fixed to links: one product gives their positions at all poses."""

    links: tuple[int, ...]  # [R]
    weights: Array  # [R 4L]

    @classmethod
    def of(cls, chain: Chain, links: Sequence[int], local: Array) -> Points:
        """`local` [R 3] m in the frames of `links` [R]."""
        weights = np.zeros((len(links), len(chain.turns) + 1, 4))
        for r, link in enumerate(links):
            weights[r, link] = (1.0, *local[r])
        return cls(tuple(links), weights.reshape(len(links), -1))

    def at(self, frames: Frames) -> Array:
        """[R 3 M] m."""
        rows = frames.rows
        return (self.weights @ rows.reshape(self.weights.shape[1], -1)).reshape(-1, 3, rows.shape[3])


def jacobian(frames: Frames, point: Array, link: int) -> Array:
    """[n 3 M] m/rad: velocity of `point` [3 M] on `link` per joint velocity."""
    arm = point[None] - frames.origin
    ax, ay, az = frames.axis[:, 0], frames.axis[:, 1], frames.axis[:, 2]
    out = np.stack(
        [ay * arm[:, 2] - az * arm[:, 1], az * arm[:, 0] - ax * arm[:, 2], ax * arm[:, 1] - ay * arm[:, 0]], axis=1
    )
    out[link:] = 0.0
    return out


def reach(chain: Chain, links: Sequence[int], local: Array) -> Array:
    """[R n] m: no point r is ever farther from the axis of joint i than this; 0 where the joint does not move it."""
    n = len(chain.turns)
    lengths = np.linalg.norm(chain.offsets, axis=1)  # from link i−1 to link i
    out = np.zeros((len(links), n))
    for r, link in enumerate(links):
        for i in range(link):
            out[r, i] = np.linalg.norm(local[r]) + lengths[i + 1 : link].sum()
    return out

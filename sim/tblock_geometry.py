"""Geometry of the T of Push-T: its shape, its coverage of a target, and its contact points.

All lengths in m, all in the T's own frame unless said otherwise: origin at its centre of mass, bar along x, stem
towards -y. The bar is 4 x 1 units, the stem 1 x 3 units, as in gym-pusht (Chi et al., Diffusion Policy, 2023).
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_COM = 6 / 7  # units from the bar's middle to the centre of mass, towards the stem
_RECTS = ((0.0, 0.0, 2.0, 0.5), (0.0, -2.0, 0.5, 1.5))  # units: centre x, y and half sizes of bar and stem
_CORNERS = ((2, 0.5), (-2, 0.5), (-2, -0.5), (-0.5, -0.5), (-0.5, -3.5), (0.5, -3.5), (0.5, -0.5), (2, -0.5))  # CCW
_CONCAVE = (3, 6)  # corners where stem and bar meet
DRAG_RADIUS = 1.465  # units: root mean square distance of the area from the centre of mass


def rotate(v: Array, angle: Array) -> Array:
    """Return [M 2] vectors `v` turned by `angle` [M] rad."""
    c, s = np.cos(angle), np.sin(angle)
    return np.stack([c * v[:, 0] - s * v[:, 1], s * v[:, 0] + c * v[:, 1]], axis=1)


def _inside(p: Array, d: Array, half: Array) -> Array:
    """Return the share of each segment p + t·d, t in [0, 1], that lies in the box |x| <= half (Liang-Barsky).

    `p`, `d` [2 4 P M], `half` [2 1 P 1]; returns [4 P M].
    """
    d = np.where(np.abs(d) < 1e-12, 1e-12, d)
    a, b = (-half - p) / d, (half - p) / d
    low, high = np.minimum(a, b), np.maximum(a, b)
    enter = np.maximum(np.maximum(low[0], low[1]), 0.0)
    leave = np.minimum(np.minimum(high[0], high[1]), 1.0)
    return np.maximum(leave - enter, 0.0)


class Contacts(NamedTuple):
    """K contact points for a push."""

    point: Array  # [K 2] m on the outline
    normal: Array  # [K 2] outward
    slide: Array  # [K 2] m of motion of the T per m of pushing
    spin: Array  # [K] rad per m
    ring: NDArray[np.int64]  # [K] nearest ring sample


class TBlockGeometry:
    """A T of the given `unit` (the bar's width), pushed by a round stick of radius `tool`, both in m.

    The stick travels around on a ring `margin` m clear of the outline.
    """

    def __init__(self, unit: float, *, tool: float = 0.012, margin: float = 0.015) -> None:
        self.unit, self.tool, self.margin = unit, tool, margin
        self.boxes = tuple((x * unit, (y + _COM) * unit, a * unit, b * unit) for x, y, a, b in _RECTS)
        self.radius = DRAG_RADIUS * unit
        self.corners = (np.array(_CORNERS) + [0, _COM]) * unit  # [8 2]
        self.reach = float(np.sqrt((self.corners**2).sum(axis=1)).max())  # m, to the farthest corner
        # A turn by 1 rad uncovers as much of the target as a shift by this many m (half the outline's |tangent · r|
        # integrated, over that of a shift).
        self.turn_length = 2.1 * unit

    def coverage(self, offset: Array, turn: Array) -> Array:
        """Return the covered part [M] of the target, in [0, 1], by a T at `offset` [M 2] m and `turn` [M] rad from it.

        `offset` is in the target's frame. Exact, by Green's theorem over the clipped outlines of both shapes' boxes.
        """
        bar, stem = self.boxes
        first, second = np.array([bar, bar, stem, stem]).T, np.array([bar, stem, bar, stem]).T  # [4 P], every pair
        back = rotate(-offset, -turn).T  # [2 M] the target's origin as the T sees it
        cos, sin = np.cos(turn), np.sin(turn)
        x, y = second[0][:, None], second[1][:, None]
        centre = np.stack([back[0] + cos * x + sin * y, back[1] + cos * y - sin * x]) - first[:2, :, None]  # [2 P M]
        area = _overlap(first[2:, :, None], second[2:, :, None], centre, -turn)
        return np.clip(((area[0] + area[1]) + (area[2] + area[3])) / (7 * self.unit**2), 0.0, 1.0)

    @cached_property
    def ring(self) -> Array:
        """Return [R 2] points, 5 mm or so apart, around the outline at the distance of a stick that clears it."""
        r, points = self.tool + self.margin, []
        for i, corner in enumerate(self.corners):
            before, after = self._normal(i - 1), self._normal(i)
            if i in _CONCAVE:
                points.append(corner + r * (before + after))
            else:
                for w in np.linspace(0, np.pi / 2, 8):
                    points.append(corner + r * (np.cos(w) * before + np.sin(w) * after))
        loop = np.array([*points, points[0]])
        length = np.concatenate([[0], np.cumsum(np.sqrt((np.diff(loop, axis=0) ** 2).sum(axis=1)))])
        at = np.linspace(0, length[-1], int(length[-1] / 0.005), endpoint=False)
        return np.stack([np.interp(at, length, loop[:, k]) for k in range(2)], axis=1)

    def _normal(self, i: int) -> Array:
        """Return [2] outward normal of the edge from corner i to the next."""
        d = self.corners[(i + 1) % 8] - self.corners[i % 8]
        return np.array([d[1], -d[0]]) / np.abs(d).sum()

    @cached_property
    def contacts(self) -> Contacts:
        """Places half a unit apart on all edges, away from corners that the stick would slip off or jam in.

        A push along the normal moves the T as an ellipsoidal limit surface says (Goyal, Ruina, Papadopoulos, 1991):
        twist ∝ (force, torque / c²) with c the friction radius.
        """
        point, normal = [], []
        for i in range(8):
            start, end = self.corners[i], self.corners[(i + 1) % 8]
            length = np.abs(end - start).sum()
            jam, slip = self.tool + 0.004, 0.2 * self.unit
            low = jam if i in _CONCAVE else slip
            high = length - (jam if (i + 1) % 8 in _CONCAVE else slip)
            count = int((high - low) / (0.5 * self.unit)) + 1
            for along in np.linspace(low, high, count):
                point.append(start + along * (end - start) / length)
                normal.append(self._normal(i))
        p, n = np.array(point), np.array(normal)
        arm = -(p[:, 0] * n[:, 1] - p[:, 1] * n[:, 0]) / self.radius
        k = 1 / (1 + arm**2)
        clear = p + (self.tool + self.margin) * n
        return Contacts(p, n, -k[:, None] * n, k * arm / self.radius, self.nearest(clear)[0])

    def nearest(self, point: Array) -> tuple[NDArray[np.int64], Array]:
        """Ring samples [M] nearest to `point` [M 2], and their distances [M] m."""
        gap = (point[:, None, 0] - self.ring[:, 0]) ** 2 + (point[:, None, 1] - self.ring[:, 1]) ** 2
        index = gap.argmin(axis=1)
        return index, np.sqrt(gap[np.arange(len(point)), index])

    def best(self, shift: Array, turn: Array, which: NDArray[np.int64] | None = None) -> tuple[Array, Array]:
        """Return the push length at each contact, and the remaining error.

        Args:
            shift: [M 2] m and turn: [M] rad that the T still has to make.
            which: [M k] contacts to consider; None: all K.

        Returns:
            [M K] m to push, 0 where it does not help; [M K] m left, turns counted in `turn_length`.
        """
        c = self.contacts
        slide = c.slide[None] if which is None else c.slide[which]  # [1|M K 2]
        spin = c.spin[None] if which is None else c.spin[which]
        length = np.concatenate([[0.0], np.geomspace(0.001, 0.12, 24)])  # [S]
        angle = spin[..., None] * length
        # The body twist (slide, spin) held for `length`: the chord turns by half the angle and is shortened.
        chord = length * np.sinc(angle / (2 * np.pi))
        cos, sin = np.cos(angle / 2), np.sin(angle / 2)
        x = shift[:, 0, None, None] - chord * (slide[..., 0, None] * cos - slide[..., 1, None] * sin)
        y = shift[:, 1, None, None] - chord * (slide[..., 0, None] * sin + slide[..., 1, None] * cos)
        left = np.sqrt(x * x + y * y + (self.turn_length * (turn[:, None, None] - angle)) ** 2)
        s = left.argmin(axis=2)
        return length[s], np.take_along_axis(left, s[..., None], axis=2)[..., 0]


def _overlap(a: Array, b: Array, centre: Array, turn: Array) -> Array:
    """Return [P M] m²: common area of boxes at the origin and boxes at `centre` turned by `turn`.

    `a`, `b` [2 P 1] half sizes of either, `centre` [2 P M], `turn` [M] rad.

    Green's theorem: half the sum of p × d over the parts of each outline's edges that lie inside the other box.
    """
    # Coinciding edges would count twice or not at all: shift and turn by a tenth of a micrometre.
    turn, x, y = turn + 1e-7, centre[0] + 1e-7, centre[1] + 0.7e-7
    corner = np.array([[-1.0, 1, 1, -1], [-1, -1, 1, 1]])[:, :, None, None]  # anticlockwise
    (ax, ay), (bx, by) = corner * a[:, None], corner * b[:, None]  # [4 P 1]
    cos, sin = np.cos(turn), np.sin(turn)
    of_b = np.stack([x + cos * bx - sin * by, y + sin * bx + cos * by])  # [2 4 P M]
    ux, uy = ax - x, ay - y
    of_a = np.stack([cos * ux + sin * uy, cos * uy - sin * ux])  # seen from the second box
    ahead = [1, 2, 3, 0]  # each edge goes from a corner to the next
    along_b, along_a = of_b[:, ahead] - of_b, of_a[:, ahead] - of_a
    sweep = _inside(of_b, along_b, a[:, None]) * (of_b[0] * along_b[1] - of_b[1] * along_b[0])
    sweep += _inside(of_a, along_a, b[:, None]) * (2 * a[0] * a[1])  # p × d of the first box's edges
    return 0.5 * ((sweep[0] + sweep[1]) + (sweep[2] + sweep[3]))  # added in an order that does not depend on M

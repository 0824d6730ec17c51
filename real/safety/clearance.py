"""Distances that links keep: from planes and boxes of the scene, and from one another, by capsules and spheres."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from real.safety.body import Body
from real.safety.geometry import box_distance, segment_segment
from real.safety.kinematics import jacobian
from real.safety.limits import EXTRA, NEAR, Rows
from real.safety.path import Array, Bool, Here, Path
from real.safety.profile import Box, Plane


@dataclass(frozen=True, eq=False)
class Planes:
    """Capsules stay `distance` [m] off half-spaces."""

    body: Body
    planes: tuple[Plane, ...]
    distance: float
    name: str = "planes"

    def _room(self, points: Array) -> Array:
        """[planes 2·C M] m, of both ends of each capsule."""
        b, size = self.body, len(self.body.radius)
        index = np.concatenate([b.scene, b.scene + size])
        normal, offset = np.array([p.normal for p in self.planes]), np.array([p.offset for p in self.planes])
        height = np.einsum("pk,ckm->pcm", normal, points[index])
        return height - offset[:, None, None] - (b.radius[index % size] + self.distance)[:, None]

    def holds(self, path: Path) -> Bool:
        room, size = self._room(path.points), len(self.body.radius)
        reach = self.body.reach[np.concatenate([self.body.scene, self.body.scene + size])]
        return np.all([path.between(r, reach).min(axis=0) >= 0 for r in room], axis=0)

    def rows(self, here: Here) -> Rows | None:
        room, b = self._room(here.points)[..., 0], self.body
        index = np.concatenate([b.scene, b.scene + len(b.radius)])
        near = np.argwhere(room < NEAR)
        if not len(near):
            return None
        gradient = [
            np.array(self.planes[p].normal) @ jacobian(here.frames, here.points[index[c]], b.links[index[c]])[:, :, 0].T
            for p, c in near
        ]
        return Rows(*here.brake(np.array(gradient), room[near[:, 0], near[:, 1]] - EXTRA))


@dataclass(frozen=True, eq=False)
class KeepOut:
    """Links stay `distance` [m] off boxes; spheres that cover the capsules stand for them."""

    body: Body
    boxes: tuple[Box, ...]
    distance: float
    name: str = "keep_out"

    def _room(self, points: Array, box: Box) -> Array:
        d = box_distance(points[self.body.spheres], np.array(box.low), np.array(box.high))
        return d - (self.body.sphere_radius + self.distance)[:, None]

    def holds(self, path: Path) -> Bool:
        reach = self.body.reach[self.body.spheres]
        return np.all([path.between(self._room(path.points, b), reach).min(axis=0) >= 0 for b in self.boxes], axis=0)

    def rows(self, here: Here) -> Rows | None:
        gradients, rooms = [], []
        for box in self.boxes:
            room = self._room(here.points, box)[:, 0]
            for r in np.flatnonzero(room < NEAR) + self.body.spheres.start:
                point = here.points[r, :, 0]
                away = point - np.clip(point, box.low, box.high)
                if (size := np.linalg.norm(away)) > 1e-9:
                    jac = jacobian(here.frames, here.points[r], self.body.links[r])[:, :, 0].T
                    gradients.append(away / size @ jac)
                    rooms.append(room[r - self.body.spheres.start] - EXTRA)
        return Rows(*here.brake(np.array(gradients), np.array(rooms))) if gradients else None


@dataclass(frozen=True, eq=False)
class SelfCollision:
    """Capsules of links that are not neighbours stay `distance` [m] apart."""

    body: Body
    distance: float
    name: str = "self_collision"

    def holds(self, path: Path) -> Bool:
        (i, j), b, p = self.body.pairs, self.body, path.points
        size = len(b.radius)
        gap = segment_segment(p[i], p[i + size], p[j], p[j + size]).distance
        room = gap - (b.radius[i] + b.radius[j] + self.distance)[:, None]
        return np.asarray((path.between(room, b.pair_reach) >= 0).all(axis=0))

    def rows(self, here: Here) -> Rows | None:
        (i, j), b, p = self.body.pairs, self.body, here.points
        size = len(b.radius)
        near = segment_segment(p[i], p[i + size], p[j], p[j + size])
        room = near.distance[:, 0] - (b.radius[i] + b.radius[j] + self.distance)
        found = np.flatnonzero(room < NEAR)
        if not len(found):
            return None
        gradients = []
        for k in found:
            first, second = near.first[k], near.second[k]
            normal = (second - first)[:, 0] / max(float(near.distance[k, 0]), 1e-9)
            moves = jacobian(here.frames, second, b.links[j[k]]) - jacobian(here.frames, first, b.links[i[k]])
            gradients.append(normal @ moves[:, :, 0].T)
        return Rows(*here.brake(np.array(gradients), room[found] - EXTRA))

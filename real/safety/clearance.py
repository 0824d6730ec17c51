"""Distances that links keep: from planes and boxes of the scene, and from one another, by capsules and spheres."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from real.safety.body import Body
from real.safety.geometry import box_distance, plane_distance, segment_distance, segment_segment
from real.safety.kinematics import gradients
from real.safety.limits import EXTRA, NEAR, Rows
from real.safety.path import Array, Here, Ints, Path
from real.safety.profile import Box, Plane


@dataclass(frozen=True, eq=False)
class Planes:
    """Capsules stay `distance` [m] off half-spaces."""

    body: Body
    planes: tuple[Plane, ...]
    distance: float
    name: str = "planes"

    @cached_property
    def _rows(self) -> Ints:
        """[2C] both ends of each capsule."""
        return np.concatenate([self.body.scene, self.body.scene + len(self.body.radius)])

    @cached_property
    def _normals(self) -> Array:
        return np.array([p.normal for p in self.planes], dtype=np.float64)

    @cached_property
    def _offsets(self) -> Array:
        return np.array([p.offset for p in self.planes], dtype=np.float64)

    @cached_property
    def _least(self) -> Array:
        """[2C] m of an axis' ends from a plane."""
        return self.body.radius[self._rows % len(self.body.radius)] + self.distance

    @cached_property
    def _reach(self) -> Array:
        return np.tile(self.body.reach[self._rows], (len(self.planes), 1))

    def _room(self, points: Array) -> Array:
        """[M planes·2C] m."""
        height = plane_distance(points, self._rows, self._normals, self._offsets)
        return (height - self._least).reshape(len(points), -1)

    def margin(self, path: Path) -> Array:
        return path.between(self._room(path.points), self._reach)

    def rows(self, here: Here) -> Rows | None:
        room = self._room(here.points[None])[0]
        if not len(near := np.flatnonzero(room < NEAR)):
            return None
        plane, index = near // len(self._rows), self._rows[near % len(self._rows)]
        moves = gradients(here.frames, here.points[index], self.body.links[index], self._normals[plane])
        return Rows(*here.brake(moves, room[near] - EXTRA))


@dataclass(frozen=True, eq=False)
class KeepOut:
    """Links stay `distance` [m] off boxes; spheres that cover the capsules stand for them."""

    body: Body
    boxes: tuple[Box, ...]
    distance: float
    name: str = "keep_out"

    @cached_property
    def _bounds(self) -> list[tuple[Array, Array]]:
        return [(np.array(b.low, dtype=np.float64), np.array(b.high, dtype=np.float64)) for b in self.boxes]

    @cached_property
    def _least(self) -> Array:
        """[spheres] m of a centre from a box."""
        return self.body.sphere_radius + self.distance

    @cached_property
    def _reach(self) -> Array:
        return self.body.reach[self.body.spheres]

    def _room(self, points: Array, low: Array, high: Array) -> Array:
        """[M spheres] m."""
        return box_distance(points, self.body.spheres, low, high) - self._least

    def margin(self, path: Path) -> Array:
        room = [path.between(self._room(path.points, *b), self._reach) for b in self._bounds]
        return room[0] if len(room) == 1 else np.min(room, axis=0)

    def rows(self, here: Here) -> Rows | None:
        found = []
        for low, high in self._bounds:
            room = self._room(here.points[None], low, high)[0]
            if not len(index := np.flatnonzero(room < NEAR)):
                continue
            points = here.points[index + self.body.spheres.start]
            away = points - np.clip(points, low, high)
            size = np.linalg.norm(away, axis=1)
            if not len(outside := np.flatnonzero(size > 1e-9)):  # from within there is no telling which way
                continue
            links = self.body.links[index[outside] + self.body.spheres.start]
            moves = gradients(here.frames, points[outside], links, away[outside] / size[outside, None])
            found.append(here.brake(moves, room[index[outside]] - EXTRA))
        return Rows(*(np.concatenate(part) for part in zip(*found, strict=True))) if found else None


@dataclass(frozen=True, eq=False)
class SelfCollision:
    """Capsules of links that are not neighbours stay `distance` [m] apart."""

    body: Body
    distance: float
    name: str = "self_collision"

    @cached_property
    def _least(self) -> Array:
        """[P] m between axes."""
        i, j = self.body.pairs
        return self.body.radius[i] + self.body.radius[j] + self.distance

    def margin(self, path: Path) -> Array:
        distance = segment_distance(path.points, self.body.pairs, len(self.body.radius))
        return path.between(distance - self._least, self.body.pair_reach)

    def rows(self, here: Here) -> Rows | None:
        b = self.body
        near = segment_segment(here.points[None], b.pairs, len(b.radius))
        room = near.distance[0] - self._least
        if not len(found := np.flatnonzero(room < NEAR)):
            return None
        first, second, (i, j) = near.first[0, found], near.second[0, found], b.pairs[:, found]
        normals = (second - first) / np.maximum(near.distance[0, found, None], 1e-9)
        moves = gradients(here.frames, second, b.links[j], normals) - gradients(here.frames, first, b.links[i], normals)
        return Rows(*here.brake(moves, room[found] - EXTRA))

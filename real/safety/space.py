"""Limits in space: distances of links from planes, boxes and one another, by capsules and spheres; and all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.body import Body
from robopolicy.real.safety.geometry import above_planes, apart, near_box, near_pairs, near_planes, off_box
from robopolicy.real.safety.limits import Limit
from robopolicy.real.safety.path import Here, Inequalities, Path
from robopolicy.real.safety.settings import Box, Plane
from robopolicy.real.safety.singularity import Singularity
from robopolicy.real.safety.tool import TcpSpeed, Workspace


class Planes:
    """Capsules stay `distance` [m] off half-spaces."""

    name = "planes"

    def __init__(self, body: Body, planes: Sequence[Plane], distance: float) -> None:
        self.body = body
        self._ends = np.concatenate([body.scene, body.scene + len(body.radius)])  # [2C] points, two for each capsule
        self._planes = np.array([(*p.normal, p.offset) for p in planes], dtype=np.float64)
        self._least = body.radius[self._ends % len(body.radius)] + distance  # [2C] m of an axis' ends from a plane
        self._reach = np.tile(body.reach[self._ends], (len(planes), 1))

    def margin(self, path: Path) -> Array:
        room = np.empty((len(path.pose.points), len(self._reach)))
        above_planes(path.pose.points, self._ends, self._planes, self._least, room)
        return path.between(room, self._reach)

    def rows(self, here: Here) -> Inequalities | None:
        g, h = here.room(len(self._reach))
        count = near_planes(here.frames, here.points, self._ends, self.body.links, self._planes, self._least, g, h)
        return here.brake(g, h, count)


class KeepOut:
    """Links stay `distance` [m] off boxes; spheres that cover the capsules stand for them."""

    name = "keep_out"

    def __init__(self, body: Body, boxes: Sequence[Box], distance: float) -> None:
        self.body = body
        self._boxes = np.array([(b.low, b.high) for b in boxes], dtype=np.float64)
        self._least = body.sphere_radius + distance  # [spheres] m of a centre from a box
        self._reach = body.reach[body.spheres]

    def margin(self, path: Path) -> Array:
        points, found = path.pose.points, []
        for box in self._boxes:
            room = np.empty((len(points), len(self._least)))
            off_box(points, self.body.spheres.start, box, self._least, room)
            found.append(path.between(room, self._reach))
        return found[0] if len(found) == 1 else np.min(found, axis=0)

    def rows(self, here: Here) -> Inequalities | None:
        g, h = here.room(len(self._boxes) * len(self._least))
        count = 0
        for box in self._boxes:
            start, links = self.body.spheres.start, self.body.links
            count = near_box(here.frames, here.points, start, links, box, self._least, g, h, count)
        return here.brake(g, h, count)


class SelfCollision:
    """Capsules of links that are not neighbours stay `distance` [m] apart."""

    name = "self_collision"

    def __init__(self, body: Body, distance: float) -> None:
        self.body, (i, j) = body, body.pairs
        self._least = body.radius[i] + body.radius[j] + distance  # [P] m between axes

    def margin(self, path: Path) -> Array:
        out, s, b = np.empty(len(path.c)), path.samples, self.body
        apart(path.pose.points, b.pairs, len(b.radius), self._least, s.travel, b.pair_reach, s.first, out)
        return out

    def rows(self, here: Here) -> Inequalities | None:
        b, (g, h) = self.body, here.room(len(self._least))
        count = near_pairs(here.frames, here.points, b.pairs, len(b.radius), b.links, self._least, g, h)
        return here.brake(g, h, count)


def space_limits(body: Body) -> tuple[Limit, ...]:
    """Build the limits of the tool, of links and the scene, and of links among themselves; cheap ones first."""
    s = body.profile.settings
    found: list[Limit] = [TcpSpeed(body, s.tcp_speed)]
    if s.workspace is not None:
        found.append(Workspace(body, s.workspace))
    if s.planes:
        found.append(Planes(body, s.planes, s.scene_distance))
    if s.keep_out:
        found.append(KeepOut(body, s.keep_out, s.scene_distance))
    return (*found, SelfCollision(body, s.self_distance), Singularity(body, s.condition))

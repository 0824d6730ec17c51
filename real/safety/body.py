"""The arm's shape: capsules for distances, spheres that cover them for boxes, and the tool's point."""

from __future__ import annotations

import numpy as np

from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.kinematics import Pose, pose, reach
from robopolicy.real.safety.profile import Capsule, Profile

_COVER = 0.05  # m, spacing of the spheres that cover a capsule


class Body:
    """Points on an arm's links.

    Row order: capsules' starts, capsules' ends, centres of covering spheres, the tool's point.
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        capsules = profile.capsules
        covers = [_cover(c) for c in capsules]
        spheres = [(c.link, centre, radius) for c, cover in zip(capsules, covers, strict=True) if c.scene
                   for centre, radius in cover]  # fmt: skip
        n, size = len(profile.joints), len(capsules)
        links = [c.link for c in capsules] * 2 + [link for link, *_ in spheres] + [n]
        local = [c.start for c in capsules] + [c.end for c in capsules] + [tuple(p) for _, p, _ in spheres]
        self.local = np.array([*local, tuple(profile.chain.tcp)], dtype=np.float64)  # [R 3] m
        self.reach = reach(profile.chain, links, self.local)  # [R n] m
        self.links = np.array(links, dtype=np.int64)  # [R]
        self.radius = np.array([c.radius for c in capsules])  # [C] m
        self.sphere_radius = np.array([radius for *_, radius in spheres])
        self.spheres, self.tcp = slice(2 * size, 2 * size + len(spheres)), len(links) - 1
        self.scene = np.array([i for i, c in enumerate(capsules) if c.scene], dtype=np.int64)  # keep off the scene
        self.tcp_reach = self.reach[self.tcp]  # [n] m
        # [2 P] capsules that are kept apart, the one nearer to the base first.
        self.pairs = np.ascontiguousarray(np.array(profile.pairs, dtype=np.int64).reshape(-1, 2).T)
        first, second = self.pairs
        whole = np.maximum(self.reach[second], self.reach[second + size])
        # [P n] m: only joints between the two links change their distance.
        self.pair_reach = whole * (np.arange(n) >= self.links[first][:, None])

    def at(self, q: Array) -> Pose:
        """Frames, all points and the tool's Jacobian at joint angles `q` [M n] rad."""
        return pose(self.profile.chain, q, self.links, self.local)


def _cover(c: Capsule) -> list[tuple[Array, float]]:
    """Spheres whose union contains the capsule: (centre in the link's frame [m], radius [m])."""
    start, end = np.array(c.start), np.array(c.end)
    length = float(np.linalg.norm(end - start))
    count = int(np.ceil(length / _COVER))
    radius = float(np.hypot(c.radius, length / max(count, 1) / 2))
    return [(start + (end - start) * k / max(count, 1), radius) for k in range(count + 1)]

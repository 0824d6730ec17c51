"""Whether a URDF describes the arm of a limit profile: how its joint axes lie and turn, whatever the frames."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from robopolicy.real.arms.urdf import read_urdf
from robopolicy.real.arms.urdf_chain import arm_of
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.kinematics import rotation
from robopolicy.real.safety.profile import Profile

CLOSE = np.array([0.005, 0.02, 0.005])  # m, rad, m: a maker's calibration moves axes by less
TURNED = np.array([0.1, 0.03])  # cosine, m: of axes that are not neighbours, in a pose; a calibration changes less
ASIDE = 0.3  # sine of the angle between two axes: below, the side on which one passes the other is not known well
PARALLEL = 0.02  # sine of the angle between two axes: their nearest points are not known well
_POSES = 4  # in which the axes of all joints are compared: the zero, and three in which every joint has turned


def axis_distances(offsets: Array, rotations: Array) -> Array:
    """Return [n-1 3] how each joint's axis lies to the next: distance [m], angle [rad, to π/2], and shift [m].

    No joint angle changes them. The shift is along the joint's own axis, from the nearest point to the axis before to
    that to the next one; NaN where an axis is parallel to its neighbour, and for the first joint.
    """
    found = []
    before = math.nan  # m along the joint's axis: the point that is nearest to the axis before
    for offset, r in zip(offsets[1:], rotations[1:], strict=True):
        z = np.asarray(r)[:, 2]  # of the next axis, which goes through `offset`; the joint's own is (0, 0, 1) through 0
        across = np.cross((0.0, 0.0, 1.0), z)
        size = float(np.linalg.norm(across))
        if size > PARALLEL:
            here, there = np.linalg.solve(np.stack([(0.0, 0.0, 1.0), -z, across], axis=1), offset)[:2]
            found.append((abs(float(across @ offset)) / size, math.asin(min(size, 1.0)), abs(here - before)))
            before = there
        else:
            found.append((math.hypot(offset[0], offset[1]), 0.0, math.nan))
            before = math.nan
    return np.array(found).reshape(-1, 3)


def signed_places(offsets: Array, rotations: Array, q: Array) -> Array:
    """Return [n n 2] how each axis lies to each other one in the pose q [n] rad: cosine, and signed distance [m].

    An axis that turns the other way, a joint whose zero is elsewhere, and a mirrored link change them. The distance is
    positive where the second axis passes on the side of the first × the second; NaN where they are nearly parallel.
    """
    n, at, r = len(q), np.zeros(3), np.eye(3)
    points, axes = np.empty((n, 3)), np.empty((n, 3))
    for k in range(n):
        at, r = at + r @ offsets[k], r @ rotations[k]
        points[k], axes[k] = at, r[:, 2]
        c, s = math.cos(q[k]), math.sin(q[k])
        r = r @ np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
    across = np.cross(axes[:, None], axes[None])
    size = np.linalg.norm(across, axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        aside = ((points[None] - points[:, None]) * across).sum(axis=-1) / size
    return np.stack([axes @ axes.T, np.where(size > ASIDE, aside, np.nan)], axis=-1)


def _turned(names: Sequence[str], ours: tuple[Array, Array], theirs: tuple[Array, Array]) -> list[str]:
    """Name the first joint after which two chains, (offsets, rotations) each, part in one of some poses."""
    n, first = len(names), len(names)
    for pose in range(_POSES):
        q = np.sin(1.7 * pose + 2.3 * np.arange(n)) if pose else np.zeros(n)
        mine, found = (signed_places(*chain, q) for chain in (ours, theirs))
        wrong = np.abs(mine - found) > TURNED  # NaN: not
        first = min([first, *(int(max(i, j)) for i, j, _ in np.argwhere(wrong))])
    if first == n:
        return []
    return [
        f"{names[first]}: its axis lies elsewhere than in the limits once the joints before it have turned. One of "
        f"{list(names[: first + 1])} turns the other way in the URDF, has its zero elsewhere, or is mirrored"
    ]


def differences(profile: Profile, text: str, names: Sequence[str]) -> list[str]:
    """List where a URDF's axes are not those of the limits, one sentence each; its base and its tool are not compared.

    Args:
        names: the URDF's names of the joints, in the order of the limits.

    Raises:
        UrdfError: it holds no such arm.
    """
    robot = read_urdf(text)
    if missing := [n for n in names if n not in robot.joints]:
        return [f"{missing[0]}: is not in the URDF"]
    arm = arm_of(robot, base=robot.joints[names[0]].parent, tip=robot.joints[names[-1]].child, ranges=False)
    if [j.name for j in arm.joints] != list(names):
        return [f"the URDF's chain is {[j.name for j in arm.joints]}, the limits have {list(names)}"]
    chain = profile.chain
    ours = chain.rotations if len(chain.rotations) else rotation([(k * math.pi / 2, 0, 0) for k in chain.quarter_turns])
    mine, theirs = axis_distances(chain.offsets, ours), axis_distances(arm.offsets, arm.rotations)
    apart = [
        f"{a} and {b}: axes {t[0]:.4f} m and {t[1]:.3f} rad apart, shifted by {t[2]:.4f} m, in the URDF; {m[0]:.4f} m, "
        f"{m[1]:.3f} rad, {m[2]:.4f} m in the limits"
        for a, b, m, t in zip(names, names[1:], mine, theirs, strict=False)
        if (np.abs(m - t) > CLOSE).any() or (np.isnan(m) != np.isnan(t)).any()
    ]
    return apart or _turned(names, (chain.offsets, np.asarray(ours)), (arm.offsets, arm.rotations))

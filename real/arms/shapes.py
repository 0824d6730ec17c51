"""Shapes of an arm that nothing but its joints is known of: capsules between them, pairs to keep apart, a home pose."""

from __future__ import annotations

from typing import Any

import numpy as np

from robopolicy.real.arms.urdf import UrdfError
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.body import Body
from robopolicy.real.safety.geometry import nearest
from robopolicy.real.safety.profile import Profile
from robopolicy.real.safety.settings import Settings

POSES = 1000  # drawn at random, with one seed for all arms
NEAR = 3  # links: a wrist's axes meet, and so its shapes
ALWAYS = 0.98  # of the poses in which a pair touches: neighbours, which the shapes cannot tell apart
CLEAR = 0.02  # m between capsules that are apart, of an arm of a Panda's size
REACHES = 0.025  # m that the tool's point lies beyond the last shape that keeps off planes and boxes, as a Panda's does


def capsules_of(offsets: Array, tcp: Array, radius: float) -> list[dict[str, Any]]:
    """Return a capsule a link, from its joint to the next one, and one for the tip.

    The base and the tip may touch what is there (`scene` is false). The tip is what the tool's point needs to touch
    it: the rest of the last link ends `radius` + REACHES before the point, and keeps off.
    """
    bodies = [(f"link{i}", i, end, i > 0) for i, end in enumerate(offsets)]
    last, long = len(offsets), float(np.linalg.norm(tcp))
    kept = 0.0 if long == 0.0 else max(0.0, 1.0 - (radius + REACHES) / long)
    if kept:
        bodies.append((f"link{last}", last, kept * tcp, True))
    bodies.append(("tip", last, tcp, False))
    return [
        {"name": name, "link": link, "start": [0.0, 0.0, 0.0], "end": np.asarray(end).tolist(), "radius": radius}
        | ({} if kept_off else {"scene": False})
        for name, link, end, kept_off in bodies
    ]


def add_pairs(data: dict[str, Any]) -> None:
    """Put `pairs` of capsules into a profile's data: all but neighbours, and those near that touch whatever the pose.

    Raises:
        UrdfError: links that are far from one another touch whatever the pose.
    """
    shapes = data["capsules"]
    data["pairs"] = [
        [a["name"], b["name"]] for k, a in enumerate(shapes) for b in shapes[k + 1 :] if b["link"] - a["link"] > 1
    ]
    gaps = _gaps(data, _poses(data))
    touching = (gaps < _clear(data)).mean(axis=0)
    apart = {c["name"]: c["link"] for c in shapes}
    for (a, b), share in zip(data["pairs"], touching, strict=True):
        if share >= ALWAYS and apart[b] - apart[a] > NEAR:
            raise UrdfError(f"radius: the capsules of {a} and {b} touch in all poses. Give a smaller radius= in m")
    data["pairs"] = [pair for pair, share in zip(data["pairs"], touching, strict=True) if share < ALWAYS]


def add_home(data: dict[str, Any]) -> None:
    """Put the `home` of the least condition into a profile's data, among poses in which no shapes touch.

    Raises:
        UrdfError: there is none.
    """
    q = _poses(data)
    profile = _profile(data)
    scale = np.array([1 / profile.length] * 3 + [1.0] * 3)
    condition = np.array([np.linalg.cond(jac * scale) for jac in Body(profile).at(q).jacobian])
    condition[(_gaps(data, q) < _clear(data)).any(axis=1)] = np.inf
    best = int(condition.argmin())
    if not condition[best] < profile.settings.condition:
        raise UrdfError(
            "home: found no pose in which the links' capsules are apart and the arm is far from a singularity. Give a "
            "smaller radius=, or home=[…] in rad"
        )
    data["home"] = np.round(q[best], 3).tolist()


def _clear(data: dict[str, Any]) -> float:
    """m between capsules that are apart, by the arm's size."""
    return max(CLEAR * min(1.0, data["kinematics"]["length"]), 2 * Settings().self_distance)


def _profile(data: dict[str, Any]) -> Profile:
    return Profile({"home": [0.0] * len(data["joints"]), **data}, Settings())


def _poses(data: dict[str, Any]) -> Array:
    """[POSES n] rad inside the limits."""
    profile = _profile(data)
    middle, half = 0.5 * (profile.maker["low"] + profile.maker["high"]), profile.maker["high"] - profile.maker["low"]
    half = np.minimum(0.5 * half, np.pi)  # of joints that turn several times, one turn
    return middle + 0.9 * half * np.random.default_rng(0).uniform(-1, 1, (POSES, len(half)))


def _gaps(data: dict[str, Any], q: Array) -> Array:
    """[M P] m between the capsules of each pair."""
    body = Body(_profile(data))
    size, radius = len(body.radius), body.radius
    points = body.at(q).points
    return np.array(
        [[nearest(at, i, j, size)[0] - radius[i] - radius[j] for i, j in body.pairs.T] for at in points]
    ).reshape(len(q), -1)

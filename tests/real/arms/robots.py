"""URDFs of arms for tests, as text."""

from __future__ import annotations

import math

import numpy as np
from scipy.spatial.transform import Rotation

from robopolicy.real.safety.kinematics import rotation


def numbers(values) -> str:
    return " ".join(f"{v:.17g}" for v in values)


def joint(name, parent, child, *, type="revolute", xyz=(0, 0, 0), rpy=(0, 0, 0), axis=(0, 0, 1),
          limit='lower="-2.5" upper="2.5" velocity="2" effort="80"', more="") -> str:  # fmt: skip
    limit = f"<limit {limit}/>" if limit and type not in ("fixed", "floating") else ""
    return (
        f'<joint name="{name}" type="{type}"><origin xyz="{numbers(xyz)}" rpy="{numbers(rpy)}"/>'
        f'<parent link="{parent}"/><child link="{child}"/><axis xyz="{numbers(axis)}"/>{limit}{more}</joint>'
    )


def frames(profile) -> list[dict[str, object]]:
    """The frames of a profile's joints, as `joint` takes them."""
    chain = profile.chain
    turns = (
        chain.rotations if len(chain.rotations) else rotation([(k * math.pi / 2, 0, 0) for k in chain.quarter_turns])
    )
    return [
        {"xyz": xyz, "rpy": Rotation.from_matrix(turn).as_euler("xyz")}
        for xyz, turn in zip(chain.offsets, turns, strict=True)
    ]


def robot(*joints: str, links=(), name="robot", geometry="") -> str:
    links = links or sorted({w.split('"')[0] for j in joints for w in j.split('link="')[1:]})
    inertia = '<inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>'
    bodies = "".join(f'<link name="{link}">{inertia}{geometry}</link>' for link in links)
    return f'<robot name="{name}">{bodies}{"".join(joints)}</robot>'


def simple(n: int = 6, **changes: dict) -> str:
    """An arm of `n` joints of a like; `changes` by joint name."""
    parts = []
    for i in range(n):
        given = {"xyz": (0.05, 0, 0.15), "rpy": (math.pi / 2 * (-1) ** i, 0, 0)}
        parts.append(joint(f"j{i + 1}", f"l{i}", f"l{i + 1}", **(given | changes.get(f"j{i + 1}", {}))))
    parts.append(joint("flange", f"l{n}", "tool", type="fixed", xyz=(0, 0.02, 0.1), rpy=(0.3, 0.2, 0.1)))
    return robot(*parts)


def random_arm(n: int, seed: int) -> str:
    """An arm with axes and rotations in any direction, and fixed frames between its joints."""
    rng, parts, last = np.random.default_rng(seed), [], "base"
    special = [(0, 0, -1), (1, 0, 0), (0, -1, 0), (0, 0, 1)]
    for i in range(n):
        axis = special[i] if i < len(special) else tuple(rng.normal(size=3))
        if i % 2:
            parts.append(joint(f"mount{i}", last, f"m{i}", type="fixed", xyz=rng.uniform(-0.2, 0.2, 3),
                               rpy=rng.uniform(-3, 3, 3)))  # fmt: skip
            last = f"m{i}"
        parts.append(joint(f"j{i + 1}", last, f"l{i + 1}", xyz=rng.uniform(-0.3, 0.3, 3), rpy=rng.uniform(-3, 3, 3),
                           axis=axis))  # fmt: skip
        last = f"l{i + 1}"
    parts.append(joint("flange", last, "tool", type="fixed", xyz=rng.uniform(-0.1, 0.1, 3), rpy=(1, 2, 3)))
    return robot(*parts)

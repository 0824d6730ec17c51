"""The simulated arms by name: the Panda, and a UR5e with the same hand.

UR5e: kinematics and masses of Universal Robots' support article "DH parameters for calculations of kinematics and
dynamics"; ranges, speeds and torques of its user manual and the article "Max. joint torques". Inertias are those of
cylinders of these masses, and collision shapes are ours. No UR5e carries a Franka Hand: it is the simulator's gripper.
"""

from __future__ import annotations

import numpy as np

from robopolicy.core.errors import ConfigError, closest
from robopolicy.sim.arm import PANDA, ArmModel, Inertial, Shape

_TURN = 2 * np.pi
_CAPSULES: tuple[Shape, ...] = (
    ((0, 0, 0.1), (0, 0, 0.18), 0.07),
    ((0, 0, 0.138), (-0.425, 0, 0.138), 0.062),
    ((0, 0, 0.007), (-0.3922, 0, 0.007), 0.052),
    ((0, 0, 0.04), (0, 0, 0.1333), 0.048),
    ((0, 0, 0), (0, 0, 0.0997), 0.048),
    ((0, 0, 0.02), (0, 0, 0.09), 0.04),
)
_MASSES = (3.761, 8.058, 2.846, 1.37, 1.3, 0.365)  # kg


def _cylinder(mass: float, shape: Shape) -> Inertial:
    """Return the inertia of a solid cylinder along a capsule's axis."""
    start, end, radius = (np.array(v, dtype=np.float64) for v in shape)
    along = end - start
    length = float(np.linalg.norm(along))
    axis = along / length
    across, about = mass * (3 * radius**2 + length**2) / 12, mass * radius**2 / 2
    i = across * np.eye(3) + (about - across) * np.outer(axis, axis)
    return mass, tuple(0.5 * (start + end)), (i[0, 0], i[1, 1], i[2, 2], i[0, 1], i[0, 2], i[1, 2])


UR5E = ArmModel(
    "ur5e", "ur5e_hand",
    ((0, (0, 0, 0)), (1, (0, 0, 0.1625)), (0, (-0.425, 0, 0)), (0, (-0.3922, 0, 0)), (1, (0, 0, 0.1333)),
     (-1, (0, 0, 0.0997))),
    0.0996, 0.0,
    np.array([-_TURN, -_TURN, -np.pi, -_TURN, -_TURN, -_TURN]), np.array([_TURN, _TURN, np.pi, _TURN, _TURN, _TURN]),
    np.full(6, np.pi), (150.0, 150.0, 150.0, 28.0, 28.0, 28.0),
    np.array([2.87172, -1.48762, 1.97312, -2.05630, -1.57080, -1.84067]),
    (4000.0, 4000.0, 3000.0, 400.0, 400.0, 300.0),
    tuple(_cylinder(m, s) for m, s in zip(_MASSES, _CAPSULES, strict=True)), _CAPSULES,
    ((0, 0, 0.0), (0, 0, 0.06), 0.075),
    silent=2,  # up to the elbow, which is above in the postures around home
)  # fmt: skip
ARMS = {arm.name: arm for arm in (PANDA, UR5E)}


def arm_model(name: str) -> ArmModel:
    """Return a simulated arm by name.

    Raises:
        ConfigError: there is none.
    """
    if name not in ARMS:
        raise ConfigError(f"task.arm={name!r} is not a simulated arm. {closest(name, ARMS)}")
    return ARMS[name]

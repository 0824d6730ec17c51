"""The simulated arms by name: the Panda, a UR5e with the same hand, and an SO-101 with a small one.

UR5e: kinematics and masses of Universal Robots' support article "DH parameters for calculations of kinematics and
dynamics"; ranges, speeds and torques of its user manual and the article "Max. joint torques". Inertias are those of
cylinders of these masses, and collision shapes are ours. No UR5e carries a Franka Hand: it is the simulator's gripper.

SO-101: frames, ranges, tool point and inertias of TheRobotStudio's so101_new_calib.urdf (SO-ARM100, commit 0aee1d0f);
speeds and torques as in the limits `so101`. Its base frame is that of the URDF: the arm points along -y. Its jaw turns;
here two fingers slide along the way of its tip, 0.08 m apart at most. Armature and damping of the geared servos are
chosen.
"""

from __future__ import annotations

import numpy as np

from robopolicy.core.errors import ConfigError, closest
from robopolicy.sim.arm import PANDA
from robopolicy.sim.arm_model import TCP, ArmLayout, ArmModel, HandBody, Inertial, Mount, Shape

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
    Mount.turned(0.0996, 0.0),
    np.array([-_TURN, -_TURN, -np.pi, -_TURN, -_TURN, -_TURN]), np.array([_TURN, _TURN, np.pi, _TURN, _TURN, _TURN]),
    np.full(6, np.pi), (150.0, 150.0, 150.0, 28.0, 28.0, 28.0),
    np.array([2.87172, -1.48762, 1.97312, -2.05630, -1.57080, -1.84067]),
    (4000.0, 4000.0, 3000.0, 400.0, 400.0, 300.0),
    tuple(_cylinder(m, s) for m, s in zip(_MASSES, _CAPSULES, strict=True)), _CAPSULES,
    ((0, 0, 0.0), (0, 0, 0.06), 0.075),
    silent=2,  # up to the elbow, which is above in the postures around home
)  # fmt: skip
_HALF, _ROOT = np.pi / 2, 0.5**0.5
SO101 = ArmModel(
    "so101", "so101",
    (((-np.pi, 0, _HALF), (0.0207909, -0.0230745, 0.0948817)), ((-_HALF, -_HALF, 0), (-0.0303992, -0.0182778, -0.0542)),
     ((0, 0, _HALF), (-0.11257, -0.028, 0)), ((0, 0, -_HALF), (-0.1349, 0.0052, 0)),
     ((_HALF, 0, np.pi), (0, -0.0611, 0.0181))),
    # The tool point of the URDF; z of the hand is -z of the last link, and its fingers open along x of it.
    Mount((-0.0079, -0.000218121, -0.0981274 + TCP), np.array([[0.0, 1, 0], [1, 0, 0], [0, 0, -1]]),
          (0, _ROOT, _ROOT, 0)),
    np.array([-1.91986, -1.74533, -1.69, -1.65806, -2.79253]), np.array([1.91986, 1.74533, 1.69, 1.65806, 2.79253]),
    np.full(5, 3.0), (1.6, 1.6, 1.6, 1.6, 1.6),
    np.array([0.0, -0.06908, 0.21216, 1.42772, 0.0]),
    (40.0, 40.0, 40.0, 30.0, 20.0),
    ((0.100006, (-3.076e-2, 0, -2.527e-2), (8.3759e-5, 8.10403e-5, 2.39783e-5, 7.6e-8, -1.163e-6, 1.55e-7)),
     (0.103, (-8.985e-2, -8.382e-3, 1.841e-2), (4.08e-5, 1.47318e-4, 1.42487e-4, -1.9782e-5, -4e-8, 9e-9)),
     (0.104, (-9.807e-2, 3.244e-3, 1.828e-2), (2.87438e-5, 1.59844e-4, 1.4529e-4, 7.412e-6, 1.264e-6, -4.9e-8)),
     (0.079, (-1.03e-4, -3.8614e-2, 2.8116e-2), (3.68263e-5, 2.5391e-5, 2.1e-5, 1.8e-8, -5.3e-8, 3.641e-6)),
     (0.087, (2.14e-4, 2.45e-4, -2.5187e-2), (2.75087e-5, 4.33657e-5, 3.45059e-5, -3.35e-7, -5.736e-6, -5.2e-8))),
    (((-0.0304, 0, -0.01), (-0.0304, 0, -0.0542), 0.035), ((0, 0, 0.0182), (-0.11257, -0.02, 0.0182), 0.03),
     ((0, 0, 0.0182), (-0.1349, 0.0052, 0.0182), 0.027), ((0, -0.01, 0.0182), (0, -0.05, 0.0182), 0.028),
     ((0, 0, -0.005), (0.005, 0, -0.035), 0.025)),
    ((0.02, 0, 0.02), (0.02, 0, 0.075), 0.045),
    silent=2, armature=0.028, damping=0.1, tilt=0.05,
    hand_body=HandBody(0.012, (6.6e-6, 5.3e-6, 1.9e-6), (0.012, 0.055, 0.012)),
    layout=ArmLayout((0.0204, -0.2), -1, 0.5, 0.3, 0.4, ((-0.14, -0.3, 0.015), (0.18, -0.12, 0.22))),
)  # fmt: skip
ARMS = {arm.name: arm for arm in (PANDA, UR5E, SO101)}


def arm_model(name: str) -> ArmModel:
    """Return a simulated arm by name.

    Raises:
        ConfigError: there is none.
    """
    if name not in ARMS:
        raise ConfigError(f"task.arm={name!r} is not a simulated arm. {closest(name, ARMS)}")
    return ARMS[name]

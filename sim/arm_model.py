"""Describe a simulated arm as data: frames, limits, servos, the hand, and where its tasks lie."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Inertial = tuple[float, tuple[float, ...], tuple[float, ...]]  # kg, centre of mass [m], ixx iyy izz ixy ixz iyz [kg·m²]
Shape = tuple[tuple[float, ...], tuple[float, ...], float]  # a capsule: from, to and radius, m
Triple = tuple[float, float, float]
Row = tuple[int | Triple, Triple]

TCP = 0.1034  # m, from the flange to between the finger tips


@dataclass(frozen=True, eq=False)
class Mount:
    """Where the hand is on the last link: `axes` [3 3] are its x, y and z axes in the link's frame."""

    pos: Triple  # m
    axes: Array
    quat: tuple[float, ...]  # w x y z, the same rotation

    @classmethod
    def turned(cls, distance: float, yaw: float) -> Mount:
        """Return the mount `distance` m along the last joint's axis, turned by `yaw` rad about it."""
        c, s = math.cos(yaw), math.sin(yaw)
        axes = np.array([[c, s, 0.0], [-s, c, 0.0], [0.0, 0.0, 1.0]])
        return cls((0.0, 0.0, distance), axes, (np.cos(yaw / 2), 0, 0, np.sin(yaw / 2)))

    @property
    def tcp(self) -> Array:
        """Point [3] m between the finger tips, in the last link's frame."""
        return np.array(self.pos) + TCP * self.axes[2]


@dataclass(frozen=True)
class HandBody:
    """Body of the hand, without its fingers."""

    mass: float = 0.73  # kg
    inertia: Triple = (0.001, 0.0025, 0.0017)  # kg·m²
    box: Triple = (0.02, 0.1, 0.03)  # m, half lengths


@dataclass(frozen=True)
class ArmLayout:
    """Where tasks put their things, and how fast they go there.

    Args:
        centre: m, in front of the arm on the table.
        turn: quarter turns about z, from x to where the arm points.
        scale, height: factors of distances from `centre`, and of the heights of targets in the air.
        speed: fraction of the full action step of control="delta_pose".
        workspace: m, box for the commanded TCP; None: the task's.
    """

    centre: tuple[float, float] = (0.5, 0.0)
    turn: int = 0
    scale: float = 1.0
    height: float = 1.0
    speed: float = 1.0
    workspace: tuple[Triple, Triple] | None = None

    def around(self, forward: float, sideways: float) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return the ranges of x and y, m, that are at most so far from the centre at scale 1."""
        along = (forward, sideways) if self.turn % 2 == 0 else (sideways, forward)
        (x, y), (dx, dy) = self.centre, (self.scale * d for d in along)
        return (x - dx, x + dx), (y - dy, y + dy)


@dataclass(frozen=True, eq=False)
class ArmModel:
    """A simulated arm with the hand. Its n joints and two fingers lead qpos, qvel and ctrl in every model of ours.

    Args:
        limits: name of its limit profile (real/safety/profiles), for deployment.
        frames: a row a joint: its rotation, in quarter turns about x (Craig's table) or rpy in rad, and translation.
        silent: so many first links stay clear of the table, and get no collision tests.
        servo_kp: N·m/rad.
        armature: kg·m², of the rotors. damping: N·m·s/rad, of the joints.
        tilt: weight of a tool that points down, in inverse kinematics; an arm of five joints cannot do so everywhere.
    """

    name: str
    limits: str
    frames: tuple[Row, ...]
    mount: Mount
    low: Array  # [n] rad
    high: Array
    velocity: Array  # [n] rad/s
    torque: tuple[float, ...]  # N·m
    home: Array  # [n] rad, TCP above the layout's centre, pointing down, yaw 0
    servo_kp: tuple[float, ...]
    inertial: tuple[Inertial, ...]
    capsules: tuple[Shape, ...]
    base: Shape
    silent: int
    armature: float = 0.1
    damping: float = 1
    tilt: float = 1.0
    hand_body: HandBody = HandBody()
    layout: ArmLayout = ArmLayout()

    @property
    def dof(self) -> int:
        """n joints."""
        return len(self.frames)

    @property
    def rotations(self) -> Array:
        """Rotations [n 3 3] before the joints; [0 3 3] where all are quarter turns about x."""
        rpy = [turn for turn, _ in self.frames if not isinstance(turn, int)]
        return np.array([of_rpy(*turn) for turn in rpy]).reshape(-1, 3, 3)


def of_rpy(roll: float, pitch: float, yaw: float) -> Array:
    """Return Rz(yaw) · Ry(pitch) · Rx(roll), as URDF has it."""
    (a, b, c), (d, e, f) = np.cos([roll, pitch, yaw]), np.sin([roll, pitch, yaw])
    about_z, about_y = [[c, -f, 0], [f, c, 0], [0, 0, 1]], [[b, 0, e], [0, 1, 0], [-e, 0, b]]
    return np.array(about_z) @ np.array(about_y) @ np.array([[1, 0, 0], [0, a, -d], [0, d, a]])

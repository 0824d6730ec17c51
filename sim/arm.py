"""Describe the arm in MJCF: a Franka-like 7-DoF manipulator with a parallel gripper.

Kinematics: Denavit-Hartenberg parameters of the Franka Emika Robot (FCI documentation, "Denavit-Hartenberg
parameters", Craig's convention). Masses, centres of mass and inertias: Gaz, Cognetti, Oliva, Robuffo Giordano,
De Luca, "Dynamic Identification of the Franka Emika Panda Robot with Retrieval of Feasible Parameters Using
Penalty-Based Optimization", RA-L 2019. Joint, velocity and torque limits: FCI documentation, "Robot limits" (FER).
Hand and fingers: Franka Hand data sheet (0.73 kg, stroke 2 x 0.04 m, TCP 0.1034 m from its flange).
Collision geometry is ours: capsules and boxes drawn around the published link frames.
"""

from __future__ import annotations

from collections.abc import Iterable

import mujoco
import numpy as np

from robopolicy.sim.arm_model import TCP, ArmModel, Mount, Triple, of_rpy

# Craig's DH: frame i+1 = frame i · Rx(alpha) · translation. Each row is (alpha in quarter turns, translation [m]).
DH = (
    (0, (0.0, 0.0, 0.333)),
    (-1, (0.0, 0.0, 0.0)),
    (1, (0.0, -0.316, 0.0)),
    (1, (0.0825, 0.0, 0.0)),
    (-1, (-0.0825, 0.384, 0.0)),
    (1, (0.0, 0.0, 0.0)),
    (1, (0.088, 0.0, 0.0)),
)
FLANGE = 0.107  # m, along the last joint's axis
HAND_YAW = -np.pi / 4  # rad, the hand is mounted an eighth turn about the flange

JOINT_LOW = np.array([-2.8973, -1.7628, -2.8973, -3.0718, -2.8973, -0.0175, -2.8973])  # rad
JOINT_HIGH = np.array([2.8973, 1.7628, 2.8973, -0.0698, 2.8973, 3.7525, 2.8973])  # rad
JOINT_VELOCITY = np.array([2.175, 2.175, 2.175, 2.175, 2.61, 2.61, 2.61])  # rad/s
TORQUE = (87.0, 87.0, 87.0, 87.0, 12.0, 12.0, 12.0)  # N·m
FINGER_STROKE = 0.04  # m, each finger

# Joint angles at which the TCP is at (0.5, 0, 0.2) m pointing down, fingers opening along y.
HOME = np.array([0.0, 0.0459777, 0.0, -2.3761762, 0.0, 2.4221521, 0.7853982])

# Position servos. Stiff wrist gains saturate the 12 N·m motors within 6 mrad and chatter (implicitfast drops the
# damping derivative of a saturated actuator), which shakes a grasped cube by millimetres at 10 ms steps; these gains do
# not saturate on ramped targets. The lag kv/kp is one 20 Hz control step.
SERVO_KP = (2000.0, 2000.0, 2000.0, 2000.0, 400.0, 400.0, 300.0)  # N·m/rad
SERVO_LAG = 0.05  # s

# (mass [kg], centre of mass [m], ixx iyy izz ixy ixz iyz [kg·m²]) of links 1..7
_INERTIAL = (
    (4.970684, (3.875e-3, 2.081e-3, -4.762e-2), (7.0337e-1, 7.0661e-1, 9.1170e-3, -1.39e-4, 6.772e-3, 1.9169e-2)),
    (0.646926, (-3.141e-3, -2.872e-2, 3.495e-3), (7.962e-3, 2.811e-2, 2.5995e-2, -3.925e-3, 1.0254e-2, 7.04e-4)),
    (3.228604, (2.7518e-2, 3.9252e-2, -6.6502e-2), (3.7242e-2, 3.6155e-2, 1.083e-2, -4.761e-3, -1.1396e-2, -1.2805e-2)),
    (3.587895, (-5.317e-2, 1.04419e-1, 2.7454e-2), (2.5853e-2, 1.9552e-2, 2.8323e-2, 7.796e-3, -1.332e-3, 8.641e-3)),
    (1.225946, (-1.1953e-2, 4.1065e-2, -3.8437e-2), (3.5549e-2, 2.9474e-2, 8.627e-3, -2.117e-3, -4.037e-3, 2.29e-4)),
    (1.666555, (6.0149e-2, -1.4117e-2, -1.0517e-2), (1.964e-3, 4.354e-3, 5.433e-3, 1.09e-4, -1.158e-3, 3.41e-4)),
    (0.735522, (1.0517e-2, -4.252e-3, 6.1597e-2), (1.2516e-2, 1.0027e-2, 4.815e-3, -4.28e-4, -1.196e-3, -7.41e-4)),
)

# Capsules (from, to [m], radius [m]) in the frames of links 1..7.
_CAPSULES = (
    ((0, 0, -0.14), (0, 0, -0.04), 0.07),
    ((0, 0, -0.06), (0, 0, 0.06), 0.07),
    ((0, 0, -0.16), (0, 0, -0.06), 0.065),
    ((0, 0, -0.05), (0, 0, 0.05), 0.065),
    ((0, 0, -0.25), (0, 0.05, -0.1), 0.055),
    ((0, 0, -0.03), (0.06, 0, 0.01), 0.055),
    ((0, 0, 0.0), (0, 0, 0.07), 0.045),
)


# Collision classes: table and objects collide with everything; arm links only with table and objects.
_ARM_BITS = 'contype="2" conaffinity="1"'
_NO_BITS = 'contype="0" conaffinity="0"'
PANDA = ArmModel(
    "panda", "panda", DH, Mount.turned(FLANGE, HAND_YAW), JOINT_LOW, JOINT_HIGH, JOINT_VELOCITY, TORQUE, HOME,
    SERVO_KP, _INERTIAL, _CAPSULES, ((0, 0, 0.05), (0, 0, 0.19), 0.075),
    silent=4,  # links 1 to 4, up to the elbow, stay 0.1 m above the table in every posture
)  # fmt: skip
_WHITE, _DARK = "0.93 0.94 0.95 1", "0.25 0.27 0.3 1"


def _turn_xml(turn: int | Triple) -> str:
    """Return the attribute of a body that is turned so."""
    if isinstance(turn, int):
        return f'quat="{_numbers((1, turn, 0, 0) if turn else (1, 0, 0, 0))}"'
    quat = np.empty(4)
    mujoco.mju_mat2Quat(quat, of_rpy(*turn).ravel())
    return f'quat="{_numbers(quat)}"'


def _numbers(values: Iterable[float]) -> str:
    return " ".join(f"{v:.12g}" for v in values)


def _finger(name: str, side: int) -> str:
    # The pad's face is the joint's zero: at q = 0 the two faces meet. Friction 1.5, condim 4 (torsional friction keeps
    # a cube from turning between flat pads) and a stiff contact hold a grasp; `priority` makes them win over the
    # object's own. An armature of 0.3 kg keeps the light fingers from chattering on an object at 10 ms steps; the
    # damping limits a closing finger to 0.19 m/s (a Franka hand does 0.1), so it does not ram what it grasps.
    quat = "1 0 0 0" if side > 0 else "0 0 0 1"
    joint = "left" if side > 0 else "right"
    return f"""
      <body name="{name}" pos="0 0 0.0584" quat="{quat}" gravcomp="1">
        <inertial mass="0.015" pos="0 0.006 0.03" diaginertia="5e-6 5e-6 2e-6"/>
        <joint name="finger_{joint}" type="slide" axis="0 1 0" range="0 {FINGER_STROKE}" armature="0.3" damping="60"/>
        <geom name="{name}" type="box" size="0.01 0.006 0.0267" pos="0 0.006 0.0270" friction="1.5 0.02 0.0001"
              condim="4" solref="0.01 1" priority="1" {_ARM_BITS} rgba="{_DARK}"/>
      </body>"""


def arm_xml(arm: ArmModel = PANDA, *, tool: str = "") -> str:
    """Return the arm's body tree for `<worldbody>`. `tool`: MJCF inside the hand's body (a held peg, a stick)."""
    body, low = arm.hand_body, arm.hand_body.box[2]
    hand = f"""
    <body name="hand" pos="{_numbers(arm.mount.pos)}" quat="{_numbers(arm.mount.quat)}" gravcomp="1">
      <inertial mass="{body.mass}" pos="-0.01 0 {low}" diaginertia="{_numbers(body.inertia)}"/>
      <geom name="hand" type="box" size="{_numbers(body.box)}" pos="0 0 {low}" {_ARM_BITS} rgba="{_WHITE}"/>
      <site name="tcp" pos="0 0 {TCP}" size="0.004" rgba="0 0 0 0"/>
      <camera name="wrist" pos="0.09 0 0.0" xyaxes="0 1 0 0.87 0 0.5" fovy="70"/>
      {_finger("finger_left", 1)}{_finger("finger_right", -1)}{tool}
    </body>"""
    inner = hand
    for i in reversed(range(arm.dof)):
        turn, pos = arm.frames[i]
        mass, com, inertia = arm.inertial[i]
        start, end, radius = arm.capsules[i]
        bits = _ARM_BITS if i >= arm.silent else _NO_BITS
        joint = f'axis="0 0 1" range="{arm.low[i]} {arm.high[i]}" armature="{arm.armature}" damping="{arm.damping}"'
        colour = _WHITE if i % 2 == 0 else "0.85 0.87 0.9 1"
        inner = f"""
    <body name="link{i + 1}" pos="{_numbers(pos)}" {_turn_xml(turn)}
          gravcomp="1">
      <inertial mass="{mass}" pos="{_numbers(com)}" fullinertia="{_numbers(inertia)}"/>
      <joint name="joint{i + 1}" {joint}/>
      <geom name="link{i + 1}" type="capsule" fromto="{_numbers((*start, *end))}" size="{radius}" {bits}
            rgba="{colour}"/>{inner}
    </body>"""
    start, end, radius = arm.base
    return f"""
    <body name="base" pos="0 0 0">
      <geom name="base" type="capsule" fromto="{_numbers((*start, *end))}" size="{radius}" contype="0" conaffinity="0"
            rgba="{_WHITE}"/>{inner}
    </body>"""


def actuator_xml(arm: ArmModel = PANDA) -> str:
    """Position servos of the joints and the two fingers: ctrl = joint targets [rad], finger targets [m]."""
    rows = [
        f'<position name="joint{i + 1}" joint="joint{i + 1}" kp="{kp}" kv="{kp * SERVO_LAG:.9g}" '
        f'ctrlrange="{arm.low[i]} {arm.high[i]}" forcerange="{-arm.torque[i]} {arm.torque[i]}"/>'
        for i, kp in enumerate(arm.servo_kp)
    ]
    # Two independent finger servos centre a grasp by themselves (1200 N/m) and need no equality constraint.
    rows += [
        f'<position name="finger_{side}" joint="finger_{side}" kp="600" kv="20" ctrlrange="0 {FINGER_STROKE}" '
        'forcerange="-15 15"/>'
        for side in ("left", "right")
    ]
    return "\n    ".join(rows)

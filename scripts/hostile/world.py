"""The world of a policy node under attack: names on the wire, and what the client tells of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from builtin_interfaces.msg import Time
from sensor_msgs.msg import Image, JointState

from scripts.hostile.checker import Sheet

SIZE = (24, 32)  # pixels


@dataclass(frozen=True)
class Robot:
    """Names on the wire, as the preset has them."""

    preset: str
    joints: tuple[str, ...]
    fingers: tuple[str, ...]
    states: str
    trajectory: str
    splines: bool  # the driver plays control points; else as a trajectory controller does
    camera: str = ""
    commands: str = ""
    description: str = ""
    node: str = "world"  # what the driver is called


PANDA = Robot(
    "mujoco_panda", tuple(f"panda_joint{i}" for i in range(1, 8)), ("panda_finger_joint1", "panda_finger_joint2"),
    "joint_states", "trajectory", True, camera="camera/front/image_raw", commands="joint_commands",
)  # fmt: skip
FR3_ARM = Robot(
    "fr3", tuple(f"fr3_joint{i}" for i in range(1, 8)), ("fr3_finger_joint1", "fr3_finger_joint2"), "/joint_states",
    "/fr3_arm_controller/joint_trajectory", False, description="/robot_description", node="fr3_arm_controller",
)  # fmt: skip


@dataclass
class Lies:
    """What the world tells the node; honest by default.

    shift: s added to all stamps of the arm, and to its driver's clock if `driver_too`. command_shift: to those of
    joint_commands alone, command_by: rad added to their first joint. states, commands: said at all? enable: None is
    silence. state: one message → those that are sent. picture: (ns, number) → stamps [ns] and numbers of those that are
    sent. again: how often each of a topic's messages is said. deaf: trajectories are lost.
    """

    shift: float = 0.0
    driver_too: bool = True
    command_shift: float = 0.0
    command_by: float = 0.0
    states: bool = True
    commands: bool = True
    enable: bool | None = True
    state: Callable[[JointState], list[JointState]] = lambda message: [message]
    picture: Callable[[int, int], list[tuple[int, int]]] = lambda ns, number: [(ns, number)]
    again: tuple[tuple[str, int], ...] = ()
    deaf: bool = False


def stamp(ns: int) -> Time:
    return Time(sec=ns // 1_000_000_000, nanosec=ns % 1_000_000_000)


def picture(ns: int, number: int) -> Image:
    """The picture of that number: no two are alike."""
    height, width = SIZE
    message = Image(height=height, width=width, encoding="rgb8", step=3 * width)
    pixels = np.random.default_rng(number).integers(0, 256, height * width * 3, dtype=np.uint8)
    message.data = pixels.tobytes()
    message.header.stamp, message.header.frame_id = stamp(ns), "front"
    return message


def description(robot: Robot, sheet: Sheet) -> str:
    """The arm's URDF."""
    joints = ""
    for i, name in enumerate(robot.joints):
        ends = f'<parent link="l{i}"/><child link="l{i + 1}"/>'
        limit = f'lower="{sheet.low[i]}" upper="{sheet.high[i]}" velocity="{sheet.velocity[i]}" effort="87"'
        joints += f'<joint name="{name}" type="revolute">{ends}<limit {limit}/></joint>'
    return f'<robot name="{robot.preset}">{joints}</robot>'

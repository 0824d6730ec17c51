"""The topics in a wiring: required keys, and refused values."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal

from robopolicy.core.errors import closest
from robopolicy.real.safety import SafetyError

UPSAMPLING = ("none", "linear", "bspline")
POINTS = ("spline", "control")
AFTER = ("keep", "open")  # behaviour of a gripper once a FAULT has ended the episode
LONGEST_TIMEOUT = 0.2  # s; an arm that goes on for longer without a command is not supervised


class WiringError(SafetyError):
    """A wiring file that is wrong or incomplete."""


@dataclass(frozen=True)
class Topic:
    """A topic and the quality of service that is asked for.

    Args:
        durability: `transient_local` where late subscribers shall receive the last message.
    """

    name: str
    rate_hz: float
    reliability: Literal["reliable", "best_effort"] = "reliable"
    depth: int = 1
    durability: Literal["volatile", "transient_local"] = "volatile"


@dataclass(frozen=True)
class CameraTopic(Topic):
    """A camera's topic.

    Args:
        type: `image` (sensor_msgs/Image, rgb8 or bgr8) or `compressed` (sensor_msgs/CompressedImage, JPEG or PNG).
        frame_id: of its messages, which distinguishes two cameras that were swapped; "": any.
        latency_s: s from a picture's exposure to its arrival, as measured.
    """

    type: Literal["image", "compressed"] = "image"
    frame_id: str = ""
    latency_s: float = 0.0


@dataclass(frozen=True)
class OutputTopic(Topic):
    """Describe the topic of commands to the arm's driver.

    Args:
        type: `trajectory` (trajectory_msgs/JointTrajectory every tick), `action` (the same as goals of
            control_msgs/FollowJointTrajectory, `rate_hz` times a second), or `positions` (std_msgs/Float64MultiArray
            every tick, played as it comes).
        points: of trajectories: `spline` (positions, velocities and accelerations on the way, which the driver joins by
            a quintic spline as joint_trajectory_controller does), or `control` (control points of a cubic B-spline,
            for a driver that plays one).
        node: of the driver that subscribes, or serves the action; "": any. Other subscribers do not count.
        upsampling: of `positions`: how the driver goes from one to the next; see robopolicy.real.ros2.upsampling.
        driver_hz: of `positions`: 1/s, positions that the driver gives the arm.
        timeout_s: of `positions`: s without any after which the driver stops the arm by itself.
    """

    type: Literal["trajectory", "action", "positions"] = "trajectory"
    points: Literal["spline", "control"] = "spline"
    node: str = ""
    upsampling: str = ""
    driver_hz: float = 0.0
    timeout_s: float = 0.0


@dataclass(frozen=True)
class GripperTopic(Topic):
    """Openings [m] for the gripper, again and again at the topic's rate.

    Args:
        low, high: m, the openings that it can reach.
        speed: m/s at which the commanded opening changes at most; None: at once, the gripper limits itself.
        squeeze: m by which the commanded opening may differ from the measured one at most. A gripper that is a
            position servo then presses with its stiffness times this. None: the gripper limits its force itself.
        after_fault: `keep` (the last commanded opening, so that a grasp is kept) or `open`.
        node: of the driver that subscribes; "": any.
    """

    durability: Literal["volatile", "transient_local"] = "transient_local"
    low: float = 0.0
    high: float = 0.0
    speed: float | None = None
    squeeze: float | None = None
    after_fault: Literal["keep", "open"] = "keep"
    node: str = ""


def number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise WiringError(f"{where}: expected a finite number, found {value!r}")
    return float(value)


def topic(value: Any, where: str) -> Topic:
    return _quality(Topic, value, where)


def camera(value: Any, where: str) -> CameraTopic:
    found = _quality(CameraTopic, value, where)
    if found.type not in ("image", "compressed"):
        raise WiringError(f"{where}: type: expected image or compressed, found {found.type!r}")
    if not 0.0 <= number(found.latency_s, f"{where}: latency_s") <= 1.0:
        raise WiringError(f"{where}: latency_s: expected 0 to 1 s, found {found.latency_s}")
    return found


def gripper(value: Any, where: str) -> GripperTopic:
    found = _quality(GripperTopic, value, where)
    low, high = (number(getattr(found, k), f"{where}: {k}") for k in ("low", "high"))
    if not 0.0 <= low < high <= 1.0:
        raise WiringError(f"{where}: low and high: expected the openings that the gripper reaches, 0 ≤ low < high ≤ 1 "
                          f"m, found {low} and {high}")  # fmt: skip
    for key, most in (("speed", 2.0), ("squeeze", 1.0)):
        if key not in value:
            raise WiringError(f"{where}: {key}: must be given; null: the gripper's own driver limits it")
        limit = getattr(found, key)
        if limit is not None and not 0.0 < number(limit, f"{where}: {key}") <= most:
            raise WiringError(f"{where}: {key}: expected a number above 0, up to {most:g}, or null, found {limit}")
    if found.after_fault not in AFTER:
        raise WiringError(f"{where}: after_fault: expected keep or open, found {found.after_fault!r}")
    return found


def output(value: Any, where: str, *, tick_s: float, lead_ticks: int, echoed: bool) -> OutputTopic:
    """Parse the topic of commands, which must fit the other topics of the driver.

    Args:
        echoed: the driver says what it plays.
    """
    found = _quality(OutputTopic, value, where)
    if found.type not in ("trajectory", "action", "positions"):
        raise WiringError(f"{where}: type: expected trajectory, action or positions, found {found.type!r}")
    if found.points not in POINTS:
        raise WiringError(f"{where}: points: expected spline or control, found {found.points!r}")
    if found.type != "positions":
        if found.points == "spline" and echoed:
            raise WiringError(
                f"{where}: points: spline is for a driver that says nothing of what it plays, so topics.joint_commands "
                "must be null. A driver that plays control points of a B-spline, and says so, has points: control"
            )
        for key in ("upsampling", "driver_hz", "timeout_s"):
            if getattr(found, key):
                raise WiringError(f"{where}: {key} is for type positions; a trajectory has times and ends in a stop")
        every = _every(found, tick_s)
        if found.type == "action" and lead_ticks < every + 2:
            raise WiringError(
                f"{where}: a goal every {every} ticks needs lead_ticks of {every + 2} or more, found {lead_ticks}: the "
                "next goal must be there before the arm has played the last command of the one before"
            )
        return found
    if found.upsampling not in UPSAMPLING or not found.timeout_s:
        raise WiringError(
            f"{where}: positions (Float64MultiArray) have no times and end in no stop, so they go only to a driver "
            f"that declares how it fills the time between two ({list(UPSAMPLING)} as `upsampling`) and after how long "
            f"a silence it stops by itself (`timeout_s`); found upsampling={found.upsampling!r}, "
            f"timeout_s={found.timeout_s!r}. Else use type trajectory."
        )
    rate = number(found.driver_hz, f"{where}: driver_hz") * tick_s
    if not (1 <= round(rate) <= 20 and abs(rate - round(rate)) < 1e-6):
        raise WiringError(
            f"{where}: driver_hz: expected the rate of the driver's own loop, 1 to 20 times that of the ticks "
            f"({1 / tick_s:g} Hz), found {found.driver_hz}"
        )
    if not 2 * tick_s <= number(found.timeout_s, f"{where}: timeout_s") <= LONGEST_TIMEOUT:
        raise WiringError(f"{where}: timeout_s: expected {2 * tick_s} to {LONGEST_TIMEOUT} s, found {found.timeout_s}")
    if echoed or lead_ticks != 1:
        raise WiringError(
            f"{where}: positions are played as they come: topics.joint_commands must be null and lead_ticks 1, "
            f"found lead_ticks {lead_ticks}"
        )
    return found


def _every(found: OutputTopic, tick_s: float) -> int:
    return max(1, round(1 / (found.rate_hz * tick_s)))


def _quality[T: Topic](kind: type[T], value: Any, where: str) -> T:
    if not isinstance(value, dict) or not value.get("name"):
        raise WiringError(f"{where}: expected a mapping with `name` and `rate_hz`, found {value!r}")
    known = [f.name for f in fields(kind)]
    if unknown := [k for k in value if k not in known]:
        raise WiringError(f"{where}: unknown key {unknown[0]!r}. {closest(str(unknown[0]), known)}")
    found = kind(**{"rate_hz": 0.0, **value})
    if found.reliability not in ("reliable", "best_effort"):
        raise WiringError(f"{where}: reliability: expected reliable or best_effort, found {found.reliability!r}")
    if found.durability not in ("volatile", "transient_local"):
        raise WiringError(f"{where}: durability: expected volatile or transient_local, found {found.durability!r}")
    if not isinstance(found.depth, int) or found.depth < 1:
        raise WiringError(f"{where}: depth: expected a whole number ≥ 1, found {found.depth!r}")
    if number(found.rate_hz, f"{where}: rate_hz") <= 0:
        raise WiringError(f"{where}: rate_hz: expected a number > 0, found {found.rate_hz!r}")
    return found

"""The topics in a wiring: their keys, types and ranges, by which a file is checked."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic.dataclasses import dataclass

from robopolicy.core.errors import closest
from robopolicy.core.untrusted import read_yaml
from robopolicy.real.safety import SafetyError

_NAME = re.compile(r"(~/|/)?[A-Za-z_]\w*(/[A-Za-z_]\w*)*", re.ASCII)  # of a topic
LONGEST_TIMEOUT = 0.2  # s; an arm that goes on for longer without a command is not supervised

STRICT = pydantic.ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class WiringError(SafetyError):
    """A wiring file that is wrong or incomplete."""


def read_preset(name: str, folder: Path, kind: str) -> tuple[Any, Path]:
    """Read the values of a wiring: a preset of `folder` by its name, or a YAML file by its path; and that path.

    Args:
        kind: of the presets, for messages.

    Raises:
        WiringError: there is none, or it is no YAML.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if not path.is_file():
        known = sorted(p.stem for p in folder.glob("*.yaml"))
        raise WiringError(f"wiring={name!r}: no such file, or preset of {kind}. {closest(name, known)}")
    return read_yaml(path, error=WiringError), path


def _topic_name(name: str) -> str:
    """Refuse a name that ROS refuses, before there is a node."""
    if not _NAME.fullmatch(name):
        raise ValueError("expected words of letters, digits and _ between /, as /cell1/joint_states")
    return name


TopicName = Annotated[str, pydantic.AfterValidator(_topic_name)]


@dataclass(frozen=True, config=STRICT)
class Topic:
    """A topic and the quality of service that is asked for.

    Args:
        durability: `transient_local` where late subscribers shall receive the last message.
    """

    name: TopicName
    rate_hz: Annotated[float, pydantic.Field(ge=0.01, le=10_000)]
    reliability: Literal["reliable", "best_effort"] = "reliable"
    depth: Annotated[int, pydantic.Field(ge=1, le=10_000)] = 1
    durability: Literal["volatile", "transient_local"] = "volatile"

    def every(self, tick_s: float) -> int:
        """Return the ticks of `tick_s` s from one message to the next."""
        return max(1, round(1 / (self.rate_hz * tick_s)))


@dataclass(frozen=True, config=STRICT)
class LineDelay:
    """The delay of a running arm's states, as `robopolicy arm check write=true` measured it.

    Args:
        latency_s: s from a state's stamp to its receipt, in the median.
        jitter_s: s by which the slowest of a hundred states is later than that.
        lost: fraction of the states that never came.
        resolution_rad: rad, the coarsest step of a joint's position; 0: no joint moved.
    """

    latency_s: Annotated[float, pydantic.Field(ge=0.0, le=1.0)]
    jitter_s: Annotated[float, pydantic.Field(ge=0.0, le=1.0)]
    lost: Annotated[float, pydantic.Field(ge=0.0, lt=1.0)]
    resolution_rad: Annotated[float, pydantic.Field(ge=0.0, le=1.0)] = 0.0


@dataclass(frozen=True, config=STRICT)
class CameraTopic(Topic):
    """A camera's topic.

    Args:
        type: `image` (sensor_msgs/Image, rgb8 or bgr8) or `compressed` (sensor_msgs/CompressedImage, JPEG or PNG).
        frame_id: of its messages, which distinguishes two cameras that were swapped; "": any.
        latency_s: s from a picture's exposure to its arrival, as measured.
    """

    type: Literal["image", "compressed"] = "image"
    frame_id: str = ""
    latency_s: Annotated[float, pydantic.Field(ge=0.0, le=1.0)] = 0.0


@dataclass(frozen=True, config=STRICT)
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
        shared_with: nodes that may command the driver too, as they never do so while a policy runs; with or without
            their namespace. Any other refuses the start.
        upsampling: of `positions`: how the driver goes from one to the next; see robopolicy.real.ros2.upsampling.
        driver_hz: of `positions`: 1/s, positions that the driver gives the arm.
        timeout_s: of `positions`: s without any after which the driver stops the arm by itself.
    """

    type: Literal["trajectory", "action", "positions"] = "trajectory"
    points: Literal["spline", "control"] = "spline"
    node: str = ""
    shared_with: list[str] = dataclasses.field(default_factory=list)
    upsampling: Literal["", "none", "linear", "bspline"] = ""
    driver_hz: float = 0.0
    timeout_s: float = 0.0

    def problems(self, *, tick_s: float, lead_ticks: int, echoed: bool) -> Iterator[str]:
        """Name contradictions to the other topics and times of the driver, one sentence each.

        Args:
            echoed: the driver says what it plays.
        """
        if self.type == "positions":
            yield from self._of_positions(tick_s, lead_ticks, echoed)
            return
        if self.points == "spline" and echoed:
            yield (
                "points: spline is for a driver that says nothing of what it plays, so topics.joint_commands must be "
                "null. A driver that plays control points of a B-spline, and says so, has points: control"
            )
        for key in ("upsampling", "driver_hz", "timeout_s"):
            if getattr(self, key):
                yield f"{key} is for type positions; a trajectory has times and ends in a stop"
        every = self.every(tick_s)
        if self.type == "action" and lead_ticks < every + 2:
            yield (
                f"a goal every {every} ticks needs lead_ticks of {every + 2} or more, found {lead_ticks}: the next "
                "goal must be there before the arm has played the last command of the one before"
            )

    def _of_positions(self, tick_s: float, lead_ticks: int, echoed: bool) -> Iterator[str]:
        if not self.upsampling or not self.timeout_s:
            yield (
                "positions (Float64MultiArray) have no times and end in no stop, so they go only to a driver that "
                "declares how it fills the time between two (`upsampling`) and after how long a silence it stops by "
                f"itself (`timeout_s`); found upsampling={self.upsampling!r}, timeout_s={self.timeout_s!r}. Else use "
                "type trajectory."
            )
        rate = self.driver_hz * tick_s
        if not (1 <= round(rate) <= 20 and abs(rate - round(rate)) < 1e-6):
            yield (
                "driver_hz: expected the rate of the driver's own loop, 1 to 20 times that of the ticks "
                f"({1 / tick_s:g} Hz), found {self.driver_hz}"
            )
        if not 2 * tick_s <= self.timeout_s <= LONGEST_TIMEOUT:
            yield f"timeout_s: expected {2 * tick_s} to {LONGEST_TIMEOUT} s, found {self.timeout_s}"
        if echoed or lead_ticks != 1:
            yield (
                "positions are played as they come: topics.joint_commands must be null and lead_ticks 1, found "
                f"lead_ticks {lead_ticks}"
            )


@dataclass(frozen=True, config=STRICT)
class GripperTopic(Topic):
    """Openings [m] for the gripper.

    Args:
        type: `opening` (std_msgs/Float64, again and again at the topic's rate), or `gripper_command` (goals of
            control_msgs/GripperCommand, one at a time).
        low, high: m, the openings that it can reach.
        speed: m/s at which the commanded opening changes at most; None: at once, the gripper limits itself.
        squeeze: m by which the commanded opening may differ from the measured one at most. A gripper that is a
            position servo then presses with its stiffness times this. None: the gripper limits its force itself.
        after_fault: `keep` (the last commanded opening, so that a grasp is kept) or `open`.
        node: of the driver that subscribes; "": any.
        shared_with: nodes that may command the gripper too, as for the arm.
        factor: of `gripper_command`: position in a goal for each m of opening.
        max_effort: of `gripper_command`: N with which the gripper closes.
    """

    type: Literal["opening", "gripper_command"] = "opening"
    durability: Literal["volatile", "transient_local"] = "transient_local"
    low: Annotated[float, pydantic.Field(ge=0.0)] = dataclasses.field(kw_only=True)
    high: Annotated[float, pydantic.Field(le=1.0)] = dataclasses.field(kw_only=True)
    speed: Annotated[float, pydantic.Field(gt=0.0, le=2.0)] | None = dataclasses.field(kw_only=True)
    squeeze: Annotated[float, pydantic.Field(gt=0.0, le=1.0)] | None = dataclasses.field(kw_only=True)
    after_fault: Literal["keep", "open"] = "keep"
    node: str = ""
    shared_with: list[str] = dataclasses.field(default_factory=list)
    factor: Annotated[float, pydantic.Field(gt=0.0, le=100.0)] = 1.0
    max_effort: Annotated[float, pydantic.Field(gt=0.0, le=500.0)] | None = None

    def problems(self) -> Iterator[str]:
        """Name keys that contradict one another, one sentence each."""
        if not self.low < self.high:
            yield f"low: expected less than high, found {self.low} and {self.high}"
        if self.type == "opening":
            if self.factor != 1.0 or self.max_effort is not None:
                yield "factor and max_effort are for type gripper_command; openings have neither"
            return
        if self.max_effort is None:
            yield "max_effort: expected the N with which the gripper closes, as a goal of GripperCommand tells it"
        if self.speed is not None or self.squeeze is not None:
            yield (
                "speed and squeeze must be null: a goal goes to its end at the gripper's own speed, and max_effort "
                "bounds its force"
            )

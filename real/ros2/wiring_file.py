"""Keys of wiring files, by which they are checked."""

from __future__ import annotations

import datetime
import math
import re
from typing import Annotated, Any, NotRequired, TypedDict

import pydantic

from robopolicy.core.types import IMAGES, POINTS
from robopolicy.real.ros2.channels import (
    STRICT,
    CameraTopic,
    GripperTopic,
    LineDelay,
    OutputTopic,
    Topic,
)
from robopolicy.real.ros2.depth_topic import DepthTopic
from robopolicy.real.safety.decision import Patience

LONGEST_LEAD = 25  # ticks
# s of silence in which an arm may go on
LONGEST_BLIND = {"state": 2.0, "features": 10.0, "images": 10.0, "enable": 30.0, "gripper_states": 10.0}
LARGEST_FACTOR = 100.0  # m of a gripper's opening for each unit of its driver
Short = Annotated[float, pydantic.Field(ge=0.0, le=0.1)]
ImageKey = Annotated[str, pydantic.Field(pattern=f"^{re.escape(IMAGES)}.")]
PointsKey = Annotated[str, pydantic.Field(pattern=f"^{re.escape(POINTS)}.")]


class FrameNames(TypedDict):
    base: str
    tcp: str


class _Topics(TypedDict):
    joint_states: Topic
    gripper_states: NotRequired[Topic | None]
    joint_commands: Topic | None
    robot_description: Topic | None
    features: Topic | None
    enable: Topic
    keys: Topic | None
    trajectory: OutputTopic
    gripper: GripperTopic | None
    intervention: Topic | None
    diagnostics: Topic


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class PatienceFile(Patience):
    slow: pydantic.PositiveFloat = math.inf
    hold: pydantic.PositiveFloat = math.inf
    fault: pydantic.PositiveFloat = math.inf


def _stops(patience: PatienceFile, info: pydantic.ValidationInfo) -> PatienceFile:
    """Refuse a watchdog that lets the arm go on for too long, or that would never slow it."""
    most, first = LONGEST_BLIND[str(info.field_name)], min(patience.hold, patience.fault)
    if first > most:
        found = "none" if first == math.inf else f"{first:g} s. Is it in ms?"
        raise ValueError(f"expected hold or fault after at most {most:g} s of silence, found {found}")
    if first <= patience.slow < math.inf:
        raise ValueError(f"slow: expected less than {first:g} s, from which the arm stops, found {patience.slow:g} s")
    return patience


Watched = Annotated[PatienceFile, pydantic.AfterValidator(_stops)]


def _counts(factor: float) -> float:
    """Refuse a joint of the gripper that would not count, or counts in other units."""
    if not 0.0 < abs(factor) <= LARGEST_FACTOR:
        raise ValueError(f"expected m of opening for each unit of the driver, not 0 and at most {LARGEST_FACTOR:g}")
    return factor


Factor = Annotated[float, pydantic.AfterValidator(_counts)]


class _Watchdogs(TypedDict):
    state: Watched
    features: Watched
    images: Watched
    enable: Watched
    gripper_states: NotRequired[Watched]


@pydantic.with_config(STRICT)
class WiringFile(TypedDict):
    """A wiring file. All keys but those NotRequired must be given; null: a topic that the robot lacks."""

    limits: str
    safety: NotRequired[dict[str, Any]]
    tick_s: Annotated[float, pydantic.Field(ge=0.001, le=0.02)]
    lead_ticks: Annotated[int, pydantic.Field(ge=1, le=LONGEST_LEAD)]
    joints: dict[str, str]
    gripper: dict[str, Factor]
    frames: FrameNames
    topics: _Topics
    cameras: dict[ImageKey, CameraTopic]
    depth_cameras: NotRequired[dict[PointsKey, DepthTopic]]
    changed: NotRequired[datetime.date | None]
    watchdogs: _Watchdogs
    plan_ahead_s: Short
    grace_s: Short
    delay: NotRequired[LineDelay]

"""The depth cameras in a wiring: their keys, types and ranges."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Annotated

import pydantic
from pydantic.dataclasses import dataclass

from robopolicy.real.ros2.channels import STRICT, Topic, TopicName
from robopolicy.utils.point_clouds import PointCloud


@dataclass(frozen=True, config=STRICT)
class DepthCloud:
    """How depth images of a camera become `observation.points.<camera>`.

    Args:
        calibration: file of `robopolicy arm camera` that lies below the wiring, with the lens and its pose; or the name
            of one in configs/cameras.
        range_m: nearest and farthest depth that counts, m; other pixels have no point.
        fewest: points that must lie in the cloud's box; a picture with fewer is refused.
        latency_s: s from a picture's exposure to its arrival, as measured.
        cloud: for bags, and for policies of the robot's own data; None: that of the policy's task.
    """

    calibration: Annotated[str, pydantic.Field(min_length=1)] = dataclasses.field(kw_only=True)
    range_m: tuple[Annotated[float, pydantic.Field(ge=0.0)], Annotated[float, pydantic.Field(le=100.0)]] = (
        dataclasses.field(kw_only=True, default=(0.05, 10.0))
    )
    fewest: Annotated[int, pydantic.Field(ge=1, le=10**6)] = dataclasses.field(kw_only=True, default=16)
    latency_s: Annotated[float, pydantic.Field(ge=0.0, le=1.0)] = dataclasses.field(kw_only=True, default=0.0)
    cloud: PointCloud | None = dataclasses.field(kw_only=True, default=None)


@dataclass(frozen=True, config=STRICT)
class DepthTopic(DepthCloud, Topic):
    """A depth camera's topic: sensor_msgs/Image, `16UC1` in mm or `32FC1` in m.

    Args:
        frame_id: of its messages, which is the `camera` of the calibration.
        camera_info: topic of its lens (sensor_msgs/CameraInfo), which then counts in place of the calibration's.
        rectified: the pictures are free of distortion, so P of camera_info is their lens, not K.
    """

    frame_id: Annotated[str, pydantic.Field(min_length=1)] = dataclasses.field(kw_only=True)
    camera_info: TopicName | None = dataclasses.field(kw_only=True, default=None)
    rectified: bool = dataclasses.field(kw_only=True, default=False)

    @property
    def lens(self) -> Topic | None:
        """The topic of its lens."""
        if self.camera_info is None:
            return None
        return Topic(self.camera_info, self.rate_hz, self.reliability)

    def problems(self) -> Iterator[str]:
        """Name contradictions, one sentence each."""
        if not self.range_m[0] < self.range_m[1]:
            yield f"range_m: expected the nearest depth before the farthest, found {list(self.range_m)}"
        if self.rectified and self.camera_info is None:
            yield "rectified: is for a camera_info. Of rectified pictures `robopolicy arm camera` finds the lens itself"

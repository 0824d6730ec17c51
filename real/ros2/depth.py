"""Depth images and lenses that come over ROS 2, checked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sensor_msgs.msg import CameraInfo, Image

from robopolicy.core.errors import ConfigError
from robopolicy.real.arms.camera_file import CameraCalibration
from robopolicy.real.ros2.depth_topic import DepthTopic
from robopolicy.real.ros2.images import LARGEST
from robopolicy.real.ros2.messages import to_time
from robopolicy.real.safety import SafetyError
from robopolicy.utils.point_clouds import Intrinsics

UNITS = {"16UC1": ("u2", 0.001), "32FC1": ("f4", 1.0)}  # of an encoding: numbers, and m in one


class DepthReader:
    """Read the messages of a depth camera: its images and their lens.

    Args:
        key: its feature. topic: of the wiring. calibration: whose lens counts where the topic has no camera_info.
    """

    def __init__(self, key: str, topic: DepthTopic, calibration: CameraCalibration) -> None:
        self.key, self.topic = key, topic
        self.size, self.lens = calibration.size, calibration.intrinsics
        self.heard = topic.camera_info is None  # the lens is known

    def on_lens(self, message: CameraInfo, at: float = 0.0) -> None:
        """Take the lens of a message, whenever it came.

        Raises:
            SafetyError: it is another camera's, of a part of its pictures, or its distortion is of another model.
        """
        del at
        topic, size = self.topic, (int(message.height), int(message.width))
        where = f"{self.key}: topic {topic.camera_info!r}"
        self._check_frame(message.header.frame_id, topic.camera_info)
        self._check_size(*size)
        if max(message.binning_x, message.binning_y) > 1 or any((message.roi.width, message.roi.height)):
            raise SafetyError(f"{where}: binning or a region of interest. Set the driver to send whole pictures")
        d = [0.0] * 5 if topic.rectified else [*message.d, *[0.0] * (5 - len(message.d))]
        if any(d) and (message.distortion_model != "plumb_bob" or any(d[4:])):
            raise SafetyError(
                f"{where}: distortion {message.distortion_model!r} with {list(message.d)}, expected none, or plumb_bob "
                "with k3 = 0. Let the driver rectify the pictures, and set rectified: true"
            )
        fx, fy, cx, cy = map(float, message.p[[0, 5, 2, 6]] if topic.rectified else message.k[[0, 4, 2, 5]])
        try:
            lens = Intrinsics(fx, fy, cx, cy, (d[0], d[1], d[2], d[3]))
            if (size, lens) != (self.size, self.lens):
                lens.check(size)
        except ConfigError as error:
            raise SafetyError(f"{where}: {error}") from error
        self.size, self.lens, self.heard = size, lens, True

    def read(self, message: Image) -> tuple[NDArray[Any], float]:
        """Return the numbers [h w] of a message, without a copy, and the m that one of them stands for.

        Raises:
            SafetyError: another camera's, another encoding or size, damaged, or its lens has not come.
        """
        self._check_frame(message.header.frame_id, self.topic.name)
        if message.encoding not in UNITS:
            raise self._error(f"encoding {message.encoding!r}, expected one of {list(UNITS)}. Is it a colour image?")
        if not self.heard:
            raise self._error(f"nothing has come on {self.topic.camera_info!r}, which holds the camera's lens")
        kind, unit = UNITS[message.encoding]
        height, width, step = message.height, message.width, message.step
        self._check_size(height, width)
        if (height, width) != self.size:
            of = "the calibration" if self.topic.camera_info is None else f"{self.topic.camera_info!r}"
            raise self._error(
                f"{width} × {height} pixels, {of} is for {self.size[1]} × {self.size[0]}. Set the driver to that size, "
                "or calibrate the camera at this one"
            )
        numbers = np.dtype(kind).newbyteorder(">" if message.is_bigendian else "<")
        if step < numbers.itemsize * width or step % numbers.itemsize or len(message.data) != step * height:
            raise self._error(
                f"{len(message.data)} bytes for {height} rows of {step} and {width} pixels of {numbers.itemsize} each"
            )
        return np.frombuffer(message.data, numbers).reshape(height, -1)[:, :width], unit

    def _check_frame(self, found: str, topic: str | None) -> None:
        if found != self.topic.frame_id:
            raise SafetyError(
                f"{self.key}: the messages on {topic!r} are of frame {found!r}, expected {self.topic.frame_id!r}. "
                "Are two cameras swapped?"
            )

    def _check_size(self, height: int, width: int) -> None:
        if not (0 < height <= LARGEST and 0 < width <= LARGEST):
            raise self._error(f"{width} × {height} pixels")

    def _error(self, what: str) -> SafetyError:
        return SafetyError(f"{self.key}: topic {self.topic.name!r}: {what}")


def depth_image(depth: NDArray[np.floating], ns: int, topic: DepthTopic) -> Image:
    """Build the message of a depth image [h w] m, stamped [ns]."""
    message = Image(height=depth.shape[0], width=depth.shape[1], encoding="32FC1", step=4 * depth.shape[1])
    message.data = np.ascontiguousarray(depth, dtype="<f4").tobytes()
    message.header.stamp, message.header.frame_id = to_time(ns), topic.frame_id
    return message


def camera_info(lens: Intrinsics, size: tuple[int, int], ns: int, topic: DepthTopic) -> CameraInfo:
    """Build the message of a lens, for pictures of `size` (height, width), stamped [ns]."""
    message = CameraInfo(height=size[0], width=size[1], distortion_model="plumb_bob", d=[*lens.distortion, 0.0])
    message.k = [lens.fx, 0.0, lens.cx, 0.0, lens.fy, lens.cy, 0.0, 0.0, 1.0]
    message.r = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]
    message.p = [lens.fx, 0.0, lens.cx, 0.0, 0.0, lens.fy, lens.cy, 0.0, 0.0, 0.0, 1.0, 0.0]
    message.header.stamp, message.header.frame_id = to_time(ns), topic.frame_id
    return message

"""Depth frames of LeRobot's RealSense cameras, with the time at which LeRobot got them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robopolicy.real.arms.camera_file import CameraCalibration
from robopolicy.real.control.depth_cameras import DepthPicture
from robopolicy.real.ros2.channels import WiringError
from robopolicy.real.ros2.depth_topic import DepthTopic
from robopolicy.real.safety import SafetyError


class DepthFrames:
    """Read the depth frames of one camera.

    LeRobot gives the newest frame, however old: `read` tells when it came, and leaves out a frame that it gave before.

    Args:
        key: feature, "observation.points.<camera>".
        topic: of the wiring. calibration: of the camera. camera: LeRobot's, connected.

    Raises:
        WiringError: its class does not tell the time of a frame, or the unit of its depth.
    """

    def __init__(self, key: str, topic: DepthTopic, calibration: CameraCalibration, camera: Any) -> None:
        self.key, self.topic, self.calibration, self.camera = key, topic, calibration, camera
        self._last = -np.inf  # s
        try:
            _ = camera.frame_lock, camera.latest_depth_frame, camera.latest_timestamp
            self.unit = float(camera.rs_profile.get_device().first_depth_sensor().get_depth_scale())  # m
        except AttributeError as error:
            raise WiringError(
                f"depth_cameras.{key}: LeRobot's {type(camera).__name__} tells no time of its frames, or no unit of "
                f"its depth ({error}). Expected its RealSense class, of LeRobot 0.6.1 or later"
            ) from error
        if not 1e-5 <= self.unit <= 1e-2:
            raise WiringError(f"depth_cameras.{key}: the camera's unit of depth is {self.unit} m, expected about 0.001")

    def read(self, frame: NDArray[np.uint16]) -> DepthPicture | None:
        """Return the picture of a `frame` [h w 1] in an observation; None: it is not new, or a newer one has come.

        Raises:
            SafetyError: it has another size than the calibration, or other numbers.
        """
        with self.camera.frame_lock:
            newest, at = self.camera.latest_depth_frame, self.camera.latest_timestamp
        if newest is not frame or at is None or at <= self._last:
            return None
        self._last, size = at, self.calibration.size
        if frame.shape not in ((*size, 1), size) or frame.dtype != np.uint16:
            raise SafetyError(
                f"{self.key}: depth of {frame.dtype} {list(frame.shape)}, expected uint16 {[*size, 1]}, the size of "
                f"the calibration. Set height and width of robot.cameras.{self.topic.name}, or calibrate at this size"
            )
        came = time.monotonic() - (time.perf_counter() - at)  # LeRobot's clock is the other one
        taken = came - self.topic.latency_s
        return DepthPicture(frame.reshape(size), self.unit, self.calibration.intrinsics, taken, came)

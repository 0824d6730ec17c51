"""Inputs of a policy node that are depth images: their clouds are made beside the ticks, and go to the policy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from sensor_msgs.msg import CameraInfo, Image

from robopolicy.real.control.depth_cameras import CloudMaker, DepthCamera, DepthPicture
from robopolicy.real.ros2.channels import Topic
from robopolicy.real.ros2.depth import DepthReader
from robopolicy.real.ros2.joint_states import stamp_of
from robopolicy.real.ros2.remote_arm import RemoteArm
from robopolicy.real.ros2.wiring import Wiring
from robopolicy.utils.point_clouds import Points

Hear = Callable[[str, type, Topic | None, Callable[[Any, float], None]], None]  # role, type, topic, handler


class CloudInputs(Protocol):
    """Take clouds of a policy's depth cameras."""

    depths: dict[str, DepthCamera]  # by feature

    def take_cloud(self, key: str, cloud: Points, /) -> None: ...


class DepthInputs:
    """Turn the messages of depth cameras into clouds for a policy.

    Args:
        wiring: names of the topics. inputs: takes the clouds.
        arm: knows where the arm stood, and is told of each cloud that came.
    """

    def __init__(self, wiring: Wiring, inputs: CloudInputs, arm: RemoteArm) -> None:
        self.wiring, self.inputs, self.arm = wiring, inputs, arm
        self.clouds = CloudMaker(inputs.depths, arm.log, threaded=not arm.clock.follow)

    def connect(self, hear: Hear) -> None:
        """Subscribe by `hear` to images and lenses."""
        for key in self.inputs.depths:
            topic = self.wiring.depth_cameras[key]
            reader = DepthReader(key, topic, self.wiring.calibrations[key])
            hear(f"{key}.camera_info", CameraInfo, topic.lens, reader.on_lens)
            hear(key, Image, topic, partial(self._on_image, key, reader))

    def _on_image(self, key: str, reader: DepthReader, message: Image, at: float) -> None:
        taken = stamp_of(message)
        self.arm.stamps[key].take(taken, at)
        self.clouds.put(key, DepthPicture(*reader.read(message), reader.lens, taken, at))

    def collect(self, accept: Callable[[str, float], None], refuse: Callable[[str, float, Exception], None]) -> None:
        """Hand over the clouds that are ready.

        Args:
            accept, refuse: called with the feature, s of our steady clock at which its image came, and why it is
                refused.
        """
        for key, came, cloud, error in self.clouds.finished():
            if cloud is None:
                assert error is not None
                refuse(key, came, error)
                continue
            self.inputs.take_cloud(key, cloud)
            self.arm.hear(key, came)
            accept(key, came)

    def close(self) -> None:
        self.clouds.close()

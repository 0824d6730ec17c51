"""Cameras of the simulated arm: pictures, depth images and lenses, published at the rates of a wiring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from rclpy.node import Node
from sensor_msgs.msg import CameraInfo, Image

from robopolicy.core.types import IMAGES, POINTS
from robopolicy.real.ros2.channels import Topic, WiringError
from robopolicy.real.ros2.depth import camera_info, depth_image
from robopolicy.real.ros2.images import image, message_type
from robopolicy.real.ros2.qos import profile_of
from robopolicy.real.ros2.wiring import Wiring
from robopolicy.real.safety.array_ops import Array
from robopolicy.sim.env import SimEnv

OFF = 1e-3  # m, and of a direction: a calibration that differs by more is of another camera


class SimCameras:
    """Publish what the cameras of a task see.

    Args:
        node: which publishes. env: of the task, one env. wiring: names and rates of the topics.
    """

    def __init__(self, node: Node, env: SimEnv, wiring: Wiring) -> None:
        self.node, self.env, self.wiring = node, env, wiring
        seen = wiring.cameras | wiring.depth_cameras
        keys = [*(IMAGES + name for name in env.cameras), *(POINTS + name for name in env.views.points)]
        self._every = {key: seen[key].every(wiring.tick_s) for key in keys if key in seen}  # ticks
        self._images = {key: self._publisher(message_type(t), t) for key, t in wiring.cameras.items() if self._has(key)}
        self._depths = {key: self._publisher(Image, t) for key, t in wiring.depth_cameras.items() if self._has(key)}
        self._lenses = {key: self._publisher(CameraInfo, lens) for key in self._depths
                        if (lens := wiring.depth_cameras[key].lens) is not None}  # fmt: skip

    def _has(self, key: str) -> bool:
        return key in self._every

    def _publisher(self, kind: type, topic: Topic) -> Callable[[Any], None]:
        publish: Callable[[Any], None] = self.node.create_publisher(kind, topic.name, profile_of(topic)).publish
        return publish

    def check(self) -> None:
        """Raise WiringError where a calibration is not of the scene's camera, as its pose or its lens differs."""
        for key in self._depths:
            view, size = self.env.depth(0, key.removeprefix(POINTS)), self.env.views.cloud.size
            file, topic = self.wiring.calibration(key), self.wiring.depth_cameras[key]
            expected = file.in_base(self.env.physics.qpos[0, : self.env.dof], self.wiring.profile())
            where = f"depth_cameras.{key}.calibration: {topic.calibration}"
            if np.abs(view.pose - expected).max() > OFF:
                there, here = (np.round(p[:3, 3], 3).tolist() for p in (view.pose, expected))
                raise WiringError(
                    f"{where}: pose: the scene's camera is at {there} m, the calibration says {here}, or it looks "
                    "elsewhere. Leave task.camera_offset out, or give this camera's own calibration"
                )
            if topic.lens is None and (size, view.camera) != (file.size, file.intrinsics):
                raise WiringError(
                    f"{where}: size, intrinsics: expected {list(size)} (task.cloud.size) and {view.camera}, found "
                    f"{list(file.size)} and {file.intrinsics}. Give camera_info a topic"
                )

    def film(self, tick: int, qpos: Array, qvel: Array) -> None:
        """Publish the pictures that are due in a tick, of the physics at `qpos` [nq], `qvel` [nv]."""
        due = {key for key, every in self._every.items() if tick % every == 0}
        if not due:
            return
        ns, (height, width) = tick * self.wiring.dt_ns, self.env.views.image_size
        self.env.sense(qpos[None], qvel[None], pictures=False)
        for key in due & self._images.keys():
            picture = self.env.render(0, camera=key.removeprefix(IMAGES), width=width, height=height)
            self._images[key](image(picture.numpy(), ns, self.wiring.cameras[key]))
        for key in due & self._depths.keys():
            topic, view = self.wiring.depth_cameras[key], self.env.depth(0, key.removeprefix(POINTS))
            if key in self._lenses:
                self._lenses[key](camera_info(view.camera, self.env.views.cloud.size, ns, topic))
            self._depths[key](depth_image(view.depth, ns, topic))

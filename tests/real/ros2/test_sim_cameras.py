"""The simulated arm's cameras: at the rates of the wiring, and with the calibration that they have in the scene."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("rclpy")

from sensor_msgs.msg import CameraInfo, Image

from robopolicy import sim
from robopolicy.real.ros2.channels import WiringError
from robopolicy.real.ros2.depth import DepthReader
from robopolicy.real.ros2.images import ImageReader
from robopolicy.real.ros2.sim_cameras import SimCameras
from robopolicy.real.ros2.wiring import load_wiring
from robopolicy.utils.point_clouds import PointCloud

WIRING = load_wiring("mujoco_panda")
POINTS, IMAGE = "observation.points.wrist", "observation.images.front"


class Node:
    """As much of a node as publishes."""

    def __init__(self) -> None:
        self.said: list = []

    def create_publisher(self, kind, name, qos):
        return type("Publisher", (), {"publish": lambda _, message: self.said.append((name, kind, message))})()


def cameras(node: Node, wiring=WIRING, **options) -> SimCameras:
    given = {"cameras": ("front",), "image_size": (24, 32), "points": ("wrist",), "joint_noise": 0.0, **options}
    env = sim.make("reach", 1, **given)
    env.reset(torch.tensor([3]))
    return SimCameras(node, env, wiring)


def test_pictures_depth_and_lens_are_said_at_the_rate_of_the_wiring():
    node = Node()
    it = cameras(node)
    it.check()
    physics = it.env.physics
    for tick in range(1000, 1021):
        it.film(tick, physics.qpos[0].copy(), physics.qvel[0].copy())
    topic, names = WIRING.depth_cameras[POINTS], [name for name, _, _ in node.said]
    assert names.count(topic.name) == names.count(topic.camera_info) == 3 == names.count("camera/front/image_raw")
    said = {kind: message for name, kind, message in node.said if name != "camera/front/image_raw"}
    reader = DepthReader(POINTS, topic, WIRING.calibrations[POINTS])
    reader.on_lens(said[CameraInfo])
    view = it.env.depth(0, "wrist")
    np.testing.assert_allclose(np.multiply(*reader.read(said[Image])), view.depth, rtol=1e-6)
    assert reader.lens == view.camera and said[Image].header.stamp == said[CameraInfo].header.stamp
    (picture,) = (m for name, _, m in node.said[-3:] if name == "camera/front/image_raw")
    expected = it.env.sense(physics.qpos.copy(), physics.qvel.copy())[0][IMAGE][0].numpy()
    assert np.array_equal(ImageReader(IMAGE, (3, 24, 32), WIRING.cameras[IMAGE]).read(picture), expected)


def swapped(**changes):
    return replace(
        WIRING, depth_cameras=WIRING.depth_cameras | {POINTS: replace(WIRING.depth_cameras[POINTS], **changes)}
    )


@pytest.mark.parametrize(
    ("wiring", "options", "what"),
    [
        (
            WIRING,
            {"points": ("front",), "camera_offset": (0.0, 0.1, 0.0)},
            r"pose: the scene's camera is at \[1\.2, 0\.1",
        ),
        (swapped(camera_info=None), {"cloud": PointCloud(size=(48, 64))}, r"size, intrinsics: expected \[48, 64\]"),
        (swapped(frame_id="front"), {}, "camera: expected 'front', the file is of 'wrist'"),
    ],
)
def test_a_calibration_that_is_not_the_scenes_is_refused(wiring, options, what):
    with pytest.raises(WiringError, match=what):
        cameras(Node(), wiring, **options).check()


def test_another_size_is_told_by_camera_info():
    cameras(Node(), cloud=PointCloud(size=(48, 64))).check()
    cameras(Node(), swapped(camera_info=None)).check()

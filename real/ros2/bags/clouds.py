"""Clouds of a bag's depth images, by the code of the policy node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sensor_msgs.msg import CameraInfo, Image

from robopolicy.core.errors import DataError
from robopolicy.core.types import Feature
from robopolicy.datasets.converted import UnusableError
from robopolicy.real.control.depth_cameras import DepthCamera, DepthPicture, JointLog
from robopolicy.real.ros2.bags.checks import Stream, newest
from robopolicy.real.ros2.bags.reader import Bag, Item, stamp_of
from robopolicy.real.ros2.channels import Topic
from robopolicy.real.ros2.depth import DepthReader
from robopolicy.real.ros2.wiring import Wiring
from robopolicy.real.safety import SafetyError
from robopolicy.utils.point_clouds import PointCloud

Array = NDArray[np.float64]
Take = Callable[[Item, Any, type], Any]  # a message, its reader, its type


class DepthClouds:
    """The depth cameras of a wiring that say how clouds are made (`cloud`), and that a bag holds.

    Args:
        find: the bag's name of a topic of this type. take: reads a message.

    Raises:
        DataError: a topic is of another type, or the lens of a camera is missing or wrong.
        WiringError: a calibration is of another camera, of another arm, or older than the arm's last change.
    """

    def __init__(self, bag: Bag, wiring: Wiring, find: Callable[[Topic | None, type], str | None], take: Take) -> None:
        self.bag, self.wiring, self.take = bag, wiring, take
        self.names: dict[str, str] = {}  # topics in the bag, by feature
        self.readers: dict[str, DepthReader] = {}
        self.features: dict[str, Feature] = {}
        for key, topic in wiring.depth_cameras.items():
            if topic.cloud is None or (name := find(topic, Image)) is None:
                continue
            self.readers[key] = reader = DepthReader(key, topic, wiring.calibration(key))
            if topic.lens is not None:
                info = find(topic.lens, CameraInfo)
                first = None if info is None else next(iter(bag.items([info])), None)
                if first is None:
                    raise DataError(f"{bag.path}: {key}: nothing on {topic.camera_info!r}, which holds the lens")
                take(first, reader.on_lens, CameraInfo)
            self.names[key] = name
            self.features[key] = Feature((topic.cloud.count, 3), names=topic.cloud.names)
        self.streams = {key: self._stream(name) for key, name in self.names.items()}  # values: number of the message

    def checked(self, patience: float) -> Iterator[tuple[str, Stream, Topic, float]]:
        """List name, stream, topic and patience [s] of each camera."""
        yield from ((key, s, self.wiring.depth_cameras[key], patience) for key, s in self.streams.items())

    def at(self, at: Array, states: Stream) -> dict[str, NDArray[np.float32]]:
        """Return the clouds [T P 3] by feature, of the pictures that are the newest at `at` [T] s.

        Args:
            states: of the arm, joints [M n …] first.

        Raises:
            UnusableError: a cloud has too few points, or it is not known where the arm stood.
        """
        log, n = JointLog(np.inf), len(self.wiring.joints)
        assert states.stamped is not None
        for time, values in zip(states.stamped, states.values, strict=True):
            log.take(float(time), values[:n])
        return {key: self._clouds(key, newest(stream, at), log) for key, stream in self.streams.items()}

    def _clouds(self, key: str, wanted: NDArray[np.int64], log: JointLog) -> NDArray[np.float32]:
        topic, reader = self.wiring.depth_cameras[key], self.readers[key]
        cloud = topic.cloud or PointCloud()
        camera = DepthCamera(key, topic, self.wiring.calibration(key), self.wiring.profile(), cloud)
        out = np.empty((len(wanted), cloud.count, 3), np.float32)
        frames = {int(m): np.flatnonzero(wanted == m) for m in np.unique(wanted)}
        for number, item in enumerate(self.bag.items([self.names[key]])):
            if number in frames:
                numbers, unit = self.take(item, reader.read, Image)
                taken = stamp_of(item)
                try:
                    out[frames[number]] = camera(DepthPicture(numbers, unit, reader.lens, taken, taken), log.at(taken))
                except (DataError, SafetyError) as error:
                    raise UnusableError(f"{key}: {error}") from error
        return out

    def _stream(self, name: str) -> Stream:
        times = np.array([(i.arrived, stamp_of(i)) for i in self.bag.items([name])]).reshape(-1, 2)
        return Stream(times[:, 0], times[:, 1], np.arange(len(times), dtype=np.float64))

"""Writing rosbag2 bags with `rosbags`: MCAP with CDR messages, and `ros2 bag`'s metadata.yaml."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rosbags.interfaces import Connection
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from robopolicy.real.ros2.bags.reader import type_name

TYPES = get_typestore(Stores.ROS2_JAZZY)


class BagWriter(Writer):
    """Writes one bag into the new folder `folder`; a context manager.

    Args:
        about: text by key, which goes into metadata.yaml as `custom_data`.
    """

    def __init__(self, folder: Path, *, about: Mapping[str, str]) -> None:
        super().__init__(folder, version=8, storage_plugin=StoragePlugin.MCAP)
        self.custom_data.update(about)
        self._topics: dict[str, Connection] = {}

    def add(self, topic: str, ns: int, message: Any) -> None:
        """Add a message that arrived at `ns` by the recorder's clock; a relative topic lies in the root namespace."""
        name, kind = topic if topic.startswith("/") else f"/{topic}", type_name(type(message))
        if name not in self._topics:
            self._topics[name] = self.add_connection(name, kind, typestore=TYPES)
        self.write(self._topics[name], ns, TYPES.serialize_cdr(_for_rosbags(message), kind))


def _for_rosbags(value: Any) -> Any:
    """Return a message of rclpy, or a value in one, as rosbags writes it."""
    if isinstance(value, array):
        return np.asarray(value)
    if isinstance(value, list):
        return [_for_rosbags(item) for item in value]
    if hasattr(value, "get_fields_and_field_types"):
        parts = {name: _for_rosbags(getattr(value, name)) for name in value.get_fields_and_field_types()}
        return TYPES.types[type_name(type(value))](**parts)
    return value

"""Writing rosbag2 bags: MCAP with CDR messages, encoded by rclpy itself, and `ros2 bag`'s metadata.yaml."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml
from mcap.writer import Writer
from rclpy.serialization import serialize_message

from robopolicy.real.ros2.bags.reader import type_name

VERSION = 8  # of metadata.yaml; newer rosbag2 reads it, and older ones down to Humble skip unknown keys
SIZES = {"boolean": 1, "octet": 1, "char": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4,
         "int64": 8, "uint64": 8, "float": 4, "double": 8}  # bytes of CDR  # fmt: skip
HEADER = 4  # bytes before a CDR message, from behind which alignment counts
PLAIN = {"boolean": "bool", "octet": "byte", "float": "float32", "double": "float64"}  # IDL's names -> those of .msg
_SEQUENCE = re.compile(r"sequence<([^,>]+)(?:, *(\d+))?>")
_ARRAY = re.compile(r"(.+?)(\[\d+\])$")


class BagWriter:
    """Writes one bag into the new folder `folder`; a context manager.

    Args:
        about: text by key, which goes into metadata.yaml as `custom_data`.
    """

    def __init__(self, folder: Path, *, about: Mapping[str, str]) -> None:
        folder.mkdir(parents=True)
        self.folder, self.about, self.file = folder, dict(about), folder / f"{folder.name}_0.mcap"
        self.types: dict[str, str] = {}
        self.count = Counter[str]()
        self._times: tuple[int, int] | None = None  # ns, of the first message and of the last
        self._channels: dict[str, int] = {}
        self._stream = self.file.open("wb")
        self._writer = Writer(self._stream)
        self._writer.start(profile="ros2", library="robopolicy")

    def add(self, topic: str, ns: int, message: Any) -> None:
        """Add a message that arrived at `ns` by the recorder's clock; a relative topic lies in the root namespace."""
        name = topic if topic.startswith("/") else f"/{topic}"
        if name not in self._channels:
            kind = type_name(type(message))
            schema = self._writer.register_schema(kind, "ros2msg", definition(type(message)).encode())
            self._channels[name] = self._writer.register_channel(name, "cdr", schema, {"offered_qos_profiles": ""})
            self.types[name] = kind
        data = serialize_message(message)[: HEADER + cdr_size(message)]  # the memory behind it is uninitialised
        self._writer.add_message(self._channels[name], ns, data, ns, self.count[name])
        self.count[name] += 1
        first, last = self._times or (ns, ns)
        self._times = min(first, ns), max(last, ns)

    def __enter__(self) -> BagWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._writer.finish()
                (self.folder / "metadata.yaml").write_text(yaml.safe_dump(self._metadata(), sort_keys=False))
        finally:
            self._stream.close()

    def _metadata(self) -> dict[str, Any]:
        first, last = self._times or (0, 0)

        def span() -> dict[str, Any]:  # a new object each time: YAML would write references
            return {
                "duration": {"nanoseconds": last - first}, "starting_time": {"nanoseconds_since_epoch": first},
                "message_count": sum(self.count.values()),
            }  # fmt: skip

        topics = [
            {
                "topic_metadata": {
                    "name": name, "type": kind, "serialization_format": "cdr", "offered_qos_profiles": "",
                    "type_description_hash": "",
                },
                "message_count": self.count[name],
            }
            for name, kind in self.types.items()
        ]  # fmt: skip
        return {
            "rosbag2_bagfile_information": {
                "version": VERSION, "storage_identifier": "mcap", **span(), "topics_with_message_count": topics,
                "compression_format": "", "compression_mode": "", "relative_file_paths": [self.file.name],
                "files": [{"path": self.file.name, **span()}], "custom_data": self.about, "ros_distro": "unknown",
            }
        }  # fmt: skip


def definition(kind: type) -> str:
    """Return the .msg text of a message type and of all types inside, in the form of MCAP's `ros2msg` schemas."""
    parts, waiting, known = list[str](), [type_name(kind).replace("/msg/", "/")], set[str]()
    while waiting:
        name = waiting.pop(0)
        if name in known:
            continue
        known.add(name)
        package, _, simple = name.partition("/")
        fields = getattr(importlib.import_module(f"{package}.msg"), simple).get_fields_and_field_types()
        lines = []
        for field, text in fields.items():
            element, suffix = _element(text)
            lines.append(f"{PLAIN.get(element, element)}{suffix} {field}")
            waiting += [element] * ("/" in element)
        parts.append(("MSG: " + name + "\n") * bool(parts) + "\n".join(lines) + "\n")
    return ("=" * 80 + "\n").join(parts)


def cdr_size(message: Any, at: int = 0) -> int:
    """Return where a message's CDR ends that begins at `at`, both in bytes behind the header.

    rclpy hands out more where a sequence is empty; readers that check, such as rosbags, take that for damage.
    """
    for field, text in message.get_fields_and_field_types().items():
        element, suffix = _element(text)
        value = getattr(message, field)
        if suffix.startswith("[") and not suffix[1:-1].isdigit():
            at = at + -at % 4 + 4  # how many follow
        if (size := SIZES.get(element)) is not None:
            count = len(value) if suffix else 1
            at += (-at % size + size * count) * bool(count)
        else:
            for item in value if suffix else [value]:
                at = at + -at % 4 + 5 + len(item.encode()) if isinstance(item, str) else cdr_size(item, at)
    return at


def _element(text: str) -> tuple[str, str]:
    """Return the type of an element, and a function that makes an array of it."""
    if found := _SEQUENCE.fullmatch(text):
        return found[1], f"[<={found[2]}]" if found[2] else "[]"
    if found := _ARRAY.fullmatch(text):
        return found[1], found[2]
    return text, ""

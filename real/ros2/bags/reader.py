"""Reading rosbag2 bags: MCAP or sqlite3 files with CDR messages, decoded by rclpy itself."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from mcap.reader import make_reader
from rclpy.serialization import deserialize_message

from robopolicy.core.errors import DataError
from robopolicy.core.untrusted import check_links, check_types, inside, read_yaml
from robopolicy.datasets.files import visible
from robopolicy.real.recording.mcap_files import check_chunks

STORAGES = {".mcap": "mcap", ".db3": "sqlite3"}
_ZSTD = b"\x28\xb5\x2f\xfd"  # a message of CDR begins with 0
_HEADER = 4  # bytes before a CDR message: its byte order and options


class Item(NamedTuple):
    """A message as it was recorded."""

    topic: str
    arrived: float  # s, by the recorder's clock
    data: bytes  # CDR


def bags_in(path: Path) -> list[Path]:
    """List the bags at `path`: one bag (a folder with metadata.yaml, or a file), or a folder of bags.

    Raises:
        DataError: there is none.
    """
    if (path / "metadata.yaml").is_file() or _files(path):
        return [path]
    if found := sorted(p for p in path.glob("*") if p.is_dir() and ((p / "metadata.yaml").is_file() or _files(p))):
        return found
    raise DataError(f"recording={path}: no rosbag2 bag, and no folder of such. `ros2 bag record -s mcap …` makes one.")


class Bag:
    """Read one bag. `about`: the `custom_data` of its metadata, text by key.

    Args:
        path: its folder, or its file.

    Raises:
        DataError: not a bag, of a storage that is not read here, compressed by file, or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        about = _about(path)
        if str(about.get("compression_mode") or "").upper() == "MESSAGE":
            raise _compressed(f"{path}: metadata.yaml, compression_mode")
        custom = about.get("custom_data")
        self.about = {str(k): str(v) for k, v in custom.items()} if isinstance(custom, dict) else {}
        check_links(path, where=str(path), error=DataError)
        self.files = _named(path, about) or _files(path)
        if not self.files:
            raise DataError(f"{path}: expected files named *_0.mcap or *_0.db3, or in metadata.yaml; found none")
        for file in self.files:
            if file.suffix not in STORAGES:
                raise DataError(
                    f"{file}: expected a file of MCAP (.mcap) or sqlite3 (.db3). If it is compressed as a whole, undo "
                    "it with `ros2 bag convert`, and record with `-s mcap --storage-preset-profile zstd_fast`."
                )
            if (said := about.get("storage_identifier") or STORAGES[file.suffix]) != STORAGES[file.suffix]:
                raise DataError(f"{path}: storage_identifier: expected that of {file.suffix} files, found {said!r}")
            if not file.is_file():
                raise DataError(f"{file}: no such file, though {path.name}/metadata.yaml names it")
        self.types: dict[str, str] = {}  # message type, by topic
        for file in self.files:
            with _damage(file):
                self.types |= dict(_read(file, None))

    def topic(self, wired: str) -> str | None:
        """Return the bag's name of the topic that the wiring calls `wired`; None where it has none.

        A relative name may lie in any namespace.

        Raises:
            DataError: in more than one.
        """
        if wired.startswith("/"):
            return wired if wired in self.types else None
        found = [name for name in self.types if name == f"/{wired}" or name.endswith(f"/{wired}")]
        if len(found) > 1:
            raise DataError(f"{self.path}: {wired!r} may be any of {found}. Give the whole name in the wiring.")
        return found[0] if found else None

    def items(self, topics: Collection[str]) -> Iterator[Item]:
        """Return the messages on `topics`, in the order of arrival.

        Raises:
            DataError: damaged.
        """
        for file in self.files if topics else ():
            with _damage(file):
                for found in _read(file, set(topics)):
                    if found[2][:4] == _ZSTD:
                        raise _compressed(f"{file}, {found[0]}")
                    yield Item(*found)


def type_name(kind: type) -> str:
    """Return a type's name, e.g. `sensor_msgs/msg/JointState`."""
    return f"{kind.__module__.split('.')[0]}/msg/{kind.__name__}"


def decode(item: Item, kind: type) -> Any:
    """Decode the message in `item`; raises DataError where it is none of this type."""
    try:
        return deserialize_message(item.data, kind)
    except Exception as error:
        raise DataError(f"{item.topic}: a message that is no {kind.__name__} ({error})") from error


def stamp_of(item: Item) -> float:
    """Read the stamp [s] of a message that begins with a header, without decoding the rest.

    Raises:
        DataError: it is shorter than a header.
    """
    if len(item.data) < _HEADER + 8:
        raise DataError(f"{item.topic}: a message of {len(item.data)} bytes, too short for a header")
    little = item.data[1] & 1
    seconds, nanoseconds = struct.unpack_from("<iI" if little else ">iI", item.data, _HEADER)
    return float(seconds + 1e-9 * nanoseconds)


@contextmanager
def _damage(file: Path) -> Iterator[None]:
    """Whatever a damaged file makes of its reader becomes a DataError."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}{f': {error}' if str(error) else ''}"
        raise DataError(
            f"{file}: damaged or cut off ({why}). `mcap recover` or `ros2 bag reindex` may save what is there."
        ) from error


# -- inside ---------------------------------------------------------------------------------------------------------
def _compressed(where: str) -> DataError:
    return DataError(
        f"{where}: compressed message by message, which is not read; MCAP's own compression is. Undo it with "
        "`ros2 bag convert`, and record with `-s mcap --storage-preset-profile zstd_fast`."
    )


def _files(path: Path) -> list[Path]:
    """Of a folder, in the order of their names, which is that of writing; or `path`, where it is a file."""
    if path.is_file():
        return [path]
    for suffix in STORAGES:
        found = [f for f in visible(path.glob(f"*{suffix}")) if f.stem.rpartition("_")[2].isdecimal()]
        if found:
            return sorted(found, key=lambda f: int(f.stem.rpartition("_")[2]))
    return []


def _about(path: Path) -> dict[str, Any]:
    """Read metadata.yaml; empty where there is none."""
    file = path / "metadata.yaml"
    if not file.is_file():
        return {}
    data = read_yaml(file, error=DataError)
    found = data.get("rosbag2_bagfile_information") if isinstance(data, dict) else None
    if not isinstance(found, dict):
        raise DataError(f"{file}: not the metadata of a bag: rosbag2_bagfile_information is missing or no mapping; "
                        "`ros2 bag reindex` makes a new one")  # fmt: skip
    check_types(found, {"storage_identifier": str, "relative_file_paths": list}, str(file), DataError)
    return found


def _named(path: Path, about: dict[str, Any]) -> list[Path]:
    """Return the files that metadata.yaml names: in the bag, wherever it says they are."""
    names = about.get("relative_file_paths") or []
    where = f"{path}/metadata.yaml: relative_file_paths"
    if bad := [name for name in names if not isinstance(name, str)]:
        raise DataError(f"{where}: expected names, found {bad[0]!r}")
    return [inside(path, name.rpartition("/")[2], where=where, error=DataError) for name in names]


def _read(file: Path, topics: set[str] | None) -> Iterator[tuple[Any, ...]]:
    return (_mcap if file.suffix == ".mcap" else _sqlite)(file, topics)


def _mcap(file: Path, topics: set[str] | None) -> Iterator[tuple[Any, ...]]:
    """(topic, type) of all where `topics` is None, else (topic, s, data) of those."""
    with file.open("rb") as stream:
        if topics is None:
            check_chunks(stream)
            stream.seek(0)
        reader = make_reader(stream, validate_crcs=True)
        if topics is None:
            summary = reader.get_summary()
            if summary is None or summary.statistics is None:
                raise EOFError("no summary at its end")
            for channel in summary.channels.values():
                schema = summary.schemas.get(channel.schema_id)
                if channel.message_encoding == "cdr" and schema is not None:
                    yield channel.topic, schema.name
            return
        for _, channel, message in reader.iter_messages(topics=topics):
            yield channel.topic, message.log_time * 1e-9, message.data


def _sqlite(file: Path, topics: set[str] | None) -> Iterator[tuple[Any, ...]]:
    """Return the same of a .db3 file."""
    base = sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)
    try:
        base.execute("PRAGMA trusted_schema = OFF")
        tables = {name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not {"topics", "messages"} <= tables:  # a view may compute for ever
            raise DataError(f"{file}: not the storage of a bag: topics and messages must be tables")
        names = {number: (name, kind) for number, name, kind in base.execute("SELECT id, name, type FROM topics")}
        if topics is None:
            yield from names.values()
            return
        wanted = [number for number, (name, _) in names.items() if name in topics]
        marks = ",".join("?" * len(wanted))
        rows = base.execute(
            f"SELECT topic_id, timestamp, data FROM messages WHERE topic_id IN ({marks}) ORDER BY timestamp, id", wanted
        )
        for number, stamp, data in rows:
            yield names[number][0], stamp * 1e-9, bytes(data)
    finally:
        base.close()

"""Read one recorded episode from its MCAP file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pydantic
from mcap.records import Channel, Message

from robopolicy.core.errors import DataError
from robopolicy.core.untrusted import checked, parse_json
from robopolicy.real.recording.mcap_files import WHOLE, records
from robopolicy.real.recording.recorder import FORMAT

Counts = dict[str, Annotated[int, pydantic.Field(ge=0, lt=2**53)]]  # messages, by topic


class Footer(pydantic.BaseModel):
    """Numbers at the end of a whole recording."""

    messages: Counts
    dropped: Counts


@dataclass
class Recording:
    """Messages of a recording, in the order of writing."""

    path: Path
    messages: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # topic, content
    damage: str = ""  # why reading ended early

    @property
    def header(self) -> dict[str, Any]:
        return self.messages[0][1]

    @property
    def footer(self) -> dict[str, Any]:
        return self.messages[-1][1]

    def of(self, topic: str) -> list[dict[str, Any]]:
        return [content for name, content in self.messages if name == topic]

    @property
    def lost(self) -> dict[str, int]:
        """Messages by topic that the recorder had no time for."""
        return {k: v for k, v in self.footer["dropped"].items() if v}

    @property
    def cut_off(self) -> str:
        """Say what is damaged and how much could be read; "" of a whole recording."""
        if not self.damage:
            return ""
        ticks = self.of("tick")
        now = ticks[-1].get("now") if ticks else None
        until = f", up to {now:.3f} s" if isinstance(now, float) else ""
        return (
            f"is cut off or damaged ({self.damage}). {len(ticks)} ticks and {len(self.of('step'))} control steps could "
            f"be read{until}"
        )


def read(path: Path, *, whole: bool = True) -> Recording:
    """Read a recording.

    Args:
        whole: refuse a file that is cut off or damaged; False takes its readable part.

    Raises:
        DataError: not a recording, of a newer format, or not whole; says how much was readable.
    """
    if not path.is_file():
        raise DataError(f"recording={path}: no such file")
    found, channels = Recording(path), dict[int, str]()
    try:
        with path.open("rb") as file:
            unpacked = 0
            for record in records(file):
                if isinstance(record, Channel):
                    channels[record.id] = record.topic.removeprefix("/")
                elif isinstance(record, Message):
                    unpacked += len(record.data)
                    found.messages.append((channels[record.channel_id], _content(record.data, unpacked)))
    except Exception as error:  # whatever a damaged file makes of the reader
        found.damage = f"{type(error).__name__}{f': {error}' if str(error) else ''}"
    if not found.messages or found.messages[0][0] != "header":
        why = f" ({found.damage})" if found.damage else ""
        raise DataError(f"{path}: not a recording of robopolicy, or cut off before anything was written{why}")
    if found.header.get("format") != FORMAT:
        raise DataError(f"{path}: format {found.header.get('format')!r}, this robopolicy reads {FORMAT}. Upgrade it.")
    if found.messages[-1][0] == "footer":
        checked(Footer, found.footer, f"{path}: footer", error=DataError)
    elif not found.damage:
        found.damage = "there is no footer"
    if whole and found.damage:
        raise DataError(f"{path}: {found.cut_off}. Restore it from a copy.")
    return found


def _content(data: bytes, whole: int) -> dict[str, Any]:
    """One message; `whole` bytes have been read up to it."""
    if whole > WHOLE:
        raise DataError(f"unpacks to more than {WHOLE} bytes")
    found = parse_json(data, "a message", error=DataError)
    if not isinstance(found, dict):
        raise DataError(f"a message is a {type(found).__name__}, expected an object")
    return found

"""Choose the films of a report page, and how they are captioned."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from robopolicy.reporting.run_reader import Video


class Tile(NamedTuple):
    """One film of the page."""

    kind: str  # pair | failure | success | other
    outcomes: list[str]
    caption: str
    data: str  # the file in base64


def films(videos: Sequence[Video], *, max_bytes: int) -> tuple[list[Tile], str]:
    """Return the films that fit into `max_bytes`, pairs and failures first, and a sentence about the others."""

    def rank(video: Video) -> int:
        kinds = ["pair", "failure", "other", "success"]
        return kinds.index(_kind(video)) if _kind(video) in kinds else kinds.index("other")

    # In turns over the folders, so that a tight budget does not spend itself on one policy's films.
    ordered: list[Video] = []
    for _, group in itertools.groupby(sorted(videos, key=rank), key=rank):
        folders: dict[Path, list[Video]] = {}
        for video in group:
            folders.setdefault(video.path.parent, []).append(video)
        ordered += [v for turn in itertools.zip_longest(*folders.values()) for v in turn if v is not None]
    tiles, left_out, used = [], [], 0
    for video in ordered:
        size = video.path.stat().st_size
        if used + size > max_bytes:
            left_out.append(video.path.name)
            continue
        used += size
        which = f"seed {video.seed}" if video.seed is not None else video.path.stem
        tiles.append(
            Tile(
                kind=_kind(video),
                outcomes=[o for o in video.outcome.split(" | ") if o],
                caption=" · ".join(part for part in (video.label, which) if part),
                data=base64.b64encode(video.path.read_bytes()).decode(),
            )
        )
    if not left_out:
        return tiles, ""
    more = " …" if len(left_out) > 6 else ""
    return tiles, f" {len(left_out)} films did not fit into this page: {', '.join(left_out[:6])}{more}."


def _kind(video: Video) -> str:
    return "pair" if video.kind == "pair" else video.outcome or "other"

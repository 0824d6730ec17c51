"""Choose the films of a page, those that matter most first, within a bound of bytes."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from robopolicy.reporting.run_reader import Video

_KINDS = ("regression", "improvement", "pair", "failure", "other", "success")  # in the order of the page


class Tile(NamedTuple):
    """One film of the page."""

    kind: str  # one of _KINDS
    pair: bool  # two policies side by side
    outcomes: list[str]
    caption: str
    data: str  # the file in base64


def films(videos: Sequence[Video], *, max_bytes: int) -> tuple[list[Tile], str]:
    """Return the films that fit into `max_bytes`, regressions first, and a sentence about the others."""

    def rank(video: Video) -> int:
        return _KINDS.index(_kind(video))

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
                pair=video.kind == "pair",
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
    if video.kind == "pair":
        return {"success | failure": "regression", "failure | success": "improvement"}.get(video.outcome, "pair")
    return video.outcome if video.outcome in _KINDS else "other"

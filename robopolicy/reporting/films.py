"""Write the section of films of a report page."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Sequence
from html import escape
from pathlib import Path

from robopolicy.reporting.run_reader import Video
from robopolicy.reporting.sections import section

_OUTCOME = {"success": "good", "failure": "bad"}


def films(videos: Sequence[Video], *, max_bytes: int) -> str:
    if not videos:
        return ""

    def rank(video: Video) -> int:
        kinds = ["pair", "failure", "", "success"]
        kind = "pair" if video.kind == "pair" else video.outcome
        return kinds.index(kind if kind in kinds else "")

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
        kind = "pair" if video.kind == "pair" else video.outcome or "other"
        which = f"seed {video.seed}" if video.seed is not None else video.path.stem
        caption = " · ".join(part for part in (video.label, which) if part)
        outcomes = [o for o in video.outcome.split(" | ") if o]
        mark = "".join(f'<em class="{_OUTCOME.get(o, "dim")}">{escape(o)}</em>' for o in outcomes)
        data = base64.b64encode(video.path.read_bytes()).decode()
        tiles.append(
            f'<figure data-kind="{escape(kind)}"><video controls loop muted playsinline preload="auto" '
            f'src="data:video/mp4;base64,{data}"></video><figcaption>{mark}{escape(caption)}</figcaption></figure>'
        )
    kinds = [k for k in ("pair", "failure", "success", "other") if any(f'data-kind="{k}"' in t for t in tiles)]
    names = {"pair": "side by side", "failure": "failures", "success": "successes", "other": "others"}
    chips = "".join(f'<button data-show="{k}">{names[k]}</button>' for k in kinds) if len(kinds) > 1 else ""
    bar = f'<div class="chips"><button data-show="" class="on">all</button>{chips}<button data-play>play</button></div>'
    note = "Side by side first, then failures, then successes."
    if left_out:
        more = " …" if len(left_out) > 6 else ""
        note += f" {len(left_out)} films did not fit into this page: {', '.join(left_out[:6])}{more}."
    pairs, single = ([t for t in tiles if ('data-kind="pair"' in t) == wanted] for wanted in (True, False))
    grids = [f'<div class="films pairs">{"".join(pairs)}</div>'] if pairs else []
    grids += [f'<div class="films">{"".join(single)}</div>'] if single else []
    return section("Films", bar + "".join(grids), escape(note))

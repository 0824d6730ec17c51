"""Read and check `meta/episodes`: the rows and the seconds of film of every episode.

Naive merges repeat an episode's number, or leave spans of film that overlap and show another episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from robopolicy.datasets.checks import Defect
from robopolicy.datasets.parquet import Kind, number, parquet_files, read_parts, whole
from robopolicy.datasets.source import DatasetInfo

_FRAME = 0.5  # frame periods: largest difference of spans and timestamps
_MERGE = "Was it merged by copying files? Merge with LeRobot's tools (lerobot-edit-dataset), or record again"
_FILM = {"chunk_index": "whole", "file_index": "whole", "from_timestamp": "number", "to_timestamp": "number"}
_ROWS = ("dataset_from_index", "dataset_to_index")


@dataclass(frozen=True)
class FilmBlock:
    """Rows [first, end) of the table, which belong to one episode."""

    index: int
    first: int
    end: int

    @property
    def rows(self) -> slice:
        return slice(self.first, self.end)


@dataclass(frozen=True)
class Span:
    """Seconds [begin, end) of a film file."""

    chunk: int
    file: int
    begin: float
    end: float


@dataclass(frozen=True)
class EpisodeSpans:
    """Rows of `meta/episodes`. `index` [E], `length` [E] frames, `rows` [E 2] of the whole table, `spans` by camera.

    None, or a camera that is absent: the column cannot be used.
    """

    index: NDArray[np.int64]
    length: NDArray[np.int64] | None
    rows: NDArray[np.int64] | None
    spans: Mapping[str, list[Span]]

    def where(self, camera: str) -> dict[int, Span]:
        """Span of each episode in the films of a camera."""
        return dict(zip(self.index.tolist(), self.spans.get(camera, ()), strict=False))


class SpanDefects(list[tuple[frozenset[int], Defect]]):
    """Defects, each with the episodes that it concerns."""

    def note(self, key: str, problem: str, *episodes: int, fix: str = _MERGE) -> None:
        self.append((frozenset(episodes), Defect(key, problem, fix, episodes[0] if episodes else None)))

    def of(self, episodes: Sequence[int] | None) -> list[Defect]:
        """Return the defects that concern one of `episodes`; None: all."""
        wanted = None if episodes is None else set(episodes)
        return [d for concerns, d in self if wanted is None or not concerns or concerns & wanted]


def blocks_of(index: NDArray[np.int64]) -> list[FilmBlock]:
    """Runs of rows with the same episode index [F]."""
    edges = np.flatnonzero(np.r_[True, index[1:] != index[:-1], True]) if len(index) else np.zeros(1, np.int64)
    return [FilmBlock(int(index[a]), int(a), int(b)) for a, b in zip(edges[:-1], edges[1:], strict=True)]


def read_episodes(source: DatasetInfo, cameras: Sequence[str]) -> tuple[EpisodeSpans | None, list[Defect]]:
    """Read `meta/episodes` with the spans of `cameras` (names of the dataset), and the defects of its columns."""
    wanted: dict[str, Kind] = {"episode_index": "whole", "length": "whole", **dict.fromkeys(_ROWS, "whole")}
    for camera in cameras:
        wanted |= {f"videos/{camera}/{k}": kind for k, kind in _FILM.items()}  # type: ignore[misc]
    files = parquet_files(source.root / "meta" / "episodes")
    fix = "The recording was cut off, or a file was lost: copy the whole folder again, or record again"
    if not files:
        return None, [Defect("meta/episodes", "holds no parquet file", fix)]
    table, found = read_parts(files, wanted, source.root, fix=fix)
    if table is None or "episode_index" not in table.column_names:
        return None, found
    has = set(table.column_names)
    spans = {c: _spans(table, c) for c in cameras if has >= {f"videos/{c}/{k}" for k in _FILM}}
    rows = np.stack([whole(table, k) for k in _ROWS], axis=1) if has >= set(_ROWS) else None
    length = whole(table, "length") if "length" in has else None
    return EpisodeSpans(whole(table, "episode_index"), length, rows, spans), found


def check_blocks(blocks: Sequence[FilmBlock], table: EpisodeSpans | None) -> SpanDefects:
    """Check that each episode is in the table once, in order, with the length in `meta/episodes`."""
    found = SpanDefects()
    first: dict[int, FilmBlock] = {}
    for block in blocks:
        if (same := first.setdefault(block.index, block)) is not block:
            where = f"rows {same.first}–{same.end - 1} and {block.first}–{block.end - 1}"
            found.note("episode_index", f"is twice in data/: {where}", block.index)
    for before, after in zip(blocks, blocks[1:], strict=False):
        if not before.index < after.index and first[after.index] is after:
            found.note("episode_index", f"comes after {before.index} in data/", after.index, before.index)
    if table is None:
        return found
    counts = dict(zip(*(v.tolist() for v in np.unique(table.index, return_counts=True)), strict=True))
    for index, count in counts.items():
        if count > 1:
            found.note("episode_index", f"is {count} times in meta/episodes", index)
        if index not in first:
            found.note("episode_index", "is in meta/episodes, and has no frames in data/", index)
    for before, after in zip(table.index.tolist(), table.index[1:].tolist(), strict=False):
        if before > after:
            found.note("episode_index", f"comes after {before} in meta/episodes", after, before)
    lengths = dict(zip(table.index.tolist(), [] if table.length is None else table.length.tolist(), strict=False))
    for index, block in first.items():
        if index not in counts:
            found.note("episode_index", "has no row in meta/episodes", index)
        elif (said := lengths.get(index)) is not None and said != block.end - block.first:
            found.note("length", f"is {said} in meta/episodes, data/ holds {block.end - block.first} frames", index)
    return found


def check_rows(blocks: Sequence[FilmBlock], table: EpisodeSpans) -> SpanDefects:
    """Check the row numbers of each episode, by which LeRobot reads."""
    found = SpanDefects()
    places = {b.index: (b.first, b.end) for b in blocks}
    for index, said in zip(table.index.tolist(), [] if table.rows is None else table.rows.tolist(), strict=False):
        if index in places and tuple(said) != places[index]:
            problem = (
                f"rows {said[0]} to {said[1]} in meta/episodes, rows {places[index][0]} to {places[index][1]} in data/"
            )
            found.note("dataset_from_index", problem, index)
    return found


def check_spans(
    camera: str, table: EpisodeSpans, blocks: Sequence[FilmBlock], stamps: NDArray[np.float64] | None, fps: float
) -> SpanDefects:
    """Check that a camera's spans have the episodes' lengths and order, and do not overlap.

    Args:
        stamps: [F] seconds into the episode; None: unknown.
        fps: NaN: unknown, so that lengths are not compared.
    """
    found, frame = SpanDefects(), 1.0 / fps
    at_fault = SpanDefects()  # of one episode; its film's other episodes may be wrong too
    if camera not in table.spans:
        return found
    where = list(zip(table.index.tolist(), table.spans[camera], strict=True))
    key = f"videos/{camera}"
    for index, span in where:
        if not (span.chunk >= 0 and span.file >= 0):
            at_fault.note(f"{key}/file_index", f"chunk {span.chunk}, file {span.file}: expected 0 or more", index)
        if not 0.0 <= span.begin < span.end < np.inf:
            problem = f"spans {span.begin} s to {span.end} s of its film"
            at_fault.note(f"{key}/from_timestamp", problem, index)
    spans = dict(where)
    for block in blocks if np.isfinite(fps) and stamps is not None else ():
        if block.index not in spans:
            continue
        span = spans[block.index]
        part = stamps[block.rows]  # type: ignore[index]
        if not abs(part[0]) <= _FRAME * frame:
            found.note("timestamp", f"begins at {part[0]:.4f} s, expected 0", block.index)
        if not abs(span.end - span.begin - (part[-1] + frame)) <= _FRAME * frame:
            problem = (f"its film lasts {span.end - span.begin:.4f} s (from_timestamp to to_timestamp), its "
                       f"{len(part)} frames {part[-1] + frame:.4f} s")  # fmt: skip
            at_fault.note(f"{key}/to_timestamp", problem, block.index)
    room = _FRAME * frame if np.isfinite(frame) else 1e-3
    for (a, one), (b, other) in zip(where, where[1:], strict=False):
        if (one.chunk, one.file) > (other.chunk, other.file) or (
            (one.chunk, one.file) == (other.chunk, other.file) and not other.begin >= one.end - room
        ):
            problem = (f"begins at {other.begin:.4f} s of film {other.chunk}/{other.file}, which is before the end of "
                       f"episode {a}: {one.end:.4f} s of film {one.chunk}/{one.file}")  # fmt: skip
            at_fault.note(f"{key}/from_timestamp", problem, b, a)
    films: dict[tuple[int, int], set[int]] = {}
    for index, span in where:
        films.setdefault((span.chunk, span.file), set()).add(index)
    for concerns, defect in at_fault:
        found.append((concerns.union(*(f for f in films.values() if concerns & f)), defect))
    return found


def _spans(table: pa.Table, camera: str) -> list[Span]:
    chunk, file, begin, end = (
        (whole if kind == "whole" else number)(table, f"videos/{camera}/{k}").tolist() for k, kind in _FILM.items()
    )
    return [Span(*values) for values in zip(chunk, file, begin, end, strict=True)]

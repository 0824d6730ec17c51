"""Read camera frames from files into tensors; videos are decoded once, in order, without seeking."""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from robopolicy.core.errors import DataError
from robopolicy.core.types import Feature
from robopolicy.datasets.checks import Defect
from robopolicy.datasets.files import check_regular
from robopolicy.datasets.parquet import number, whole
from robopolicy.datasets.source import DatasetInfo
from robopolicy.datasets.spans import FilmBlock, Span

_DEEP = ("I", "F")  # of Pillow: modes of more than 8 bits a channel begin so


def load_videos(
    source: DatasetInfo, key: str, feature: Feature, table: pa.Table, starts: Tensor, where: Mapping[int, Span]
) -> Tensor:
    """Frames of one camera [F 3 h w] uint8; several episodes share a video file.

    Args:
        where: the span of each episode.

    Raises:
        DataError: too little memory, a file that is missing, cut off or does not fit the table.
    """
    out = _room(source, key, feature, table.num_rows)
    index, stamp = whole(table, "episode_index"), number(table, "timestamp")
    by_file: dict[tuple[int, int], list[tuple[float, int, int]]] = {}
    for first, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        span = where[int(index[first])]
        by_file.setdefault((span.chunk, span.file), []).append((span.begin, first, end))
    for (chunk, file), parts in by_file.items():
        parts.sort()
        times = np.concatenate([begin + stamp[first:end] for begin, first, end in parts])
        rows = np.concatenate([np.arange(first, end) for _, first, end in parts])
        path = source.film(key, chunk, file)
        read_video(path, times, rows, out, fps=source.fps)
        ends = max(span.end for span in where.values() if (span.chunk, span.file) == (chunk, file))
        if not times[-1] >= ends - 1.5 / source.fps:  # the last one's pictures were not read
            _check_end(path, ends, source.fps)
    return out


def _check_end(path: Path, ends: float, fps: float) -> None:
    """Raise DataError where a film ends before its last episode: its spans are shifted, or it is cut off."""
    film = _look(path)
    if isinstance(film, str) or not (len(film[0]) and film[0][-1] + 1.5 / fps >= ends):
        shown = film if isinstance(film, str) else f"ends after {len(film[0]) / fps:.4f} s"
        raise DataError(f"{path}: {shown}, the last episode in it at {ends:.4f} s (to_timestamp). Restore the film, or "
                        "load without this camera (cameras=…).")  # fmt: skip


def read_video(path: Path, times: NDArray[np.float64], rows: NDArray[np.int64], out: Tensor, *, fps: float) -> None:
    """Decode the frames shown at `times` [T] (seconds, ascending) into `out[rows]` (rows [T], out [F 3 h w] uint8).

    A frame counts as the one at `t` when it lies within a quarter of a frame period of it.

    Raises:
        DataError: unreadable file, frames of another size, a time for which there is no frame.
    """
    import av

    tolerance, at, size = 0.25 / fps, 0, tuple(out.shape[2:])
    check_regular(path)
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            for frame in container.decode(stream):
                if at == len(times):
                    break
                if frame.pts is None or (now := float(frame.pts * (stream.time_base or 0))) < times[at] - tolerance:
                    continue
                if not now <= times[at] + tolerance:
                    raise DataError(
                        f"{path}: no frame at {times[at]:.4f} s; the next one is at {now:.4f} s. Video and table do "
                        f"not fit together: record again, or load without this camera (cameras=…)."
                    )
                if (frame.height, frame.width) != size:
                    raise DataError(f"{path}: pictures are {(frame.height, frame.width)} (h, w), info.json says {size}")
                out[rows[at]] = torch.from_numpy(_rgb(frame)).permute(2, 0, 1)
                at += 1
    except (av.FFmpegError, OSError, IndexError, ValueError) as error:
        raise DataError(f"{path}: cannot be decoded ({error}). It is missing or was cut off.") from error
    if at < len(times):
        raise DataError(f"{path}: ends after {at} of {len(times)} frames. It was cut off while recording.")


def _rgb(frame: Any) -> NDArray[np.uint8]:
    """Return the picture [h w 3], by the matrix and range that the film names; swscale alone would take BT.601's."""
    from av.video.reformatter import Colorspace

    # Naming BT.601 for the target makes swscale look at the source's tag; RGB itself has no matrix.
    source = {"src_color_range": frame.color_range or None}
    read: NDArray[np.uint8] = frame.reformat(format="rgb24", dst_colorspace=Colorspace.ITU601, **source).to_ndarray()
    return read


def check_video(
    source: DatasetInfo, key: str, blocks: Sequence[FilmBlock], stamps: NDArray[np.float64], where: Mapping[int, Span]
) -> list[Defect]:
    """Find frames without a picture in a camera's films, and pictures without a frame; nothing is decoded.

    Args:
        stamps: [F] seconds into the episode.
        where: the span of each episode.
    """
    fix = "The recording was cut off, or a file was lost: copy the whole folder, or load without it (cameras=…)"
    sizes = {there: source.offered[ours].shape[1:] for ours, there in source.names_there.items()}
    found, frames = [], dict[Path, list[int]]()  # of each film: pictures that it shows, frames of its episodes
    films, near = functools.cache(_look), 0.25 / source.fps
    for block in blocks:
        if (span := where.get(block.index)) is None:
            continue  # a defect of the table
        path = source.film(key, span.chunk, span.file)
        if isinstance(film := films(path), str):
            found.append(Defect(key, film, fix, block.index))
            continue
        (times, size), wanted = film, span.begin + stamps[block.rows]
        if path not in frames and size != sizes.get(key, size):
            problem = f"pictures of {path.name} are {size} (h, w), info.json says {sizes[key]}"
            found.append(Defect(key, problem, "Correct the shape in meta/info.json, or restore the film", block.index))
        frames.setdefault(path, [len(times), 0])[1] += len(wanted)
        at = np.clip(np.searchsorted(times, wanted - near), 0, max(0, len(times) - 1))
        has = np.abs(times[at] - wanted) <= near if len(times) else np.zeros(len(wanted), dtype=bool)
        if not has.all():
            problem = f"{path.name} has no picture for {int((~has).sum())} of its {len(wanted)} frames"
            found.append(Defect(key, problem, fix, block.index, int(np.argmin(has))))
    for path, (there, count) in frames.items():
        if there > count:
            problem = f"{path.relative_to(source.root)} shows {there} pictures, its episodes have {count} frames"
            found.append(Defect(key, problem, "Pictures may be those of other frames: compare them by eye"))
    return found


def _look(path: Path) -> tuple[NDArray[np.float64], tuple[int, int]] | str:
    """Return the seconds of a film's frames, ascending, and (h, w) of its pictures; or its defect."""
    import av

    try:
        check_regular(path)
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            stamps = [p.pts for p in container.demux(stream) if p.pts is not None]
            base, size = float(stream.time_base or 0), (stream.height, stream.width)
        return np.sort(np.array(stamps, dtype=np.float64)) * base, size
    except (av.FFmpegError, OSError, IndexError, ValueError, DataError) as error:
        return f"{path.name} cannot be read ({error})"


def load_images(source: DatasetInfo, table: pa.Table, key: str, feature: Feature) -> Tensor:
    """Pictures stored in the table itself (PNG, JPEG) [F 3 h w] uint8.

    Raises:
        DataError: too little memory, an unreadable picture or one of another size.
    """
    out = _room(source, key, feature, table.num_rows)
    for row, cell in enumerate(table[key]):
        value = cell.as_py()
        data = value.get("bytes") if isinstance(value, dict) else None
        out[row] = _decode(data, tuple(feature.shape[1:]), where=f"{source.root}: {key!r}, row {row}")
    return out


def _decode(data: bytes | None, size: tuple[int, ...], *, where: str) -> Tensor:
    from PIL import Image, UnidentifiedImageError

    if data is None:
        raise DataError(f"{where}: the picture is not in the table, only a path to it")
    try:
        opened = Image.open(io.BytesIO(data))
        if opened.mode.startswith(_DEEP):  # e.g. I;16, a depth in mm: each value above 255 would become 255
            raise DataError(f"{where}: expected a picture of 8 bits a channel, found mode {opened.mode}. Leave it out")
        picture = np.array(opened.convert("RGB"))
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{where}: picture cannot be decoded ({error})") from error
    if picture.shape[:2] != size:
        raise DataError(f"{where}: picture is {picture.shape[:2]} (h, w), info.json says {size}")
    return torch.from_numpy(picture).permute(2, 0, 1)


def _room(source: DatasetInfo, key: str, feature: Feature, frames: int) -> Tensor:
    """Empty uint8 [F 3 h w], if memory allows."""
    need, free = frames * math.prod(feature.shape), psutil.virtual_memory().available
    if need > 0.8 * free:
        raise DataError(
            f"{source.root}: {key!r} needs {need / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free. "
            "Load fewer cameras (cameras=…) or, in Python, episodes (load_episodes(episodes=…)), or record smaller "
            "pictures."
        )
    return torch.empty((frames, *feature.shape), dtype=torch.uint8)

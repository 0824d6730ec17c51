"""Camera frames from files into tensors: videos are decoded once, in order, not seek by seek."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from robopolicy.data.check import Defect
from robopolicy.data.source import Source
from robopolicy.errors import DataError
from robopolicy.types import Feature


def load_videos(source: Source, key: str, feature: Feature, table: pa.Table, starts: Tensor) -> Tensor:
    """Frames of one camera [F 3 h w] uint8; several episodes share a video file.

    Raises:
        DataError: too little memory, a file that is missing, cut off or does not fit the table.
    """
    out = _room(source, key, feature, table.num_rows)
    where = _placements(source, key)
    index, stamp = table["episode_index"].to_numpy(), table["timestamp"].to_numpy().astype(np.float64)
    by_file: dict[tuple[int, int], list[tuple[float, int, int]]] = {}
    for first, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        if index[first] not in where:
            raise DataError(f"{source.root}/meta/episodes: episode {index[first]} has no entry for {key!r}")
        chunk, file, begin = where[index[first]]
        by_file.setdefault((chunk, file), []).append((begin, first, end))
    for (chunk, file), parts in by_file.items():
        path = source.root / str(source.video_path).format(video_key=key, chunk_index=chunk, file_index=file)
        parts.sort()
        times = np.concatenate([begin + stamp[first:end] for begin, first, end in parts])
        rows = np.concatenate([np.arange(first, end) for _, first, end in parts])
        read_video(path, times, rows, out, fps=source.fps)
    return out


def _placements(source: Source, key: str) -> dict[int, tuple[int, int, float]]:
    """Episode index -> (chunk, file, seconds into that file)."""
    names = ["episode_index", *(f"videos/{key}/{k}" for k in ("chunk_index", "file_index", "from_timestamp"))]
    files = sorted((source.root / "meta" / "episodes").glob("*/*.parquet"))
    try:
        columns = [pa.concat_tables([pq.read_table(f, columns=names) for f in files])[n].to_pylist() for n in names]
    except (pa.ArrowInvalid, OSError, KeyError) as error:
        raise DataError(f"{source.root}/meta/episodes: cannot be read ({error}); the recording was cut off") from error
    return {episode: (chunk, file, begin) for episode, chunk, file, begin in zip(*columns, strict=True)}


def read_video(path: Path, times: NDArray[np.float64], rows: NDArray[np.int64], out: Tensor, *, fps: float) -> None:
    """Decode the frames shown at `times` [T] (seconds, ascending) into `out[rows]` (rows [T], out [F 3 h w] uint8).

    A frame counts as the one at `t` when it lies within a quarter of a frame period of it.

    Raises:
        DataError: unreadable file, frames of another size, a time for which there is no frame.
    """
    import av

    tolerance, at, size = 0.25 / fps, 0, tuple(out.shape[2:])
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            for frame in container.decode(stream):
                if at == len(times):
                    break
                if frame.pts is None or (now := float(frame.pts * stream.time_base)) < times[at] - tolerance:
                    continue
                if now > times[at] + tolerance:
                    raise DataError(
                        f"{path}: no frame at {times[at]:.4f} s; the next one is at {now:.4f} s. Video and table do "
                        f"not fit together: record again, or load without this camera (cameras=…)."
                    )
                if (frame.height, frame.width) != size:
                    raise DataError(f"{path}: pictures are {(frame.height, frame.width)} (h, w), info.json says {size}")
                out[rows[at]] = torch.from_numpy(frame.to_ndarray(format="rgb24")).permute(2, 0, 1)
                at += 1
    except (av.FFmpegError, OSError, IndexError) as error:
        raise DataError(f"{path}: cannot be decoded ({error}). It is missing or was cut off.") from error
    if at < len(times):
        raise DataError(f"{path}: ends after {at} of {len(times)} frames. It was cut off while recording.")


def check_video(source: Source, key: str, index: NDArray[np.int64], stamp: NDArray[np.float64]) -> list[Defect]:
    """Frames of the table that a camera's files have no picture for; nothing is decoded.

    Args:
        index, stamp: [F] episode and seconds into it.
    """
    fix = "The recording was cut off, or a file was lost: copy the whole folder, or load without it (cameras=…)"
    try:
        where = _placements(source, key)
    except DataError as error:
        return [Defect(key, str(error), fix)]
    found, shown = [], dict[Path, NDArray[np.float64] | str]()
    for episode in dict.fromkeys(index.tolist()):
        if episode not in where:
            found.append(Defect(key, "has no entry in meta/episodes", fix, episode))
            continue
        chunk, file, begin = where[episode]
        path = source.root / str(source.video_path).format(video_key=key, chunk_index=chunk, file_index=file)
        if path not in shown:
            shown[path] = _times(path)
        times, wanted = shown[path], begin + stamp[index == episode]
        if isinstance(times, str):
            found.append(Defect(key, times, fix, episode))
            continue
        near = np.clip(np.searchsorted(times, wanted - 0.25 / source.fps), 0, max(0, len(times) - 1))
        off = np.abs(times[near] - wanted) > 0.25 / source.fps if len(times) else np.ones(len(wanted), dtype=bool)
        if off.any():
            problem = f"{path.name} has no picture for {int(off.sum())} of its {len(wanted)} frames"
            found.append(Defect(key, problem, fix, episode, int(np.argmax(off))))
    return found


def _times(path: Path) -> NDArray[np.float64] | str:
    """Seconds at which a file shows frames, ascending; or what is wrong with it."""
    import av

    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            stamps = [p.pts for p in container.demux(stream) if p.pts is not None]
            return np.sort(np.array(stamps, dtype=np.float64)) * float(stream.time_base or 0)
    except (av.FFmpegError, OSError, IndexError) as error:
        return f"{path.name} cannot be read ({error})"


def load_images(source: Source, table: pa.Table, key: str, feature: Feature) -> Tensor:
    """Pictures stored in the table itself (PNG, JPEG) [F 3 h w] uint8.

    Raises:
        DataError: too little memory, an unreadable picture or one of another size.
    """
    out = _room(source, key, feature, table.num_rows)
    for row, cell in enumerate(table[key]):
        out[row] = _decode(cell["bytes"].as_py(), tuple(feature.shape[1:]), where=f"{source.root}: {key!r}, row {row}")
    return out


def _decode(data: bytes | None, size: tuple[int, ...], *, where: str) -> Tensor:
    from PIL import Image, UnidentifiedImageError

    if data is None:
        raise DataError(f"{where}: the picture is not in the table, only a path to it")
    try:
        picture = np.array(Image.open(io.BytesIO(data)).convert("RGB"))
    except (UnidentifiedImageError, OSError) as error:
        raise DataError(f"{where}: picture cannot be decoded ({error})") from error
    if picture.shape[:2] != size:
        raise DataError(f"{where}: picture is {picture.shape[:2]} (h, w), info.json says {size}")
    return torch.from_numpy(picture).permute(2, 0, 1)


def _room(source: Source, key: str, feature: Feature, frames: int) -> Tensor:
    """Empty uint8 [F 3 h w], if memory allows."""
    need, free = frames * int(np.prod(feature.shape)), psutil.virtual_memory().available
    if need > 0.8 * free:
        raise DataError(
            f"{source.root}: {key!r} needs {need / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free. "
            f"Load fewer cameras (cameras=…) or episodes (episodes=…), or record smaller pictures."
        )
    return torch.empty((frames, *feature.shape), dtype=torch.uint8)

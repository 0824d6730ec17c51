"""Check the frames of episodes before training: numbering, rate, finite values, limits and saturation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robopolicy.core.types import POINTS, ActionSpec
from robopolicy.datasets.checks import Defect, limit_slack, outside_limits
from robopolicy.datasets.episodes import Episodes
from robopolicy.datasets.spans import FilmBlock

Array = NDArray[Any]
TIME_TOLERANCE = 1e-3  # s, of a frame: stamps may be of whole ms
RATE_TOLERANCE = 0.01  # of the rate of a whole episode
AGAIN = (
    "Record these episodes again, or remove them: lerobot-edit-dataset --operation.type delete_episodes … "
    "(docs/bring_your_own/dataset.md; in Python load_episodes(episodes=…) selects)"
)


def ranges(frames: Array) -> str:
    """Format ascending frame numbers as `frames 3–5, 9`."""
    parts = np.split(frames, np.flatnonzero(np.diff(frames) != 1) + 1)
    said = [f"{p[0]}–{p[-1]}" if len(p) > 1 else f"{p[0]}" for p in parts]
    return f"frame{'s' * (len(frames) > 1)} {', '.join(said[:6])}" + (" …" if len(said) > 6 else "")


def check_episodes(episodes: Episodes, *, min_length: int = 1) -> list[Defect]:
    """Return the defects of episodes in memory: shapes, lengths, numbers that are not finite, actions beyond limits."""
    if not episodes.num_frames or not episodes.num_episodes:
        return [Defect("dataset", "holds no frames", "Record again; only finished episodes are kept")]
    columns = {**episodes.obs, "action": episodes.action, "next.reward": episodes.reward}
    wanted = {k: tuple(f.shape) for k, f in episodes.observation.items() if k in columns}
    wanted["action"] = (episodes.action_spec.dim,)
    fix = "Give the spec that these data were recorded with"
    shapes = {k: tuple(columns[k].shape[1:]) for k in wanted}
    found = [Defect(k, f"expected {shape} per frame, found {shapes[k]}", fix) for k, shape in wanted.items()
             if shapes[k] != shape]  # fmt: skip
    values = {k: v.reshape(len(v), -1).numpy() for k, v in columns.items() if v.is_floating_point()}
    names = {k: f.names for k, f in episodes.observation.items()} | {"action": episodes.action_spec.names}
    for index, (first, end) in enumerate(zip(episodes.starts[:-1].tolist(), episodes.starts[1:].tolist(), strict=True)):
        block = FilmBlock(index, first, end)
        if end - first < min_length:
            problem = f"has {end - first} frames, expected at least {min_length}"
            found.append(Defect("length", problem, "Leave these episodes out: load_episodes(episodes=…)", index))
        found += [*check_finite(block, values, names), *check_clouds(block, values)]
        if shapes["action"] == wanted["action"]:
            found += check_limits(block, values["action"], episodes.action_spec)
    return found


def check_frames(episode: FilmBlock, frames: Array) -> Iterator[Defect]:
    """Gaps in the numbering."""
    numbers = frames[episode.rows]
    steps = np.diff(np.r_[-1, numbers])
    for row in np.flatnonzero(steps != 1):
        before = "the episode's begin" if row == 0 else f"frame {numbers[row - 1]}"
        lost = f"{steps[row] - 1} frames are missing" if steps[row] > 1 else "frames are out of order"
        yield Defect("frame_index", f"{lost}: {numbers[row]} follows {before}", AGAIN, episode.index, int(row))


def check_rate(episode: FilmBlock, stamps: Array, fps: float) -> Iterator[Defect]:
    """Episodes of another frequency, and single frames that come too late or too early."""
    part = stamps[episode.rows]
    if not (good := np.isfinite(part)).all():
        yield Defect("timestamp", f"is {part[~good][0]} ({ranges(np.flatnonzero(~good))})", AGAIN, episode.index,
                     int(np.argmin(good)))  # fmt: skip
        return
    gaps = np.diff(part)
    if not len(gaps) or not np.isfinite(fps):
        return
    usual, whole = float(np.median(gaps)), len(gaps) / fps
    fits = np.abs(gaps - 1 / fps) <= TIME_TOLERANCE + 1e-6
    # Each frame may be right to the ms and all of them too fast.
    off = len(gaps) > 2 and fits.all() and abs(float(gaps.sum()) - whole) > RATE_TOLERANCE * whole + TIME_TOLERANCE
    if off:
        usual = float(gaps.mean())
    if len(gaps) > 2 and usual > 0 and (off or not abs(usual - 1 / fps) <= TIME_TOLERANCE):
        fix = "Mixed frequencies cannot be trained on: resample to one rate, or split the dataset by rate"
        yield Defect(
            "timestamp", f"was recorded at {1 / usual:.3g} Hz, the dataset says {fps:g}", fix, episode.index, 0
        )
        return
    for k in np.flatnonzero(~fits):
        lost = round(float(gaps[k]) * fps) - 1
        what = f"a gap of {gaps[k]:.4f} s" if gaps[k] > 0 else f"time stands still or runs back ({gaps[k]:.4f} s)"
        what += f", in which {lost} frames are missing" if lost > 0 else f", expected {1 / fps:.4f} s"
        yield Defect("timestamp", what, AGAIN, episode.index, int(k) + 1)


def check_finite(
    episode: FilmBlock, values: Mapping[str, Array], elements: Mapping[str, Sequence[str] | None]
) -> Iterator[Defect]:
    """Columns [F ·] with NaN or infinity. `elements`: names of a column's elements."""
    for key, value in values.items():
        part = value[episode.rows]
        if part.dtype.kind != "f" or np.isfinite(part).all():
            continue
        bad = ~np.isfinite(part)
        frame, element = map(int, np.argwhere(bad)[0])
        names = elements.get(key)
        what = f"element {names[element]!r}" if names and len(names) == part.shape[1] else f"element {element}"
        where = ranges(np.flatnonzero(bad.any(axis=1)))
        yield Defect(key, f"{what} is {part[frame, element]} ({where})", AGAIN, episode.index, frame)


def check_clouds(episode: FilmBlock, values: Mapping[str, Array]) -> Iterator[Defect]:
    """Point clouds that are empty in a whole episode: all points of a frame are at one place."""
    for key, value in values.items():
        if not key.startswith(POINTS) or value.shape[1] % 3 or value.shape[1] == 3:
            continue
        points = value[episode.rows].reshape(-1, value.shape[1] // 3, 3)
        if (points == points[:, :1]).all():
            fix = "Widen the crop box, or correct the camera's pose, then record again; or train without it: points=[]"
            yield Defect(key, "is empty: all points of a frame are at one place", fix, episode.index, 0)


def check_stride(episode: FilmBlock, values: Mapping[str, Array], fps: float) -> Iterator[Defect]:
    """Frames that repeat the one before at a regular stride: a lower rate, written at a higher one."""
    seen = [v[episode.rows] for k, v in values.items() if k.startswith("observation")]
    if not seen:
        return
    moves = np.flatnonzero(np.any([(v[1:] != v[:-1]).any(axis=1) for v in seen], axis=0))
    strides = np.unique(np.diff(moves))
    if len(moves) > 2 and len(strides) == 1 and strides[0] > 1:
        every = int(strides[0])
        problem = f"only one frame in {every} is new: it looks like {fps / every:g} Hz, written at {fps:g}"
        fix = "Write it with the rate that it was recorded at"
        yield Defect("frequency", problem, fix, episode.index, int(moves[0]))


def check_limits(episode: FilmBlock, action: Array, spec: ActionSpec | None) -> Iterator[Defect]:
    if spec is None:
        return
    part, low, high = action[episode.rows], np.array(spec.low), np.array(spec.high)
    outside = outside_limits(part, spec.low, spec.high)
    for k in np.flatnonzero(outside.any(axis=0)):
        frames = np.flatnonzero(outside[:, k])
        problem = (f"{spec.names[k]!r} is {part[frames[0], k]:.4g} {spec.units[k]}, limits are "
                   f"[{low[k]:g}, {high[k]:g}] ({ranges(frames)})")  # fmt: skip
        fix = "Check units and order of the action, or give the limits that the data were recorded under"
        yield Defect("action", problem, fix, episode.index, int(frames[0]))


def check_saturation(episode: FilmBlock, action: Array, spec: ActionSpec | None, most: float) -> Iterator[Defect]:
    """Channels that lie at a limit (unknown: at an extreme of the data) in more than `most` of an episode's frames."""
    low, high = (action.min(axis=0), action.max(axis=0)) if spec is None else (np.array(spec.low), np.array(spec.high))
    slack, part = limit_slack(low, high), action[episode.rows]
    if len(part) < 2:  # no motion that a limit could cut
        return
    for side, end, at in (("lower", low, part <= low + slack), ("upper", high, part >= high - slack)):
        for k in np.flatnonzero((at.mean(axis=0) > most) & (high > low) & ~_switches(action)):
            if spec is not None and k == spec.gripper:
                continue
            frames = np.flatnonzero(at[:, k])
            name = spec.names[k] if spec is not None else f"element {k}"
            problem = (f"{name!r} is at its {side} {'limit' if spec else 'extreme'} {end[k]:g} in "
                       f"{100 * at[:, k].mean():.0f}% of the frames ({ranges(frames)})")  # fmt: skip
            fix = "Widen the limits or slow the demonstrations down: motion beyond the limit is lost"
            yield Defect("action", problem, fix, episode.index, int(frames[0]))


def _switches(action: Array) -> NDArray[np.bool_]:
    """Return [Da] channels that only know two values in the whole dataset, as a gripper does."""
    return np.array([len(np.unique(action[:, k])) <= 2 for k in range(action.shape[1])])

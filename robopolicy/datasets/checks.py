"""Find defects that make a dataset unfit for training, before training starts.

Every check returns `Defect`s that name the key, the episode and the frame; nothing is repaired silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robopolicy.core.errors import DataError
from robopolicy.core.specs import check_features
from robopolicy.core.types import Feature
from robopolicy.datasets.episodes import Episodes

Array = NDArray[Any]
LIMIT_TOLERANCE = 1e-3  # of the range high − low; recorded actions are rounded to float32


@dataclass(frozen=True)
class Defect:
    """A defect of a dataset; `episode` and `frame` (within the episode) are its first occurrence."""

    key: str
    problem: str
    fix: str
    episode: int | None = None
    frame: int | None = None

    def __str__(self) -> str:
        place = "" if self.episode is None else f", episode {self.episode}"
        place += "" if self.frame is None else f", frame {self.frame}"
        return f"{self.key}{place}: {self.problem}{'' if self.problem.endswith('?') else '.'} {self.fix}"


def raise_defects(defects: Iterable[Defect], source: str | Path, *, shown: int = 10) -> None:
    """Raise DataError with all of `defects` (at most `shown` in words), or return if there are none."""
    defects = list(defects)
    if defects:
        lines = "".join(f"\n  - {d}" for d in defects[:shown])
        more = f"\n  … and {len(defects) - shown} more" if len(defects) > shown else ""
        raise DataError(f"{source}: {len(defects)} defect{'s' * (len(defects) > 1)}{lines}{more}")


def check_episodes(
    episodes: Episodes,
    *,
    needed: Mapping[str, Feature] | None = None,
    min_length: int = 1,
) -> list[Defect]:
    """Return the defects of `episodes`, at most one per key and kind.

    Args:
        needed: features that a policy reads; names, shapes and dtypes must be there.
        min_length: frames that every episode must have at least.
    """
    if not episodes.num_frames or not episodes.num_episodes:
        return [Defect("dataset", "holds no frames", "Record again; only finished episodes are kept")]
    return [
        *check_needed(needed or {}, episodes.observation),
        *_check_shapes(episodes),
        *_check_finite(episodes),
        *_check_limits(episodes),
        *_check_lengths(episodes, min_length),
    ]


def limit_slack(low: Sequence[float] | Array, high: Sequence[float] | Array) -> Array:
    """Return the tolerance [Da] beyond the limits: a share of their range, or of the only finite limit."""
    low, high = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
    end = np.where(np.isfinite(low), np.abs(low), np.where(np.isfinite(high), np.abs(high), 0.0))
    with np.errstate(invalid="ignore"):
        span = high - low
    return LIMIT_TOLERANCE * np.where(np.isfinite(span), span, end)


def outside_limits(values: Array, low: Sequence[float] | Array, high: Sequence[float] | Array) -> NDArray[np.bool_]:
    """Return [F Da] whether a number lies beyond its limits; False for NaN, which is a defect of its own."""
    slack = limit_slack(low, high)
    inside = (np.asarray(low) - slack <= values) & (values <= np.asarray(high) + slack)
    return ~inside & ~np.isnan(values)


def check_needed(needed: Mapping[str, Feature], offered: Mapping[str, Feature]) -> list[Defect]:
    """Features that are missing (the closest names are offered) or have another shape, dtype or element names."""
    problems = check_features(dict(needed), dict(offered), needs="the policy", offers="the dataset")
    fix = (
        "Is it the dataset of another task? Else record with this feature, rename it (load_episodes(rename=…)), or "
        "train a policy without it"
    )
    return [Defect("features", problem.rstrip("."), fix) for problem in problems]


def check_timestamps(timestamp: Tensor, starts: Tensor, *, fps: float, tolerance: float = 1e-3) -> list[Defect]:
    """Frames that do not follow one another by 1/fps.

    Args:
        timestamp: [F] seconds since the episode's first frame.
        starts: [E+1] first frame of each episode.
        tolerance: seconds.
    """
    gap = timestamp[1:].double() - timestamp[:-1].double()
    inner = torch.ones_like(gap, dtype=torch.bool)
    inner[starts[1:-1] - 1] = False  # a new episode starts over at 0
    wrong = ~((gap - 1.0 / fps).abs() <= tolerance) & inner
    if not bool(torch.isfinite(timestamp).all()):
        bad = ~torch.isfinite(timestamp)
        episode, inside = _locate(int(bad.nonzero()[0]), starts)
        problem = f"is {float(timestamp[bad][0])} ({int(bad.sum())} such frames)"
        return [
            Defect("timestamp", problem, "Restore the column: seconds since the episode's first frame", episode, inside)
        ]
    if not bool(wrong.any()):
        return []
    frame = int(wrong.nonzero()[0]) + 1
    episode, inside = _locate(frame, starts)
    found = f"expected {1.0 / fps:.4f} s after the frame before (fps {fps:g}), found {float(gap[frame - 1]):.4f} s"
    fix = "Mixed frequencies cannot be trained on: resample to one rate, or split the dataset by rate"
    return [Defect("timestamp", f"{found} ({int(wrong.sum())} such frames)", fix, episode, inside)]


def _locate(frame: int, starts: Tensor) -> tuple[int, int]:
    """Return (episode, frame within it) of a frame of the whole."""
    episode = int(torch.searchsorted(starts, torch.tensor(frame), right=True)) - 1
    return episode, frame - int(starts[episode])


def _check_shapes(episodes: Episodes) -> list[Defect]:
    wanted = {k: tuple(f.shape) for k, f in episodes.observation.items() if k in episodes.obs}
    wanted["action"] = (episodes.action_spec.dim,)
    found = {**{k: tuple(v.shape[1:]) for k, v in episodes.obs.items()}, "action": tuple(episodes.action.shape[1:])}
    fix = "Give the spec that these data were recorded with"
    return [
        Defect(key, f"expected {shape} per frame, found {found[key]}", fix)
        for key, shape in wanted.items()
        if found[key] != shape
    ]


def _check_finite(episodes: Episodes) -> list[Defect]:
    defects = []
    for key, value in {**episodes.obs, "action": episodes.action, "next.reward": episodes.reward}.items():
        if not value.is_floating_point():
            continue
        bad = ~torch.isfinite(value.flatten(1) if value.ndim > 1 else value[:, None])
        if bool(bad.any()):
            frame, element = bad.nonzero()[0].tolist()
            episode, inside = _locate(frame, episodes.starts)
            feature = episodes.observation.get(key)
            names = episodes.action_spec.names if key == "action" else feature and feature.names
            what = f"element {names[element]!r}" if names else f"element {element}"
            found = value.flatten(1)[frame, element].item() if value.ndim > 1 else value[frame].item()
            count = int(bad.any(1).sum())
            fix = "Drop or re-record these episodes (load_episodes(episodes=…) selects)"
            defects.append(Defect(key, f"{what} is {found} ({count} such frames)", fix, episode, inside))
    return defects


def _check_limits(episodes: Episodes) -> list[Defect]:
    spec = episodes.action_spec
    if episodes.action.shape[1:] != (spec.dim,):
        return []  # already a defect
    outside = torch.from_numpy(outside_limits(episodes.action.numpy(), spec.low, spec.high))
    defects = []
    for k in outside.any(0).nonzero()[:, 0].tolist():
        frame = int(outside[:, k].nonzero()[0])
        episode, inside = _locate(frame, episodes.starts)
        problem = (
            f"{spec.names[k]!r} is {episodes.action[frame, k].item():.4g} {spec.units[k]}, limits are "
            f"[{spec.low[k]:g}, {spec.high[k]:g}] ({int(outside[:, k].sum())} such frames)"
        )
        fix = "Check units and order of the action, or give the limits that the data were recorded under"
        defects.append(Defect("action", problem, fix, episode, inside))
    return defects


def _check_lengths(episodes: Episodes, min_length: int) -> list[Defect]:
    short = episodes.lengths < min_length
    if not bool(short.any()):
        return []
    episode = int(short.nonzero()[0])
    problem = f"has {int(episodes.lengths[episode])} frames, expected at least {min_length} ({int(short.sum())} such)"
    return [Defect("length", problem, "Leave these episodes out: load_episodes(episodes=…)", episode)]

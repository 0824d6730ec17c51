"""What makes a dataset unfit for training, found before training starts.

Every check returns `Defect`s that name the key, the episode and the frame; nothing is repaired silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from robopolicy.data.episodes import Episodes
from robopolicy.errors import DataError
from robopolicy.spec import check_features
from robopolicy.types import Feature

LIMIT_TOLERANCE = 1e-3  # of the range high − low; recorded actions are rounded to float32


@dataclass(frozen=True)
class Defect:
    """One thing that is wrong. `episode` and `frame` (counted within the episode) say where it shows first."""

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
    """Everything that is wrong with `episodes`, at most one defect per key and kind.

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
    wrong = ((gap - 1.0 / fps).abs() > tolerance) & inner
    if not bool(wrong.any()):
        return []
    frame = int(wrong.nonzero()[0]) + 1
    episode, inside = _locate(frame, starts)
    found = f"expected {1.0 / fps:.4f} s after the frame before (fps {fps:g}), found {float(gap[frame - 1]):.4f} s"
    fix = "Mixed frequencies cannot be trained on: resample to one rate, or split the dataset by rate"
    return [Defect("timestamp", f"{found} ({int(wrong.sum())} such frames)", fix, episode, inside)]


def _locate(frame: int, starts: Tensor) -> tuple[int, int]:
    """(episode, frame within it) of a frame of the whole."""
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
    low, high = torch.tensor(spec.low), torch.tensor(spec.high)
    slack = LIMIT_TOLERANCE * (high - low)
    outside = (episodes.action < low - slack) | (episodes.action > high + slack)
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

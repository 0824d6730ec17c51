"""Plan the conversion of a file into a dataset: columns, rate and actions, with all defects."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robopolicy.core.errors import ConfigError, DataError, closest
from robopolicy.core.types import IMAGES, STATE, ActionSpec, Feature
from robopolicy.datasets.action_facts import ASKED, join_facts
from robopolicy.datasets.checks import Defect, outside_limits
from robopolicy.datasets.hdf5.actions import known_actions
from robopolicy.datasets.hdf5.contents import AGAIN, Contents, Trajectory
from robopolicy.datasets.hdf5.options import Hdf5Options

_Limits = tuple[tuple[str, ...], tuple[float, ...], tuple[float, ...]]  # names, low, high of each channel


@dataclass(frozen=True)
class ConversionPlan:
    """`state`: keys joined to `observation.state`. `images`: our feature → the file's key. `left`: keys that are not
    taken."""

    action: ActionSpec
    rate_hz: float
    tasks: tuple[str, ...]
    observation: dict[str, Feature]
    state: tuple[str, ...]
    images: dict[str, str]
    left: tuple[str, ...]


def plan_of(contents: Contents, path: Path, options: Hdf5Options) -> ConversionPlan:
    """Join the facts of the file and of the user.

    Raises:
        ConfigError: facts are missing (all of them are asked for, by key), or the two contradict each other.
        DataError: no episodes, or none of the columns wanted.
    """
    if not contents.episodes:
        raise DataError(f"{path}: holds no episodes")
    first = contents.episodes[0]
    dim = int(first.action.shape[1]) if len(first.action.shape) == 2 else 0
    if not dim:
        raise DataError(f"{path}: {first.name}: actions must be [T Da], found {first.action.shape}")
    said, given = contents.rate_hz, options.rate_hz
    if said is not None and given is not None and not abs(float(said) - given) <= 1e-6:
        raise ConfigError(f"hdf5.rate_hz={given:g}: {path} says that it was recorded at {said:g} Hz. Leave it out.")
    missing: dict[str, str] = {}
    if said is None and given is None:
        missing["rate_hz"] = "<control steps a second>" + contents.rate_hint
    tasks = (options.task,) if options.task else tuple(dict.fromkeys(e.task or "" for e in contents.episodes))
    if "" in tasks:
        missing["task"] = "'<the instruction>'"
    if options.success is None and any(e.success is None for e in contents.episodes):
        missing["success"] = "true or false: whether all of its episodes succeeded"
    action, unknown = _action(contents, options, dim)
    missing |= {f"action.{k}": ASKED[k].format(dim=dim) for k in unknown}
    if missing:
        raise ConfigError(_please(contents, path, missing))
    state, images, left = _columns(contents, options)
    observation = _features(first, state, images, options.names)
    return ConversionPlan(ActionSpec(**action), float(said or given or 0.0), tasks, observation, state, images, left)


def check(contents: Contents, plan: ConversionPlan, options: Hdf5Options) -> list[Defect]:
    """Everything in the file that cannot become a dataset: ragged lengths, missing columns, NaN, actions outside."""
    action = plan.action
    limits = None if options.clip else (action.names, action.low, action.high)
    return _check_all(contents, plan.state, plan.images, limits)


def check_file(contents: Contents) -> list[Defect]:
    """Check all columns that may be converted without a plan, and limits that the file defines."""
    if not contents.episodes:
        return []
    try:
        state, images, _ = _columns(contents, Hdf5Options())
    except DataError as error:
        return [Defect("observations", str(error), AGAIN)]
    first, action, limits = contents.episodes[0], contents.action, None
    if len(first.action.shape) != 2:
        return [Defect(f"{first.name}/actions", f"expected [T Da], found shape {first.action.shape}", AGAIN)]
    dim = int(first.action.shape[1])
    if {"low", "high"} <= action.keys() and len(action.get("names", ())) in (0, dim):
        low, high = (action[k] * dim if len(action[k]) == 1 else action[k] for k in ("low", "high"))
        if len(low) != dim:
            return [Defect("action_space", f"has {len(low)} limits, actions have {dim} channels", AGAIN)]
        limits = (tuple(action.get("names", map(str, range(dim)))), low, high)
    return _check_all(contents, state, images, limits)


# -- inside ---------------------------------------------------------------------------------------------------------
def _please(contents: Contents, path: Path, missing: Mapping[str, str]) -> str:
    text = f"{path} ({contents.format}): does not say all that training must know."
    if contents.control and contents.control not in (known := known_actions(contents.format)):
        text += f" Its control {contents.control!r} is not known here. {closest(contents.control, known)}"
    return text + " Please add:" + "".join(f"\n  hdf5.{key}={how}" for key, how in missing.items())


def _action(contents: Contents, options: Hdf5Options, dim: int) -> tuple[dict[str, Any], list[str]]:
    """Return fields of `ActionSpec`, and the names of unknown fields."""
    from_file = dict(contents.action)
    if len(from_file.get("names", ())) not in (0, dim):
        from_file = {}  # not the robot of the known controller
    return join_facts(from_file, options.action, dim, "hdf5.action")


def _columns(contents: Contents, options: Hdf5Options) -> tuple[tuple[str, ...], dict[str, str], tuple[str, ...]]:
    """Return keys of the state, image keys by feature, and the remaining keys."""
    offered = contents.episodes[0].obs
    pictures = {k for k, v in offered.items() if v.dtype == np.uint8 and len(v.shape) == 4 and 3 in v.shape[1:]}
    vectors = [k for k, v in offered.items() if v.dtype.kind in "fiub" and len(v.shape) in (1, 2)]
    for key in options.state:
        if key not in vectors:
            raise ConfigError(f"hdf5.state: no vector {key!r} over time is observed. {closest(key, vectors)}")
    usual = contents.usual if contents.usual and set(contents.usual) <= set(vectors) else tuple(vectors)
    state = options.state or usual
    cameras = _cameras(sorted(pictures))
    for name in options.cameras or ():
        if name not in cameras:
            raise ConfigError(f"hdf5.cameras: no camera {name!r}. {closest(name, cameras)}")
    images = {IMAGES + n: k for n, k in cameras.items() if options.cameras is None or n in options.cameras}
    if not state and not images:
        raise DataError(f"{contents.format}: no observation that can be taken among {sorted(offered)}")
    return state, images, tuple(k for k in offered if k not in {*state, *images.values()})


def _cameras(keys: list[str]) -> dict[str, str]:
    """Short names, or whole ones where two were the same: sensor_data/hand/rgb is hand, agentview_image agentview."""
    short = {}
    for key in keys:
        last = next((part for part in reversed(key.split("/")) if part != "rgb"), key)
        short[key] = last.removesuffix("_image").removesuffix("_rgb") or last
    return {n if list(short.values()).count(n) == 1 else k.replace("/", "_"): k for k, n in short.items()}


def _features(first: Trajectory, state: tuple[str, ...], images: Mapping[str, str], named: bool) -> dict[str, Feature]:
    found: dict[str, Feature] = {}
    if state:
        widths = [(k.replace("/", "."), math.prod(first.obs[k].shape[1:])) for k in state]
        names = tuple(f"{k}_{i}" for k, width in widths for i in range(width))
        found[STATE] = Feature((len(names),), names=names if named else None)
    for name, key in images.items():
        _, *size = first.obs[key].shape  # h w 3, or 3 h w
        found[name] = Feature((3, *map(int, size[:2] if size[2] == 3 else size[1:])), "uint8")
    return found


def _check_all(
    contents: Contents, state: Sequence[str], images: Mapping[str, str], limits: _Limits | None
) -> list[Defect]:
    keys = (*state, *images.values())
    return [d for e in contents.episodes for d in _check_one(e, contents, keys, limits, bool(images))]


def _check_one(
    episode: Trajectory, contents: Contents, wanted: Sequence[str], limits: _Limits | None, filmed: bool
) -> Iterator[Defect]:
    first, name, length = contents.episodes[0], episode.name, len(episode.action)
    if length < (2 if filmed else 1):
        yield Defect(name, f"has {length} frames of actions", AGAIN)
        return
    if episode.length not in (None, length):
        yield Defect(name, f"has {length} actions, the file says {episode.length}", AGAIN)
    for key in wanted:
        if key not in episode.obs:
            yield Defect(f"{name}/{key}", f"is missing. {closest(key, episode.obs)}".rstrip("."), AGAIN)
    columns = {k: (episode.obs[k], first.obs[k].shape[1:], length + contents.successor)
               for k in wanted if k in episode.obs}  # fmt: skip
    columns["actions"] = (episode.action, first.action.shape[1:], length)
    if episode.reward is not None:
        columns["rewards"] = (episode.reward, (), length)
    for key, (column, like, frames) in columns.items():
        if column.dtype.kind not in "fiub":
            yield Defect(f"{name}/{key}", f"expected numbers, found {column.dtype}", AGAIN)
        elif column.shape != (frames, *like):
            yield Defect(f"{name}/{key}", f"expected shape {(frames, *like)}, found {column.shape}", AGAIN)
        elif column.dtype.kind == "f" and not np.isfinite(values := column[()]).all():
            bad = np.argwhere(~np.isfinite(values))[0]
            frame = int(bad[0])
            yield Defect(f"{name}/{key}", f"is {values[tuple(bad)]} at {bad[1:].tolist()}", AGAIN, frame=frame)
    if episode.success is not None and np.ndim(episode.success) and len(np.asarray(episode.success)) != length:
        yield Defect(f"{name}/success", f"expected {length} frames, found {len(np.asarray(episode.success))}", AGAIN)
    if limits is not None and episode.action.shape[1:] == first.action.shape[1:]:
        values, (names, low, high) = episode.action[()], limits
        for frame, k in np.argwhere(outside_limits(values, low, high))[:1]:
            problem = f"{names[k]!r} is {values[frame, k]:.4g}, limits are [{low[k]:g}, {high[k]:g}]"
            fix = "Give hdf5.action.low and .high, or hdf5.clip=true where the simulator clamped its actions"
            yield Defect(f"{name}/actions", problem, fix, frame=int(frame))

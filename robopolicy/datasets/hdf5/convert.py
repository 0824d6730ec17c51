"""Convert HDF5 files of other projects into a LeRobotDataset v3; the content tells the format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robopolicy.core.errors import ConfigError, DataError
from robopolicy.core.protocols import ShowsProgress
from robopolicy.core.types import STATE
from robopolicy.datasets.checks import Defect, raise_defects
from robopolicy.datasets.converted import Converted
from robopolicy.datasets.files import visible
from robopolicy.datasets.hdf5 import maniskill, minari, robomimic
from robopolicy.datasets.hdf5.contents import Contents, Group, Trajectory, opened
from robopolicy.datasets.hdf5.options import Hdf5Options
from robopolicy.datasets.hdf5.plan import ConversionPlan, check, check_file, plan_of
from robopolicy.datasets.lerobot_writer import DatasetWriter

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_ENDINGS = (".h5", ".hdf5")


FORMATS = {"robomimic": robomimic, "Minari": minari, "ManiSkill": maniskill}


def find_hdf5(recording: Path) -> Path | None:
    """Return `recording` itself where it is HDF5, or the HDF5 file below it; None: there is none.

    Raises:
        ConfigError: there are several.
    """
    if recording.is_file():
        with recording.open("rb") as file:
            return recording if recording.suffix in _ENDINGS or file.read(8) == _SIGNATURE else None
    found = visible(p for p in recording.rglob("*") if p.suffix in _ENDINGS) if recording.is_dir() else []
    if len(found) > 1:
        raise ConfigError(f"recording={recording}: holds {len(found)} HDF5 files. Give one of them, e.g. {found[0]}")
    return found[0] if found else None


def convert_hdf5(
    path: Path, out: Path, options: Hdf5Options, *, tracker: ShowsProgress, only_success: bool = False,
    overwrite: bool = False,
) -> Converted:  # fmt: skip
    """Write a file as a dataset; everything is checked before the first episode is written.

    Raises:
        ConfigError: facts that the file lacks are missing; h5py is missing.
        DataError: the file is cut off, of no known format, or has defects, all of which are listed.
    """
    with opened(path) as file:
        contents = _read(file, path, options.filter)
        if contents.defects:
            raise_defects([*contents.defects, *check_file(contents)], path)
        plan = plan_of(contents, path, options)
        raise_defects(check(contents, plan, options), path)
        left_out: dict[str, str] = {}
        frames = 0
        with (
            DatasetWriter(
                out, observation=plan.observation, action=plan.action, dt=1.0 / plan.rate_hz, tasks=plan.tasks,
                provenance={"source": contents.format, "file": path.name, **contents.provenance}, overwrite=overwrite,
            ) as writer,
            tracker.progress(len(contents.episodes), "converted episodes") as bar,
        ):  # fmt: skip
            for number, episode in enumerate(contents.episodes):
                bar.update(number)
                success = _success(episode, options)
                if only_success and not success.any():
                    left_out[episode.name] = "no success"
                    continue
                action = np.asarray(episode.action[()], dtype=np.float32)
                if options.clip:
                    action = np.clip(action, plan.action.low, plan.action.high)
                reward = success.astype(np.float32) if episode.reward is None else episode.reward[()]
                ended = bool(success[-1]) if episode.terminated is None else episode.terminated
                writer.add_episode(
                    obs=_observations(episode, plan), action=action, reward=reward,
                    success=success, terminated=ended, task=options.task or episode.task or "",
                    seed=number if episode.seed is None else episode.seed,
                )  # fmt: skip
                frames += len(success)
            bar.update(len(contents.episodes))
            if not writer.num_episodes:
                raise DataError(f"{path}: no episode to keep of {len(contents.episodes)}: {left_out}")
    print(f"{contents.format}: {writer.num_episodes} episodes, {frames} frames at {plan.rate_hz:g} Hz in {out}"
          + (f"; not taken: {', '.join(plan.left)}" if plan.left else "")
          + "".join(f"\n  left out {name}: {why}" for name, why in left_out.items()))  # fmt: skip
    return Converted(out, writer.num_episodes, frames, 0, left_out)


def inspect_hdf5(path: Path) -> tuple[Contents, list[Defect]]:
    """Return the content of a file and all of its defects, independent of conversion options.

    Raises:
        ConfigError: h5py is missing.
        DataError: the file is cut off, of an unknown format, or lacks its JSON file.
    """
    with opened(path) as file:
        contents = _read(file, path, None)
        return contents, [*contents.defects, *check_file(contents)]


def _read(file: Group, path: Path, filter_key: str | None) -> Contents:
    found = [name for name, format in FORMATS.items() if format.recognises(file)]
    if not found:
        raise DataError(
            f"{path}: is HDF5 of no format that is known ({', '.join(FORMATS)}); it holds {sorted(file)[:8]}. Write "
            "its arrays with DatasetWriter: docs/bring_your_own/dataset.md."
        )
    if filter_key is not None and found[0] != "robomimic":
        raise ConfigError(f"hdf5.filter={filter_key}: only robomimic's files have filter keys, this is {found[0]}'s")
    return FORMATS[found[0]].read(file, path, filter_key)


def _success(episode: Trajectory, options: Hdf5Options) -> NDArray[np.bool_]:
    """Return success [T]; a value for the whole episode is set at its last frame."""
    known = episode.success if options.success is None else options.success
    if isinstance(known, np.ndarray):
        return known
    found = np.zeros(len(episode.action), dtype=bool)
    found[-1] = bool(known)
    return found


def _observations(episode: Trajectory, plan: ConversionPlan) -> dict[str, NDArray[Any]]:
    """Return observations [T ...], without the last successor."""
    length = len(episode.action)
    obs: dict[str, NDArray[Any]] = {}
    if plan.state:
        obs[STATE] = np.concatenate(
            [np.asarray(episode.obs[k][:length], dtype=np.float32).reshape(length, -1) for k in plan.state], axis=1
        )
    for name, key in plan.images.items():
        picture = episode.obs[key][:length]
        obs[name] = np.moveaxis(picture, -1, 1) if picture.shape[-1] == 3 else picture
    return obs

"""Read LeRobotDataset v3 into memory: parquet files are read whole, videos are decoded once without seeking.

LeRobot's `__getitem__` costs 4–9 ms a frame; training samples from tensors instead. Writing: lerobot_writer.py.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from robopolicy.core.errors import DataError, closest
from robopolicy.core.types import ENV_STATE, IMAGES, STATE, TASK, ActionSpec, Feature, Obs
from robopolicy.core.untrusted import check_links
from robopolicy.datasets.checks import check_needed, raise_defects
from robopolicy.datasets.episodes import Episodes
from robopolicy.datasets.frame_checks import check_episodes, check_rate
from robopolicy.datasets.metadata import SEED, RecordingMeta, num_episodes
from robopolicy.datasets.parquet import number, whole
from robopolicy.datasets.source import DatasetInfo, resolve_action_spec
from robopolicy.datasets.spans import EpisodeSpans, blocks_of
from robopolicy.datasets.tables import Columns, read_driver, read_outcomes, read_table, read_tasks, task_texts
from robopolicy.datasets.video import load_images, load_videos

_log = logging.getLogger(__name__)


def dataset_features(path: str | Path) -> dict[str, Feature]:
    """Observation features that a dataset offers, without loading it.

    Raises:
        DataError: not a LeRobot v3 dataset.
    """
    return dict(DatasetInfo.open(Path(path)).offered)


def annotate_dataset(
    path: str | Path,
    *,
    action_spec: ActionSpec,
    rename: Mapping[str, str | None] | None = None,
    outcomes: Literal["recorded", "success"] = "recorded",
    inferred: Mapping[str, str] | None = None,
) -> None:
    """Write once, in `meta/robopolicy.json`, how to read a dataset that robopolicy did not record.

    The command line can then train on it. Nothing else in the dataset changes. Arguments: see `load_episodes`.
    `inferred`: fields of `action_spec` that were inferred, and why; written down beside it.

    Raises:
        DataError: not a LeRobot v3 dataset, one with a link out of its folder, robopolicy recorded it itself, or the
            arguments do not fit it.
    """
    path = Path(path)
    check_links(path, error=DataError)
    source = DatasetInfo.open(path, rename or {})
    if source.meta is not None and source.meta.provenance.get("annotated") is not True:
        raise DataError(f"{path}: was recorded by robopolicy and says already what its actions mean")
    source = replace(source, meta=None)  # an annotation may be replaced
    resolve_action_spec(source, action_spec)
    RecordingMeta(
        action=action_spec, dt=1.0 / source.fps, tasks=task_texts(source),
        observation=tuple({**source.offered, TASK: None}), complete=True, rename=dict(rename or {}), outcomes=outcomes,
        provenance={"annotated": True, "inferred": dict(inferred or {})},
    ).save(path)  # fmt: skip


def load_episodes(
    path: str | Path,
    *,
    needed: Mapping[str, Feature] | None = None,
    cameras: Sequence[str] | None = None,
    episodes: Sequence[int] | None = None,
    action_spec: ActionSpec | None = None,
    rename: Mapping[str, str | None] | None = None,
    min_length: int = 1,
    outcomes: Literal["recorded", "success"] | None = None,
    incomplete: bool = True,
) -> Episodes:
    """Read a LeRobotDataset v3 into tensors and check it.

    Args:
        needed: features that a policy reads (`policy.spec.observation`); only these are loaded. None: all.
        cameras: names of cameras to load, e.g. `("front",)`; None: those in `needed`, or all.
        episodes: indices of episodes to load; None: all.
        action_spec: meaning of the actions. Required for datasets that robopolicy did not record, else verified.
        rename: {dataset's key: our key}, e.g. `{"observation.image": "observation.images.top"}`, or None to leave one
            out; None: as annotated.
        min_length: least number of frames of every episode.
        outcomes: "success" declares every episode a success with reward 1 at its last frame, for good demonstrations
            without rewards; None: as annotated, else "recorded".
        incomplete: False refuses a dataset whose recording was interrupted; True warns.

    Returns:
        Episodes in float32, images uint8. `outcomes` is False where neither rewards nor successes were recorded.

    Raises:
        DataError: unreadable, cut off, interrupted (see `incomplete`), a missing or different feature, NaN or infinity,
            frames that are not 1/fps apart, actions outside their limits, actions without a meaning, an episode that
            occurs twice, films whose spans overlap or do not fit the frames.
    """
    source = DatasetInfo.open(Path(path), rename)
    _check_complete(source, incomplete)
    if source.repeats_state:
        _log.info("%s: %s repeats %s: read once", source.root, ENV_STATE, STATE)
    outcomes = outcomes or (source.meta.outcomes if source.meta else "recorded")
    action_spec = resolve_action_spec(source, action_spec)
    raise_defects(check_needed(needed or {}, source.offered), source.root)
    keys = _keys_to_load(source, needed, cameras)
    column, spans = read_table(source, episodes, [source.names_there[k] for k in keys if k in source.names_there])
    blocks, stamps = blocks_of(whole(column.table, "episode_index")), number(column.table, "timestamp")
    raise_defects((d for block in blocks for d in check_rate(block, stamps, source.fps)), source.root)
    obs = _read_observations(source, keys, column, spans)
    tasks, task_index = read_tasks(source, column("task_index", ()))
    if TASK in keys:
        obs[TASK] = task_index
    reward, terminated, success, known = read_outcomes(column, outcomes)
    seeds = column(SEED if SEED in column.table.column_names else "episode_index", ()).astype(np.int64)
    result = Episodes(
        obs=obs, action=torch.from_numpy(column("action", (action_spec.dim,))).to(torch.float32), reward=reward,
        terminated=terminated, success=success, starts=column.starts,
        seeds=torch.from_numpy(seeds)[column.starts[:-1]], observation={k: source.offered[k] for k in keys},
        action_spec=action_spec, dt=source.meta.dt if source.meta else 1.0 / source.fps, tasks=tasks,
        driver=read_driver(column), outcomes=known,
    )  # fmt: skip
    raise_defects(check_episodes(result, min_length=min_length), source.root)
    return result


def _read_observations(source: DatasetInfo, keys: Sequence[str], column: Columns, spans: EpisodeSpans) -> Obs:
    """Read the observations `keys` without the task index: numbers, images in the table and videos."""
    obs: Obs = {}
    for key in keys:
        if key == TASK:
            continue
        there, feature = source.names_there[key], source.offered[key]
        if source.columns[there].dtype == "video":
            obs[key] = load_videos(source, there, feature, column.table, column.starts, spans.where(there))
        elif source.columns[there].dtype == "image":
            obs[key] = load_images(source, column.table, there, feature)
        else:
            obs[key] = torch.from_numpy(column(there, feature.shape)).to(feature.torch_dtype)
    return obs


def _check_complete(source: DatasetInfo, accepted: bool) -> None:
    if source.meta is None or source.meta.complete:
        return
    asked = source.meta.provenance.get("episodes")
    text = (
        f"{source.root}: holds {num_episodes(source.root)} episodes{f' of the {asked} asked for' if asked else ''}: "
        "its recording ended early"
    )
    if not accepted:
        raise DataError(
            f"{text}. Repeat the command that recorded it, which replaces it with the whole; or accept it "
            "with incomplete=true."
        )
    _log.warning("%s.", text)


def _keys_to_load(
    source: DatasetInfo, needed: Mapping[str, Feature] | None, cameras: Sequence[str] | None
) -> list[str]:
    keys = list(source.offered if needed is None else needed)
    if cameras is None:
        return keys
    for camera in cameras:
        if IMAGES + camera not in source.offered:
            offered = [k.removeprefix(IMAGES) for k in source.offered if k.startswith(IMAGES)]
            raise DataError(f"{source.root}: no camera {camera!r}. {closest(camera, offered)}")
    wanted = {IMAGES + c for c in cameras}
    return [k for k in keys if source.offered[k].dtype != "uint8" or k in wanted] + sorted(wanted - set(keys))

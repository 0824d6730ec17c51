"""Minari's datasets: episode_<i>/{observations, actions, rewards, terminations, truncations, infos} in main_data.hdf5.

Observations (and each info) have a frame more than actions; dictionaries and tuples of spaces are groups. Beside the
file lies metadata.json with the spaces, whose bounds are the action's limits; early versions had it as attributes.
https://minari.farama.org/content/dataset_standards
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robopolicy.data.hdf5.contents import Contents, Group, Trajectory, column, get, leaves, numbered, parsed
from robopolicy.errors import DataError


def recognises(file: Group) -> bool:
    return bool(numbered(file, "episode_"))


def read(file: Group, path: Path, filter_key: str | None) -> Contents:
    """What the file holds.

    Raises:
        DataError: unreadable metadata, missing columns, lengths that are not what the file says.
    """
    beside = path.with_name("metadata.json")
    text = beside.read_text(encoding="utf-8") if beside.is_file() else None
    meta = dict(file.attrs) if text is None else parsed(text, str(beside))
    names = numbered(file, "episode_")
    claimed = meta.get("total_episodes")
    if claimed is not None and int(claimed) != len(names):
        raise DataError(f"{path}: holds {len(names)} episodes, its metadata say {int(claimed)}. Was it cut off?")
    env = parsed(meta["env_spec"], f"{beside}: env_spec") if meta.get("env_spec") else {}
    return Contents(
        format="Minari", episodes=tuple(_trajectory(file[name]) for name in names), rate_hz=None,
        action=_limits(meta, str(beside)), control="", controls=(), successor=True,
        provenance={"dataset_id": meta.get("dataset_id"), "env": env.get("id")},
    )  # fmt: skip


def _limits(meta: dict[str, Any], where: str) -> dict[str, Any]:
    """`low` and `high` of a bounded Box."""
    if not meta.get("action_space"):
        return {}
    space = parsed(meta["action_space"], f"{where}: action_space")
    if space.get("type") != "Box":
        raise DataError(f"{where}: action_space is {space.get('type')}; expected Box, a vector of numbers")
    low, high = (np.asarray(space.get(k, ()), dtype=float).reshape(-1).tolist() for k in ("low", "high"))
    bounded = low and all(map(math.isfinite, (*low, *high)))
    return {"low": tuple(low), "high": tuple(high)} if bounded else {}


def _trajectory(episode: Group) -> Trajectory:
    seed, length = episode.attrs.get("seed"), episode.attrs.get("total_steps")
    terminations = column(episode, "terminations")[()]
    if not len(terminations):
        raise DataError(f"{episode.file.filename}: {episode.name}/terminations is empty")
    return Trajectory(
        episode.name.lstrip("/"), leaves(get(episode, "observations")), column(episode, "actions"),
        column(episode, "rewards"), _success(episode), bool(terminations[-1]),
        seed=_number(seed), length=None if length is None else int(length),
    )  # fmt: skip


def _number(value: Any) -> int | None:
    """Not every dataset has seeds; some say so in words."""
    return int(value) if isinstance(value, int | np.integer) else None


def _success(episode: Group) -> NDArray[np.bool_] | None:
    """[T] of infos["success"], of which there may be T, or T+1 with that of the reset."""
    infos = episode.get("infos")
    if infos is None:
        return None
    count = len(column(episode, "rewards"))
    if hasattr(infos, "keys"):
        values = infos["success"][()] if "success" in infos else None
    else:  # since 0.6: a JSON object a step
        objects = [json.loads(text) for text in infos[()]]
        values = np.array([o["success"] for o in objects[-count:]]) if all("success" in o for o in objects[-count:]) \
            and len(objects) >= count else None  # fmt: skip
    return None if values is None or not len(values) else np.asarray(values).reshape(len(values))[-count:].astype(bool)

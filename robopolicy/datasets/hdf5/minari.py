"""Minari's datasets: episode_<i>/{observations, actions, rewards, terminations, truncations, infos} in main_data.hdf5.

Observations (and each info) have a frame more than actions; dictionaries and tuples of spaces are groups. Beside the
file lies metadata.json with the spaces, whose bounds are the action's limits; early versions had it as attributes.
https://minari.farama.org/content/dataset_standards
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
from numpy.typing import NDArray

from robopolicy.core.errors import DataError
from robopolicy.datasets.checks import Defect
from robopolicy.datasets.files import read_json
from robopolicy.datasets.hdf5 import contents as h5

_Number = Annotated[float, pydantic.Field(strict=True)]
_Bounds = _Number | list[_Number] | list[list[_Number]]


def recognises(file: h5.Group) -> bool:
    return bool(h5.numbered(file, "episode_"))


class _MinariMeta(pydantic.BaseModel):
    """metadata.json, or the attributes that early versions kept instead."""

    dataset_id: str | None = None
    total_episodes: int | None = None
    env_spec: str | None = None
    action_space: str | None = None


class _MinariEnv(pydantic.BaseModel):
    id: str | None = None


class _Space(pydantic.BaseModel):
    type: Literal["Box"]
    low: _Bounds = []
    high: _Bounds = []


def read(file: h5.Group, path: Path, filter_key: str | None) -> h5.Contents:
    """Return the content of the file; broken parts are in its `defects`."""
    found, meta = h5.Defects(), _MinariMeta()
    names = h5.numbered(file, "episode_")
    where = "metadata.json"
    with found.noted():
        meta = _meta(file, path.with_name(where))
    if meta.total_episodes not in (None, len(names)):
        problem = f"holds {len(names)} episodes, its metadata say {meta.total_episodes}"
        found.append(Defect("total_episodes", problem, "Was it cut off? Copy or download it again"))
    action: dict[str, Any] = {}
    with found.noted():
        action = _limits(meta.action_space, f"{where}, action_space") if meta.action_space else {}
    env = found.model(_MinariEnv, meta.env_spec or None, f"{where}, env_spec")
    episodes = found.collect(names, lambda name: _trajectory(h5.get(file, name)))
    return h5.Contents(
        format="Minari", episodes=tuple(episodes), rate_hz=None, action=action, control="", controls=(),
        successor=True, provenance={"dataset_id": meta.dataset_id, "env": env.id}, defects=tuple(found),
    )  # fmt: skip


def _meta(file: h5.Group, beside: Path) -> _MinariMeta:
    if not beside.is_file():
        attributes = {k: v.item() if isinstance(v, np.generic) else v for k, v in file.attrs.items()}
        return h5.modelled(_MinariMeta, attributes, "attributes of the file")
    try:
        data = read_json(beside)
    except DataError as error:
        raise h5.BrokenError(beside.name, str(error)) from error
    return h5.modelled(_MinariMeta, data, beside.name)


def _limits(text: str, where: str) -> dict[str, Any]:
    """Return `low` and `high` of a bounded Box."""
    space = h5.modelled(_Space, h5.parsed(text, where), where)
    try:
        low, high = (np.asarray(v, dtype=float).reshape(-1).tolist() for v in (space.low, space.high))
    except ValueError as error:
        raise h5.BrokenError(where, f"low, high: expected arrays ({error})") from error
    if len(low) != len(high) or not all(a < b for a, b in zip(low, high, strict=False)):
        raise h5.BrokenError(where, f"low: expected values below those of high, found {low} and {high}")
    bounded = low and all(map(math.isfinite, (*low, *high)))
    return {"low": tuple(low), "high": tuple(high)} if bounded else {}


def _trajectory(episode: h5.Group) -> h5.Trajectory:
    where = f"{episode.name}/terminations"
    terminations = h5.flags(h5.column(episode, "terminations")[()], where)
    if not len(terminations):
        raise h5.BrokenError(where, "is empty")
    return h5.Trajectory(
        episode.name.lstrip("/"), h5.leaves(h5.get(episode, "observations")), h5.column(episode, "actions"),
        h5.column(episode, "rewards"), _success(episode), bool(terminations[-1]),
        seed=_number(episode.attrs.get("seed")), length=h5.whole_attribute(episode, "total_steps"),
    )  # fmt: skip


def _number(value: Any) -> int | None:
    """Return a seed as int; None where it is missing or a text."""
    return int(value) if isinstance(value, int | np.integer) else None


def _success(episode: h5.Group) -> NDArray[np.bool_] | None:
    """Return infos["success"] [T], without the value of the reset where there are T+1; None: it is not recorded."""
    if "infos" not in episode:
        return None
    infos, count = h5.get(episode, "infos"), len(h5.column(episode, "rewards"))
    where = f"{episode.name}/infos, success"
    if hasattr(infos, "keys"):
        values = h5.get(infos, "success")[()] if "success" in infos else None
    else:  # since 0.6: a JSON object a step
        objects = [h5.parsed(text, f"{episode.name}/infos") for text in np.atleast_1d(infos[()])[-count:]]
        there = [o["success"] for o in objects if "success" in o]
        values = there or None
    if values is None or not np.size(values):
        return None
    found = h5.flags(values, where)
    if len(found) not in (count, count + 1):
        raise h5.BrokenError(where, f"expected {count} or {count + 1} steps, found {len(found)}")
    return found[-count:]

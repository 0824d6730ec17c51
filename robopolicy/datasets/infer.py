"""Infer what the actions of a dataset mean, where its numbers and names show it."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from robopolicy.core.errors import DataError
from robopolicy.core.types import IMAGES, STATE
from robopolicy.datasets.checks import raise_defects
from robopolicy.datasets.frame_checks import check_finite
from robopolicy.datasets.parquet import whole
from robopolicy.datasets.source import DatasetInfo
from robopolicy.datasets.spans import blocks_of
from robopolicy.datasets.tables import read_table

_JOINTS = re.compile(r"joint|waist|shoulder|elbow|wrist|forearm|\bq\d", re.IGNORECASE)
_AXIS = re.compile(r"[._]q?[xyzw](\.pos)?$", re.IGNORECASE)  # of the pose of a wrist
_GRIPPER = re.compile(r"gripper|claw|jaw", re.IGNORECASE)
_POSITIONS = re.compile(r"(left_|right_)?d?[xyz]([_.].*)?", re.IGNORECASE)
_FOLLOWED = 0.3  # mean distance from an action to the next state, in standard deviations of the state
_TURN = 2.0 * math.pi


class Fact(NamedTuple):
    """A value of a field of ActionSpec, and the reason to believe it."""

    value: Any
    reason: str


def infer_facts(source: DatasetInfo) -> dict[str, Fact]:
    """Infer fields of ActionSpec; those that the data do not show are left out.

    Raises:
        DataError: no actions that are vectors of numbers, a value that is not finite, or tables that cannot be read.
    """
    column = source.columns.get("action")
    if column is None or not column.is_number or len(column.shape) != 1:
        raise DataError(
            f"{source.root}: has no 'action' that is a vector of numbers; `rename` is for observations alone. It has "
            f"{sorted(source.columns)}"
        )
    state = source.names_there.get(STATE)
    keys = ["action", *([state] if state else [])]
    read, _ = read_table(source, None, keys)
    values = {k: read(k, source.columns[k].shape).astype(np.float64).reshape(read.table.num_rows, -1) for k in keys}
    blocks = blocks_of(whole(read.table, "episode_index"))
    elements = {k: source.columns[k].names for k in keys}
    raise_defects((d for block in blocks for d in check_finite(block, values, elements)), source.root)
    action = values["action"]
    names = column.names if column.names and len(column.names) == action.shape[1] else None
    found = _limits(action)
    if names is None:
        found["names"] = Fact(tuple(f"action_{k}" for k in range(action.shape[1])), "the dataset has no names")
    else:
        found["names"] = Fact(names, "as the dataset says")
    found |= _gripper(found["names"].value, action)
    if state is not None and source.columns[state].shape == column.shape:
        found |= _reference(action, values[state], read.starts)
    if names is not None:
        found |= _frame(names, found, action)
    return found


def infer_names(source: DatasetInfo) -> dict[str, str]:
    """Return new names of cameras whose keys do not begin as policies expect, {dataset's key: ours}."""
    cameras = [k for k, c in source.columns.items() if c.is_picture and k.startswith("observation.")]
    return {k: IMAGES + k.rpartition(".")[2] for k in cameras if not k.startswith(IMAGES)}


def _limits(action: NDArray[np.float64]) -> dict[str, Fact]:
    low, high = action.min(0), action.max(0)
    still = low == high  # A limit must lie below the other.
    room = np.where(still, np.maximum(1e-3, 1e-3 * np.abs(low)), 0.0)
    return {
        "low": Fact(tuple((low - room).tolist()), "the least recorded value"),
        "high": Fact(tuple((high + room).tolist()), "the greatest recorded value"),
    }


def _gripper(names: tuple[str, ...], action: NDArray[np.float64]) -> dict[str, Fact]:
    found = [k for k, name in enumerate(names) if _GRIPPER.search(name)]
    if len(found) != 1:
        reason = f"{len(found)} channels are named after one; a spec holds one" if found else "no channel is named so"
        return {"gripper": Fact(None, reason), "gripper_meaning": Fact("", reason)}
    values, reason = action[:, found[0]], f"the name {names[found[0]]!r}"
    meaning = f"as recorded: {values.min():g} to {values.max():g}"
    return {"gripper": Fact(found[0], reason), "gripper_meaning": Fact(meaning, reason)}


def _reference(action: NDArray[np.float64], state: NDArray[np.float64], starts: torch.Tensor) -> dict[str, Fact]:
    """Tell an absolute target: the state follows it within a frame."""
    last = np.zeros(len(state), dtype=bool)
    last[starts[1:].numpy() - 1] = True
    now = np.flatnonzero(~last)
    if not len(now):
        return {}
    distance = np.abs(action[now] - state[now + 1]).mean(0) / np.maximum(state.std(0), 1e-9)
    if not float(np.median(distance)) <= _FOLLOWED:
        return {}
    return {"reference": Fact("absolute", f"actions are the next frame's {STATE}, within {np.median(distance):.0%}")}


def _frame(names: tuple[str, ...], found: dict[str, Fact], action: NDArray[np.float64]) -> dict[str, Fact]:
    """Tell joint commands by their names, and radians by their range."""
    arm = [k for k, name in enumerate(names) if not _GRIPPER.search(name)]
    if not arm:
        return {}
    if all(_JOINTS.search(names[k]) and not _AXIS.search(names[k]) for k in arm):
        reason = f"names such as {names[arm[0]]!r}"
        facts = {k: Fact("joint", reason) for k in ("frame", "rotation")}
        facts["tcp"] = Fact("tool0", "joint commands do not depend on it")
        widest = float(np.abs(action[:, arm]).max())
        if 1.0 < widest <= _TURN and "reference" in found:  # degrees would be more, shares of a range less
            units = tuple("rad" if k in arm else "1" for k in range(len(names)))
            facts["units"] = Fact(units, f"joint values up to {widest:.2f}")
        return facts
    if all(_POSITIONS.fullmatch(names[k]) for k in arm):
        return {"rotation": Fact("none", f"names such as {names[arm[0]]!r}, and none of a turn")}
    return {}

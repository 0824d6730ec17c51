"""Read recorded episodes that a simulator can run again: the first state and the actions, of ManiSkill or robomimic.

LIBERO's files are of robomimic's kind. Observations are not needed: the task makes its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robopolicy.core.errors import DataError
from robopolicy.datasets.checks import raise_defects
from robopolicy.datasets.hdf5 import contents as h5
from robopolicy.datasets.hdf5 import maniskill, robomimic

_MOST = 1_000_000  # actions of one episode


@dataclass(frozen=True)
class RecordedStart:
    """One recorded episode.

    `state`: the simulator's first state, an array [·], or a dict of such by name; `action` [T Da]; `seed`: the
    simulator's own, None where the file does not say.
    """

    name: str
    state: Any
    action: NDArray[np.float32]
    seed: int | None


@dataclass(frozen=True)
class RecordedStarts:
    """The episodes of a file. `env`, `control`: names of its task and control mode, "" where the file does not say."""

    format: str
    env: str
    control: str
    episodes: tuple[RecordedStart, ...]


def read_replays(path: Path) -> RecordedStarts:
    """Read the first states and actions of a file.

    Raises:
        ConfigError: h5py is missing.
        DataError: the file is damaged, or of another format than ManiSkill's and robomimic's.
    """
    with h5.opened(path) as file:
        if maniskill.recognises(file):
            contents = maniskill.read(file, path, None)
            groups = {e.name: h5.get(file, e.name) for e in contents.episodes}
            states: Any = {name: _tree(h5.leaves(h5.get(group, "env_states"))) for name, group in groups.items()}
        elif robomimic.recognises(file):
            contents = robomimic.read(file, path, None)
            groups = {e.name: h5.get(file["data"], e.name.removeprefix("data/")) for e in contents.episodes}
            states = {name: _first(h5.column(group, "states")) for name, group in groups.items()}
        else:
            raise DataError(
                f"{path}: expected trajectories of ManiSkill, robomimic or LIBERO, found {sorted(file)[:5]}"
            )
        raise_defects(list(contents.defects), path)
        found = tuple(RecordedStart(e.name, states[e.name], _action(e, path), e.seed) for e in contents.episodes)
    facts = contents.provenance
    return RecordedStarts(contents.format, str(facts.get("env") or ""), contents.control, found)


def _action(episode: h5.Trajectory, path: Path) -> NDArray[np.float32]:
    shape = episode.action.shape
    if len(shape) != 2 or not 1 <= shape[0] <= _MOST:
        raise DataError(f"{path}, {episode.name}/actions: expected [T Da] with T at least 1, found {shape}")
    action = np.asarray(episode.action[()], dtype=np.float32)
    if not np.isfinite(action).all():
        raise DataError(f"{path}, {episode.name}/actions: expected finite numbers")
    return action


def _first(column: h5.Column) -> NDArray[np.float64]:
    state = np.asarray(column[0], dtype=np.float64)
    if not np.isfinite(state).all():
        raise DataError(f"{column.name}: expected finite numbers in its first state")
    return state


def _tree(leaves: Mapping[str, h5.Column]) -> dict[str, Any]:
    """Return {group: {name: first state}} of columns named group/name."""
    found: dict[str, Any] = {}
    for path, column in leaves.items():
        *groups, name = path.split("/")
        inner = found
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[name] = _first(column)
    return found

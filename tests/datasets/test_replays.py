"""First states and actions of recorded episodes, from files that may be damaged."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from robopolicy.core.errors import DataError
from robopolicy.datasets.hdf5.replays import read_replays
from tests.datasets import hdf5_files as files


def test_maniskills_first_states_keep_their_groups(tmp_path):
    files.maniskill(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "a") as file:
        for name in [k for k in file if k.startswith("traj_")]:
            states = file[name].require_group("env_states")
            for key in list(states):
                del states[key]
            steps = len(file[f"{name}/actions"]) + 1
            states["actors/cube"] = np.arange(steps * 2.0).reshape(steps, 2)
    found = read_replays(tmp_path / "a.h5")
    assert found.format == "ManiSkill" and len(found.episodes) > 1
    assert found.episodes[0].state["actors"]["cube"].tolist() == [0.0, 1.0]
    assert found.episodes[0].action.dtype == np.float32


def test_robomimics_first_state_is_a_row(tmp_path):
    files.robomimic(tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        for name in file["data"]:
            file[f"data/{name}"].pop("states", None)
            file[f"data/{name}/states"] = np.full((len(file[f"data/{name}/actions"]), 3), 2.0)
    found = read_replays(tmp_path / "a.hdf5")
    assert found.format == "robomimic" and found.episodes[0].state.tolist() == [2.0, 2.0, 2.0]


def test_damaged_files_are_refused(tmp_path):
    files.robomimic(tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        for name in file["data"]:
            file[f"data/{name}"].pop("states", None)
    with pytest.raises(DataError, match="states"):
        read_replays(tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        for name in file["data"]:
            file[f"data/{name}/states"] = np.full((2, 3), np.nan)
    with pytest.raises(DataError, match="finite"):
        read_replays(tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "b.hdf5", "w") as file:
        file["x"] = 1
    with pytest.raises(DataError, match="ManiSkill, robomimic or LIBERO"):
        read_replays(tmp_path / "b.hdf5")

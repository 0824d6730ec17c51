"""A small dataset, recorded once per session, that tests copy and damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robopolicy.core.types import ActionSpec, Feature
from robopolicy.datasets.lerobot_writer import DatasetWriter

ACTION = ActionSpec(
    names=("dx", "dy"), units=("m", "m"), low=(-0.1, -0.1), high=(0.1, 0.1), frame="world", tcp="point",
    rotation="none", reference="measured", gripper=None, gripper_meaning="",
)  # fmt: skip
OBSERVATION = {
    "observation.state": Feature((3,), names=("x", "y", "z")),
    "observation.force": Feature((2, 2)),
    "task_index": Feature((), "int64"),
}
LENGTHS = (5, 9, 2)


def episode(index: int, length: int) -> dict:
    rng = np.random.default_rng(index)
    success = np.zeros(length, dtype=bool)
    success[-1] = index != 1
    return {
        "obs": {
            "observation.state": rng.normal(size=(length, 3)).astype(np.float32),
            "observation.force": rng.normal(size=(length, 2, 2)).astype(np.float32),
        },
        "action": rng.uniform(-0.1, 0.1, size=(length, 2)).astype(np.float32),
        "reward": success.astype(np.float32),
        "success": success,
        "terminated": bool(success[-1]),
        "task": ("push", "pull", "push")[index],
        "seed": 2**41 + index,
    }


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three episodes of `LENGTHS` frames at 10 Hz; the second is cut by a time limit."""
    path = tmp_path_factory.mktemp("recorded") / "demos"
    tasks = ("pull", "unused", "push")
    with DatasetWriter(path, observation=OBSERVATION, action=ACTION, dt=0.1, tasks=tasks) as writer:
        for i, length in enumerate(LENGTHS):
            writer.add_episode(**episode(i, length))
    return path


@pytest.fixture
def dataset(recorded: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(recorded, tmp_path / "demos"))


@pytest.fixture
def edit(dataset: Path) -> Callable[..., None]:
    """edit(key, change): replace column `key` of the table by `change(list of rows)`."""

    def apply(key: str, change: Callable[[list], list], *, kind: pa.DataType | None = None) -> None:
        file = next((dataset / "data").glob("*/*.parquet"))
        table = pq.read_table(file)
        values = change(table[key].to_pylist())
        column = pa.array(values, type=kind or table.schema.field(key).type)
        table = table.set_column(table.column_names.index(key), key, column)
        pq.write_table(table, file)

    return apply

"""Every way in which a dataset can be unfit is found, and the message says where."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from robopolicy.core.errors import DataError
from robopolicy.core.types import Feature
from robopolicy.datasets.checks import Defect, raise_defects
from robopolicy.datasets.frame_checks import check_episodes
from robopolicy.datasets.lerobot_reader import load_episodes


def put(row: int, value, element: int | None = None):
    """A change for `edit`: overwrite one row, or one element of it."""

    def change(rows: list) -> list:
        if element is None:
            rows[row] = value
        else:
            rows[row][element] = value
        return rows

    return change


def test_an_intact_dataset_has_no_defects(recorded: Path) -> None:
    assert check_episodes(load_episodes(recorded)) == []


@pytest.mark.parametrize(
    ("key", "change", "message"),
    [
        ("observation.state", put(6, math.nan, 1), r"state, episode 1, frame 1: element 'y' is nan \(frame 1\)"),
        ("action", put(15, math.inf, 0), r"action, episode 2, frame 1: element 'dx' is inf"),
        ("next.reward", put(4, math.nan), r"next.reward, episode 0, frame 4: element 0 is nan"),
        ("action", put(3, 0.2, 1), r"action, episode 0, frame 3: 'dy' is 0.2 m, limits are \[-0.1, 0.1\] \(frame 3\)"),
        ("timestamp", put(7, 0.25), r"timestamp, episode 1, frame 2: a gap of 0.1500 s"),
        ("frame_index", put(7, 3), r"frame_index, episode 1, frame 2: 1 frames are missing: 3 follows frame 1"),
        ("task_index", put(0, 9), r"task_index 9 of data/ has no text"),
        ("observation.state", put(0, None), r"'observation.state' must have shape \(3,\)"),
    ],
)
def test_defects_in_the_table(dataset: Path, edit, key: str, change, message: str) -> None:
    edit(key, change)
    with pytest.raises(DataError, match=message):
        load_episodes(dataset)


def test_rows_of_another_length(dataset: Path, edit) -> None:
    edit("action", put(9, [0.0, 0.0, 0.0]), kind=pa.list_(pa.float32()))
    with pytest.raises(DataError, match=r"'action' must have shape \(2,\) in every frame; episode 1, frame 4 has 3"):
        load_episodes(dataset)


def test_needed_features(recorded: Path) -> None:
    for needed, message in [
        ({"observation.stat": Feature((3,))}, r"needs 'observation.stat'.*Did you mean 'observation.state'"),
        ({"observation.state": Feature((4,))}, r"the policy expects shape \(4,\), the dataset has \(3,\)"),
        ({"observation.state": Feature((3,), "int64")}, r"expects dtype int64"),
        ({"observation.state": Feature((3,), names=("x", "z", "y"))}, r"element names differ.*y"),
    ]:
        with pytest.raises(DataError, match=message):
            load_episodes(recorded, needed=needed)


def test_short_episodes(recorded: Path) -> None:
    with pytest.raises(DataError, match=r"length, episode 2: has 2 frames, expected at least 4"):
        load_episodes(recorded, min_length=4)


def test_all_defects_are_reported_at_once(dataset: Path, edit) -> None:
    edit("action", put(3, 0.2, 1))
    edit("observation.state", put(6, math.nan, 1))
    with pytest.raises(DataError, match=r"(?s)2 defects.*action.*observation.state"):
        load_episodes(dataset)


def test_incomplete_datasets(dataset: Path, tmp_path: Path) -> None:
    table = next((dataset / "data").glob("*/*.parquet"))
    whole = table.read_bytes()

    table.write_bytes(whole[: len(whole) // 2])  # killed before `finalize`
    with pytest.raises(DataError, match=r"file-000.parquet: cannot be read .*killed before `finalize`"):
        load_episodes(dataset)
    table.unlink()
    with pytest.raises(DataError, match="empty, no parquet file"):
        load_episodes(dataset)
    table.write_bytes(whole)

    info = dataset / "meta" / "info.json"
    facts = json.loads(info.read_text())
    info.write_text(json.dumps({**facts, "total_frames": 99}))
    with pytest.raises(DataError, match=r"data/ holds 16 frames, meta/info.json says 99"):
        load_episodes(dataset)
    info.write_text(json.dumps({**facts, "codebase_version": "v2.1"}))
    with pytest.raises(DataError, match=r"format v2\.1, expected v3.x. Convert it"):
        load_episodes(dataset)
    info.write_text('{"fps"')
    with pytest.raises(DataError, match="damaged"):
        load_episodes(dataset)
    shutil.rmtree(dataset)
    with pytest.raises(DataError, match="no dataset here"):
        load_episodes(dataset)
    (tmp_path / ".demos.recording-x").mkdir()
    with pytest.raises(DataError, match=r"killed before it could finish .*\.demos\.recording-x"):
        load_episodes(dataset)


def test_a_column_that_info_promises_is_missing(dataset: Path) -> None:
    info = dataset / "meta" / "info.json"
    facts = json.loads(info.read_text())
    facts["features"]["observation.extra"] = {"dtype": "float32", "shape": [1], "names": None}
    info.write_text(json.dumps(facts))
    with pytest.raises(DataError, match=r"column 'observation.extra' is missing"):
        load_episodes(dataset)
    del facts["features"]["action"]
    info.write_text(json.dumps(facts))
    with pytest.raises(DataError, match="has no 'action'"):
        load_episodes(dataset)


def test_checks_of_episodes_in_memory(recorded: Path) -> None:
    episodes = load_episodes(recorded)
    wrong = replace(episodes, obs={**episodes.obs, "observation.state": torch.zeros(16, 4)})
    assert "expected (3,) per frame, found (4,)" in str(check_episodes(wrong)[0])
    empty = replace(episodes, action=torch.zeros(0, 2), starts=torch.zeros(1, dtype=torch.int64))
    assert "holds no frames" in str(check_episodes(empty)[0])


def test_one_defect_is_counted_as_one() -> None:
    with pytest.raises(DataError, match="1 defect\n"):
        raise_defects([Defect("timestamp", "stands still", "Record again")], "here")

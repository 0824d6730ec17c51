"""`robopolicy data check` names every defect by episode and frame: each kind is planted, and nothing else is said."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robopolicy.cli.main import main
from robopolicy.core.errors import DataError
from robopolicy.core.types import ENV_STATE, STATE, Feature
from robopolicy.datasets.inspect import _check_duplicates, inspect
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.datasets.lerobot_writer import DatasetWriter
from robopolicy.datasets.source import DatasetInfo
from robopolicy.datasets.spans import FilmBlock
from tests.datasets.conftest import ACTION, LENGTHS, OBSERVATION, episode
from tests.datasets.test_checks import put


def said(path: Path, **options: float) -> list[str]:
    """Defects other than that statistics are not those of the edited data."""
    found = map(str, inspect(DatasetInfo.open(path), **options))
    return [d for d in found if "in meta/stats.json, " not in d]


def move(rows: slice, by: float) -> Callable[[list], list]:
    def change(values: list) -> list:
        moved = np.array(values)
        moved[rows] += by
        return list(moved)

    return change


def scale(rows: slice, by: float) -> Callable[[list], list]:
    def change(values: list) -> list:
        return [v * by if i in range(*rows.indices(len(values))) else v for i, v in enumerate(values)]

    return change


SECOND = slice(5, 14)  # rows of episode 1, of nine frames


STAMP = "timestamp, episode 1, frame 4: "


@pytest.mark.parametrize(
    ("key", "change", "expected"),
    [
        ("timestamp", move(slice(9, 14), 0.3), [f"{STAMP}a gap of 0.4000 s, in which 3 frames are missing."]),
        ("timestamp", move(slice(9, 14), 0.02), [f"{STAMP}a gap of 0.1200 s, expected 0.1000 s."]),
        ("timestamp", move(slice(9, 14), -0.1), [f"{STAMP}time stands still or runs back"]),
        ("timestamp", scale(SECOND, 0.5), ["timestamp, episode 1, frame 0: was recorded at 20 Hz, the dataset says"]),
        ("frame_index", move(slice(8, 14), 2), ["frame_index, episode 1, frame 3: 2 frames are missing: 5 follows"]),
        (
            "frame_index", put(5, 1),
            [
                "frame_index, episode 1, frame 0: 1 frames are missing: 1 follows the episode's begin",
                "frame_index, episode 1, frame 1: frames are out of order: 1 follows frame 1",
            ],
        ),
        ("observation.state", put(6, math.nan, 1),
         ["observation.state, episode 1, frame 1: element 'y' is nan (frame 1)"]),
        ("next.reward", put(15, math.inf), ["next.reward, episode 2, frame 1: element 0 is inf (frame 1)."]),
        ("action", put(3, 0.2, 1), ["action, episode 0, frame 3: 'dy' is 0.2 m, limits are [-0.1, 0.1] (frame 3)."]),
        ("task_index", put(0, 9), ["task_index: task_index 9 of data/ has no text in meta/tasks.parquet."]),
        (ENV_STATE, move(SECOND, 0.5), [f"{ENV_STATE}: differs from 'observation.state', whose copy it is taken for"]),
        ("observation.state", put(0, None), ["observation.state: 'observation.state' must have shape (3,)"]),
    ],
)  # fmt: skip
def test_defects_of_rows(dataset: Path, edit, key: str, change, expected: list[str]) -> None:
    edit(key, change)
    found = said(dataset)
    assert len(found) == len(expected), found
    assert all(f.startswith(e) for f, e in zip(found, expected, strict=True)), found


def test_another_rate_is_named_not_the_films_that_do_not_fit_it(tmp_path: Path) -> None:
    camera, path = "observation.images.top", tmp_path / "films"
    with DatasetWriter(path, observation={**OBSERVATION, camera: Feature((3, 16, 16), "uint8")}, action=ACTION, dt=0.1,
                       tasks=("pull", "push")) as writer:  # fmt: skip
        for index in (0, 1):
            made = episode(index, 9)
            made["obs"][camera] = np.full((9, 3, 16, 16), 40 * index, dtype=np.uint8)
            writer.add_episode(**made)
    file = next((path / "data").glob("*/*.parquet"))
    table = pq.read_table(file)
    stamps = table["timestamp"].to_numpy().copy()
    stamps[9:] *= 2.0
    at = table.column_names.index("timestamp")
    pq.write_table(table.set_column(at, "timestamp", pa.array(stamps, type=pa.float32())), file)
    with pytest.raises(DataError, match=r"episode 1, frame 0: was recorded at 5 Hz, the dataset says 10"):
        load_episodes(path)


def test_nothing_to_compare_makes_no_duplicates() -> None:
    assert not list(_check_duplicates([FilmBlock(0, 0, 3), FilmBlock(1, 3, 6)], {}))


def test_intact_datasets_have_none(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect(DatasetInfo.open(recorded)) == []
    assert main(["data", "check", f"dataset={recorded}"]) == 0
    said = capsys.readouterr().out
    assert "16 frames at 10 Hz, no defects in 5 columns\nobservation.environment_state repeats" in said


def test_numbers_that_float32_cannot_tell_apart_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    observation = {STATE: Feature((2,), "float64", ("x", "ticks")), "observation.count": Feature((1,), "int64")}
    state = np.stack([np.arange(9) / 7, 1e8 + np.arange(9)], axis=1)
    count = 200_000_000 + np.arange(9)[:, None]
    with DatasetWriter(tmp_path / "d", observation=observation, action=ACTION, dt=0.1, tasks=("pull",)) as writer:
        writer.add_episode(**{**episode(0, 9), "obs": {STATE: state, "observation.count": count}, "task": "pull"})
    assert main(["data", "check", f"dataset={tmp_path / 'd'}"]) == 0
    said = capsys.readouterr().out
    assert "observation.state: element 'ticks' has 9 values in float64 and 2 in float32" in said
    assert "observation.count: element 0 has 9 values in int64 and" in said and "'x'" not in said


def test_every_defect_is_named_not_the_first_of_its_kind(
    dataset: Path, edit, capsys: pytest.CaptureFixture[str]
) -> None:
    for row in (1, 2, 6, 8):
        edit("observation.state", put(row, math.nan, 1))
    edit("action", put(3, 0.2, 1))
    assert [d.partition(":")[0] for d in said(dataset)] == [
        "observation.state, episode 0, frame 1", "action, episode 0, frame 3", "observation.state, episode 1, frame 1",
    ]  # fmt: skip
    assert "(frames 1–2)" in said(dataset)[0] and "(frames 1, 3)" in said(dataset)[2]
    assert main(["data", "check", f"dataset={dataset}", "shown=1"]) == 1
    assert "3 defects\n  - observation.state, episode 0" in capsys.readouterr().err.replace("4 defects", "3 defects")


def test_saturation(dataset: Path, edit) -> None:
    for row in (6, 7, 8, 10, 12):
        edit("action", put(row, 0.1, 0))
    (found,) = said(dataset)
    assert found.startswith("action, episode 1, frame 1: 'dx' is at its upper limit 0.1 in 56% of the frames "
                            "(frames 1–3, 5, 7).")  # fmt: skip
    assert said(dataset, saturated=0.6) == []
    (dataset / "meta" / "robopolicy.json").unlink()  # nobody says what the limits are: the data's extremes count
    assert said(dataset)[0].startswith("action, episode 1, frame 1: 'element 0' is at its upper extreme 0.1")


def write(path: Path, order: tuple[int, ...], *, gripper: bool = False, stride: int = 1) -> Path:
    from dataclasses import replace

    action = replace(ACTION, gripper=1, gripper_meaning="x") if gripper else ACTION
    with DatasetWriter(path, observation=OBSERVATION, action=action, dt=0.1, tasks=("pull", "push")) as writer:
        for seed, i in enumerate(order):
            content = {**episode(i, LENGTHS[i]), "seed": seed, "task": "push"}
            if gripper:
                content["action"][:, 1] = 0.1
                content["action"][0, 1] = 0.0499
            rows = np.arange(LENGTHS[i]) // stride
            content["obs"] = {k: v[rows] for k, v in content["obs"].items()}
            writer.add_episode(**content)
    return path


def test_duplicates_and_rates(tmp_path: Path) -> None:
    twice = write(tmp_path / "twice", (0, 1, 0), gripper=True)  # the gripper may stay closed
    assert [d.partition(". ")[0] for d in said(twice)] == [
        "episode, episode 2, frame 0: is episode 0 again, in every frame"
    ]
    slow = write(tmp_path / "slow", (1,), stride=2)
    assert [d.partition(". ")[0] for d in said(slow)] == [
        "frequency, episode 0, frame 1: only one frame in 2 is new: it looks like 5 Hz, written at 10"
    ]


def test_statistics(dataset: Path, tmp_path: Path) -> None:
    file = dataset / "meta" / "stats.json"
    stats = json.loads(file.read_text())

    def damaged(change: Callable[[dict], None]) -> list[str]:
        other = json.loads(json.dumps(stats))
        change(other)
        file.write_text(json.dumps(other))
        return [str(d) for d in inspect(DatasetInfo.open(dataset))]

    assert damaged(lambda s: None) == []
    (found,) = damaged(lambda s: s["action"].pop("std"))
    assert found.startswith("stats: action: std is missing in meta/stats.json.")
    (found,) = damaged(lambda s: s.pop("observation.state"))
    assert found.startswith("stats: observation.state: mean is missing; std is missing")
    (found,) = damaged(lambda s: s["action"].update(mean=[math.nan, 0.0]))
    assert "action: mean expected finite numbers, found [nan, 0.0]" in found
    (found,) = damaged(lambda s: s["action"].update(max=[0.5, s["action"]["max"][1]]))
    assert "stats: action: max of element 0 is 0.5 in meta/stats.json, 0.0" in found and "of other data" in found
    file.unlink()
    assert [str(d).partition(". ")[0] for d in inspect(DatasetInfo.open(dataset))] == [
        "stats: meta/stats.json is missing"
    ]
    file.write_text(json.dumps(stats))
    table_file = next((dataset / "meta" / "episodes").glob("*/*.parquet"))
    table = pq.read_table(table_file)
    name = "stats/action/mean"
    values = table[name].to_pylist()
    values[1] = None
    column = pa.array(values, type=table.schema.field(name).type)
    pq.write_table(table.set_column(table.column_names.index(name), name, column), table_file)
    (found,) = map(str, inspect(DatasetInfo.open(dataset)))
    assert found.startswith("stats, episode 1: action: are missing in meta/episodes.")
    pq.write_table(table.drop_columns([name]), table_file)
    (found,) = map(str, inspect(DatasetInfo.open(dataset)))
    assert found.startswith("stats: ") and "'stats/action/mean'" in found and "meta/episodes/" in found


def test_pictures(tmp_path: Path) -> None:
    path, rng = tmp_path / "seen", np.random.default_rng(0)
    observation = {"observation.images.top": Feature((3, 16, 24), "uint8")}
    with DatasetWriter(path, observation=observation, action=ACTION, dt=0.1, tasks=("push",)) as writer:
        for i in range(2):
            content = {**episode(0, 5), "task": "push", "action": rng.uniform(-0.1, 0.1, (5, 2))}
            content["obs"] = {"observation.images.top": rng.integers(0, 255, (5, 3, 16, 24), dtype=np.uint8)}
            writer.add_episode(**{**content, "seed": i})
    assert said(path) == []
    (video,) = path.glob("videos/**/*.mp4")
    info = path / "meta" / "info.json"
    shutil.copy(info, tmp_path / "info.json")
    table = next((path / "data").glob("*/*.parquet"))
    rows = pq.read_table(table)
    stamps = rows["timestamp"].to_pylist()
    stamps[8:] = [0.3 + 5, 0.4 + 5]  # beyond the end of the film
    column = pa.array(stamps, type=rows.schema.field("timestamp").type)
    pq.write_table(rows.set_column(rows.column_names.index("timestamp"), "timestamp", column), table)
    (found,) = [d for d in said(path) if d.startswith("observation.images.top")]
    assert found.startswith("observation.images.top, episode 1, frame 3: file-000.mp4 has no picture for 2 of its 5")
    video.unlink()
    assert [d.partition(":")[0] for d in said(path) if "cannot be read" in d] == [
        "observation.images.top, episode 0", "observation.images.top, episode 1",
    ]  # fmt: skip


def test_frames_are_missing_at_the_end(dataset: Path) -> None:
    info = dataset / "meta" / "info.json"
    info.write_text(json.dumps({**json.loads(info.read_text()), "total_frames": 20}))
    (found,) = said(dataset)
    assert found.startswith("dataset: data/ holds 16 frames, meta/info.json says 20.")

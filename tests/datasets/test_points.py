"""Point clouds in LeRobot datasets: written, read by LeRobot and by us, imported, checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from robopolicy.core.errors import DataError
from robopolicy.core.types import POINTS, STATE, Feature
from robopolicy.datasets.action_facts import ActionFacts
from robopolicy.datasets.importing import data_import
from robopolicy.datasets.inspect import data_check
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.datasets.lerobot_writer import DatasetWriter
from tests.datasets.conftest import ACTION, episode

KEY, SHAPE, LENGTHS = POINTS + "front", (32, 3), (5, 4)
CLOUD = Feature(SHAPE, names=("base_x", "base_y", "base_z"))
OBSERVATION = {STATE: Feature((3,), names=("x", "y", "z")), KEY: CLOUD}


def clouds(index: int) -> np.ndarray:
    return np.random.default_rng(index).normal(size=(LENGTHS[index], *SHAPE)).astype(np.float32)


def write(path: Path, make=clouds, *, key: str = KEY) -> Path:
    observation = {STATE: OBSERVATION[STATE], key: CLOUD}
    with DatasetWriter(path, observation=observation, action=ACTION, dt=0.1, tasks=("pull", "push")) as writer:
        for index, length in enumerate(LENGTHS):
            said = episode(index, length)
            said["obs"] = {STATE: said["obs"][STATE], key: make(index)}
            writer.add_episode(**said)
    return path


def test_lerobot_and_we_read_the_same_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    path = write(tmp_path / "d")
    ours, theirs = load_episodes(path), LeRobotDataset("local/d", root=path)
    want = torch.from_numpy(np.concatenate([clouds(0), clouds(1)]))
    assert ours.observation[KEY] == CLOUD
    assert torch.equal(ours.obs[KEY], want)
    assert theirs[6][KEY].dtype == torch.float32 and torch.equal(theirs[6][KEY], want[6])
    data_check(dataset=path)
    assert "no defects" in capsys.readouterr().out


def test_clouds_survive_an_import_under_another_name(tmp_path: Path) -> None:
    path = write(tmp_path / "d", key="observation.lidar")
    (path / "meta" / "robopolicy.json").unlink()
    facts = ActionFacts(
        frame="world", tcp="point", rotation="none", reference="measured", gripper=None, gripper_meaning="",
        units=("m", "m"),
    )  # fmt: skip
    out = data_import(dataset=path, out=tmp_path / "copy", action=facts, rename={"observation.lidar": KEY})
    read = load_episodes(out)
    assert read.observation[KEY] == Feature(SHAPE) and torch.equal(read.obs[KEY][:5], torch.from_numpy(clouds(0)))


def test_bad_clouds_are_refused_when_they_are_written(tmp_path: Path) -> None:
    def broken(index: int) -> np.ndarray:
        found = clouds(index)
        found[2, 7, 1] = np.nan
        return found

    with pytest.raises(DataError, match=f"frame 2: '{KEY}' holds NaN"):
        write(tmp_path / "a", broken)
    with pytest.raises(DataError, match=rf"'{KEY}' must have shape \(5, 32, 3\), found \(5, 31, 3\)"):
        write(tmp_path / "b", lambda index: clouds(index)[:, :31])


def test_empty_clouds_are_named_when_they_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "d", lambda index: clouds(index) * index)
    with pytest.raises(DataError, match=f"{KEY}, episode 0, frame 0: is empty"):
        load_episodes(path)
    with pytest.raises(DataError, match=f"{KEY}, episode 0, frame 0: is empty"):
        data_check(dataset=path)


def test_clouds_of_another_frame_are_refused_by_name(tmp_path: Path) -> None:
    wanted = {KEY: Feature(SHAPE, names=("tool_x", "tool_y", "tool_z"))}
    with pytest.raises(DataError, match=f"'{KEY}': element names differ.*tool_x≠base_x"):
        load_episodes(write(tmp_path / "d"), needed=wanted)

"""Checks of single frames."""

from __future__ import annotations

import numpy as np
import pytest

from robopolicy.datasets.frame_checks import check_clouds, check_rate, check_saturation, ranges
from robopolicy.datasets.spans import FilmBlock


def test_ranges() -> None:
    assert ranges(np.array([3])) == "frame 3" and ranges(np.array([1, 2, 3, 7])) == "frames 1–3, 7"
    assert ranges(np.arange(0, 20, 2)) == "frames 0, 2, 4, 6, 8, 10 …"


def test_timestamps_by_hand() -> None:
    second = FilmBlock(1, 3, 5)
    assert [*check_rate(second, np.array([0.0, 0.5, 1.0, 0.0, 0.5]), 2.0)] == []
    for stamp in (1.0, np.nan):
        (defect,) = check_rate(second, np.array([0.0, 0.5, 1.0, 0.0, stamp]), 2.0)
        assert (defect.key, defect.episode, defect.frame) == ("timestamp", 1, 1)


@pytest.mark.parametrize(("fps", "recorded"), [(100.0, 110.0), (500.0, 1000.0), (30.0, 31.0)])
def test_a_rate_is_compared_by_its_share(fps: float, recorded: float) -> None:
    """10% more is 0.9 ms of a frame at 100 Hz."""
    whole = FilmBlock(0, 0, 50)
    (defect,) = check_rate(whole, np.arange(50) / recorded, fps)
    assert f"was recorded at {recorded:.3g} Hz, the dataset says {fps:g}" in defect.problem
    assert [*check_rate(whole, np.arange(50) / (1.002 * fps), fps)] == []
    assert [*check_rate(whole, np.round(np.arange(50) / fps, 3), fps)] == [], "stamps of whole ms"


@pytest.mark.parametrize(("length", "found"), [(1, 0), (2, 1)])
def test_an_episode_of_one_frame_is_not_saturated(length: int, found: int) -> None:
    action = np.array([[1.0], [1.0], [0.0], [0.5]])
    assert len(list(check_saturation(FilmBlock(0, 0, length), action, None, 0.5))) == found


def test_a_cloud_is_empty_where_no_frame_of_an_episode_has_two_places() -> None:
    clouds = np.zeros((5, 6), dtype=np.float32)
    clouds[3] = np.arange(6)
    other = {"observation.points.front": clouds, "observation.points.dot": clouds[:, :3], "observation.state": clouds}
    first, second = FilmBlock(0, 0, 3), FilmBlock(1, 3, 5)
    (defect,) = check_clouds(first, other)
    assert (defect.key, defect.episode) == ("observation.points.front", 0)
    assert [*check_clouds(second, other)] == []  # sight was lost for a while

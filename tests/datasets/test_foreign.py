"""Datasets and HDF5 files of strangers, one thing changed: right values or a named refusal, and `data check` finds it.

A part of scripts/foreign_data.py, whose cases say what is right.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

h5py = pytest.importorskip("h5py")

from robopolicy.datasets.checks import limit_slack, outside_limits  # noqa: E402
from robopolicy.datasets.files import visible  # noqa: E402
from robopolicy.datasets.frame_checks import check_rate  # noqa: E402
from robopolicy.datasets.hdf5.contents import BrokenError, leaves  # noqa: E402
from robopolicy.datasets.info_models import Column  # noqa: E402
from robopolicy.datasets.spans import EpisodeSpans, FilmBlock, Span, blocks_of, check_blocks, check_spans  # noqa: E402
from scripts import foreign_datasets, foreign_hdf5  # noqa: E402
from scripts.foreign_data import Case, Templates, problems  # noqa: E402

CASES = {case.name: case for module in (foreign_datasets, foreign_hdf5) for case in module.cases()}
CHOSEN = [
    "fps 0", "fps null", "total_frames text", "more episodes than there are", "a feature null", "no dtype",
    "dtype unknown", "shape 80-dimensional", "names of a picture, two", "names of a picture, a dict",
    "a picture of other size", "video_path of v2.1", "video_path leading out", "video_path absolute",
    "video_path with attributes", "info.json a list", "info.json nested", "info.json a pipe", "low NaN",
    "gripper beyond the channels", "dt of another rate", "beyond the one limit that is finite", "rename onto another",
    "statistics nulls", "statistics objects", "statistics others'", "stats.json a list", "task null",
    "a task_index of tasks twice", "timestamp 0 NaN", "timestamps of film NaN", "timestamps of an episode begin late",
    "episode_index null", "frame_index float", "an episode twice, on film", "episodes swapped", "merged by copying",
    "merged by copying, on film", "actions are text", "files of other types", "an AppleDouble in data", "no rows",
    "empty, as it says", "next.success text", "episode_index of meta twice (film)",
    "episode_index of meta null (state)", "no row of an episode", "length wrong", "rows of another episode",
    "from_timestamp null", "from_timestamp NaN", "from_timestamp a frame early", "to_timestamp late", "spans swapped",
    "spans of another episode", "all spans a frame late", "all spans a frame early", "a span shifted",
    "videos/observation.images.top/chunk_index float", "videos/observation.images.top/file_index negative",
    "film is a pipe", "film of fewer pictures", "robomimic: control_freq 0",
    "robomimic: input_min and input_max are lists", "robomimic: input_min a short list",
    "robomimic: input_min above input_max", "robomimic: actions in another file", "robomimic: groups in a ring",
    "robomimic: actions of no machine's memory", "robomimic: actions text", "robomimic: env_args a list",
    "robomimic: num_samples wrong", "minari: success NaN", "minari: success fractions", "minari: infos no JSON",
    "minari: infos success 'False'", "minari: infos success in some", "minari: success of another length",
    "minari: terminations NaN", "minari: low above high", "minari: metadata total_episodes wrong",
    "maniskill: fewer listed than there are", "maniskill: success listed as 'False'", "maniskill: an episode twice",
    "maniskill: control_freq 0", "maniskill: terminated NaN", "maniskill: an AppleDouble",
]  # fmt: skip


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Templates:
    return Templates(tmp_path_factory.mktemp("foreign"))


@pytest.mark.parametrize("case", [CASES[name] for name in CHOSEN], ids=lambda c: c.name)
def test_one_thing_changed(case: Case, templates: Templates, tmp_path: Path) -> None:
    assert list(problems(case, templates, tmp_path)) == []


def test_all_cases_have_names_of_their_own() -> None:
    assert len(CASES) == sum(1 for module in (foreign_datasets, foreign_hdf5) for _ in module.cases())


def test_all_defects_are_named_at_once(
    templates: Templates, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the metadata, of rows and of films; one that is unusable hides none of the others."""
    import shutil

    from robopolicy.cli.main import main

    path = tmp_path / "it"
    shutil.copytree(templates.get("film")[0], path)
    names = ["fps null", "codebase_version null", "task null", "statistics nulls", "action NaN",
             "from_timestamp null"]  # fmt: skip
    for name in names:
        CASES[name].change(path)
    assert main(["data", "check", f"dataset={path}"]) == 1
    said = capsys.readouterr().err
    for key in ("fps", "codebase_version", "task", "stats: action", "action, episode 0, frame 3", "from_timestamp"):
        assert key in said, key


def test_slack_of_limits_with_an_infinite_end() -> None:
    inf = np.inf
    assert limit_slack([-1.0, -inf, 0.0, -inf], [3.0, 2.0, inf, inf]).tolist() == [4e-3, 2e-3, 0.0, 0.0]
    values = np.array([[3.003, 2.001, -0.1, 1e9], [3.005, 2.1, 0.0, np.nan]])
    outside = outside_limits(values, [-1.0, -inf, 0.0, -inf], [3.0, 2.0, inf, inf])
    assert outside.tolist() == [[False, False, True, False], [True, True, False, False]]


def test_timestamps_of_an_episode_of_one_frame() -> None:
    (defect,) = check_rate(FilmBlock(1, 1, 2), np.array([0.0, np.nan]), 10.0)
    assert (defect.key, defect.episode, defect.frame) == ("timestamp", 1, 0)


def test_hidden_files_are_left_out() -> None:
    names = ["b.parquet", "._a.parquet", "a.parquet"]
    assert [p.name for p in visible(map(Path, names))] == ["a.parquet", "b.parquet"]


@pytest.mark.parametrize(
    ("shape", "names", "size"),
    [
        ((16, 24, 3), None, (16, 24)), ((3, 16, 24), None, (16, 24)), ((16, 24, 1), None, (16, 24)),
        ((5, 16, 24), ["channels", "height", "width"], (16, 24)),
        ((16, 24, 5), {"axes": ["height", "width", "channel"]}, (16, 24)),
        ((16, 24, 5), None, None), ((16, 24), None, None), ((16, 24, 3), ["height", "width"], None),
    ],
)  # fmt: skip
def test_size_of_pictures(shape, names, size) -> None:
    column = Column(dtype="video", shape=shape, names=names)
    if size is None:
        with pytest.raises(ValueError, match=r"shape|names"):
            column.picture_size()
    else:
        assert column.picture_size() == size


def _table(*index: int) -> EpisodeSpans:
    return EpisodeSpans(np.array(index), None, None, {})


def test_numbers_of_episodes_by_hand() -> None:
    blocks = blocks_of(np.array([0, 0, 1, 1, 1, 2]))
    assert check_blocks(blocks, _table(0, 1, 2)).of(None) == []
    again = blocks_of(np.array([0, 0, 1, 1, 0]))
    assert [(d.key, d.episode) for d in check_blocks(again, _table(0, 1)).of(None)] == [("episode_index", 0)]
    assert check_blocks(again, _table(0, 1)).of([1]) == [], "the other one is sound"
    twice = check_blocks(blocks, _table(0, 1, 1, 2)).of(None)
    assert [(d.key, d.episode) for d in twice] == [("episode_index", 1)]
    assert [d.episode for d in check_blocks(blocks, _table(0, 2, 1)).of(None)] == [1], "out of order"
    assert [d.episode for d in check_blocks(blocks, _table(0, 1, 2, 3)).of(None)] == [3], "no frames"


def test_spans_of_film_by_hand() -> None:
    """Five frames each at 10 Hz, in one film."""
    blocks, stamps = blocks_of(np.repeat([0, 1], 5)), np.tile(np.arange(5) / 10, 2)

    def found(first: Span, second: Span, stamps: np.ndarray = stamps) -> list[tuple[str, int | None]]:
        table = EpisodeSpans(np.array([0, 1]), None, None, {"top": [first, second]})
        return [(d.key.rpartition("/")[2], d.episode) for d in check_spans("top", table, blocks, stamps, 10).of(None)]

    one, two = Span(0, 0, 0.0, 0.5), Span(0, 0, 0.5, 1.0)
    assert found(one, two) == [] and found(one, Span(0, 1, 0.0, 0.5)) == []
    assert found(one, Span(0, 0, 0.5, 1.3)) == found(one, Span(0, 0, 0.6, 1.0)) == [("to_timestamp", 1)]
    assert found(one, Span(0, 0, 0.4, 0.9)) == [("from_timestamp", 1)]
    assert found(Span(0, 1, 0.0, 0.5), Span(0, 0, 0.0, 0.5)) == [("from_timestamp", 1)], "out of order"
    assert found(one, Span(0, -1, 0.0, 0.5))[0] == ("file_index", 1)
    late = stamps.copy()
    late[5] = 0.2
    assert found(one, two, late) == [("timestamp", 1)]
    late[5] = np.nan
    assert found(one, two, late) == [("timestamp", 1)]


def test_groups_in_a_ring_are_not_followed_to_the_end(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a/b"] = np.zeros(3)
        file["a/again"] = file["a"]
        with pytest.raises(BrokenError, match="again") as found:
            leaves(file["a"])
    assert found.value.defect.key.count("again") < 20

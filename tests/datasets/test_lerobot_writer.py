"""Recording is atomic, and what cannot be stored is refused before anything is written."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from robopolicy.core.errors import DataError
from robopolicy.core.types import Feature
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.datasets.lerobot_writer import DatasetWriter
from robopolicy.datasets.metadata import RecordingMeta
from tests.datasets.conftest import ACTION, OBSERVATION, episode


def writer(path: Path, **kw) -> DatasetWriter:
    tasks = ("pull", "push")
    return DatasetWriter(path, **{"observation": OBSERVATION, "action": ACTION, "dt": 0.1, "tasks": tasks, **kw})


def test_nothing_is_visible_before_the_end(tmp_path: Path) -> None:
    with writer(tmp_path / "a") as w:
        w.add_episode(**episode(0, 5))
        assert not (tmp_path / "a").exists()
    assert RecordingMeta.load(tmp_path / "a").complete
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_keeps_finished_episodes(tmp_path: Path, number: int) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell begin with it ignored
    for other in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_DFL)

    def record() -> None:
        with writer(tmp_path / "a") as w:
            w.add_episode(**episode(0, 5))
            save = w._dataset.save_episode

            def interrupted() -> None:
                os.kill(os.getpid(), number)  # in the middle of a save: held back until it is done
                save()

            w._dataset.save_episode = interrupted
            w.add_episode(**episode(1, 9))
            raise AssertionError("not reached")

    with pytest.raises(KeyboardInterrupt):
        record()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert load_episodes(tmp_path / "a").lengths.tolist() == [5, 9]
    assert not RecordingMeta.load(tmp_path / "a").complete
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]


def test_an_error_in_the_block_keeps_finished_episodes(tmp_path: Path) -> None:
    def record() -> None:
        with writer(tmp_path / "a") as w:
            w.add_episode(**episode(0, 5))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        record()
    assert load_episodes(tmp_path / "a").num_episodes == 1


def test_no_episode_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no episode was recorded"), writer(tmp_path / "a"):
        pass
    with pytest.raises(ZeroDivisionError), writer(tmp_path / "a"):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_a_message_and_what_there_is(tmp_path: Path) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    def record() -> None:
        with writer(tmp_path / "a") as w:
            w.add_episode(**episode(0, 5))
            w._dataset.save_episode = full
            w.add_episode(**episode(1, 9))

    with pytest.raises(DataError, match=r"episode 1 failed \(OSError.*No space.*The 1 episodes before it are in"):
        record()
    assert not (tmp_path / "a").exists()


def test_a_recording_ends_while_the_disk_has_room_to_finish_it(tmp_path: Path, monkeypatch) -> None:
    def record() -> None:
        with writer(tmp_path / "a") as w:
            w.add_episode(**episode(0, 5))
            monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**20))
            w.add_episode(**episode(1, 9))

    with pytest.raises(DataError, match=r"disk is full: 1 MiB are free, episode 1 may take 16\. .* are kept"):
        record()
    assert load_episodes(tmp_path / "a").lengths.tolist() == [5]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]


def test_existing_datasets_are_replaced_only_on_demand_and_only_when_complete(tmp_path: Path) -> None:
    with writer(tmp_path / "a") as w:
        w.add_episode(**episode(0, 5))
    with pytest.raises(DataError, match=r"exists already.*overwrite=true"):
        writer(tmp_path / "a")
    with writer(tmp_path / "a", overwrite=True) as w:
        w.add_episode(**episode(1, 9))
        assert load_episodes(tmp_path / "a").lengths.tolist() == [5]
    assert load_episodes(tmp_path / "a").lengths.tolist() == [9]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]

    for name in ("thesis", "run"):
        (tmp_path / name / "meta").mkdir(parents=True)
    (tmp_path / "thesis" / "thesis.tex").touch()
    for file in ("config.yaml", "meta/info.json"):
        (tmp_path / "run" / file).touch()
    for name in ("thesis", "run"):
        with pytest.raises(DataError, match=r"exists already and is no dataset\. Choose another path"):
            writer(tmp_path / name, overwrite=True)
        shutil.rmtree(tmp_path / name)
    create = DatasetWriter._create
    DatasetWriter._create = lambda *_: signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        writer(tmp_path / "b")
    DatasetWriter._create = create
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"], "an interrupt before the first episode leaves nothing"
    (tmp_path / "empty").mkdir()
    with writer(tmp_path / "empty") as w:
        w.add_episode(**episode(1, 3))
    assert load_episodes(tmp_path / "empty").lengths.tolist() == [3]

    def interrupted() -> None:
        with writer(tmp_path / "a", overwrite=True) as w:
            w.add_episode(**episode(2, 2))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert load_episodes(tmp_path / "a").lengths.tolist() == [9], "as it was"
    assert load_episodes(next(tmp_path.glob("a.kept-*"))).lengths.tolist() == [2], "nothing is lost"


def test_of_two_recordings_into_one_folder_both_are_kept(tmp_path: Path) -> None:
    late = writer(tmp_path / "a")
    late.add_episode(**episode(0, 5))
    with writer(tmp_path / "a") as early:
        early.add_episode(**episode(1, 9))
    with pytest.raises(DataError, match=r"exists already.* The episodes of this recording are in .*a\.kept-"):
        late.close(complete=True)
    assert load_episodes(tmp_path / "a").lengths.tolist() == [9]
    assert load_episodes(next(tmp_path.glob("a.kept-*"))).lengths.tolist() == [5]


def test_a_recording_clears_what_killed_ones_left(tmp_path: Path) -> None:
    with writer(tmp_path / "a") as w:
        w.add_episode(**episode(0, 5))
    killed = tmp_path / ".a.recording-x"  # between the two renames of a dataset that is replaced
    killed.mkdir()
    (killed / "replaced").mkdir()
    (tmp_path / "a").rename(killed / "a")
    (tmp_path / ".a.recording-y" / "a").mkdir(parents=True)
    with pytest.raises(DataError, match=r"killed while it put it there\. Move it back: mv .*\.recording-x/a "):
        load_episodes(tmp_path / "a")
    with pytest.raises(DataError, match="exists already"):
        writer(tmp_path / "a")
    assert load_episodes(tmp_path / "a").lengths.tolist() == [5]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]


def test_what_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^dt: .*0\.03"):
        writer(tmp_path / "a", dt=0.03)
    with pytest.raises(DataError, match=r"images must be uint8 \(3, h, w\)"):
        writer(tmp_path / "a", observation={"observation.images.top": Feature((8, 8, 3), "uint8")})
    good, w = episode(0, 5), writer(tmp_path / "a")
    nan = good["obs"]["observation.state"].copy()
    nan[3, 0] = np.nan
    for change, message in [
        ({"obs": {"observation.state": nan}}, "'observation.force' is missing. Did you mean"),
        ({"obs": {**good["obs"], "observation.state": nan}}, "episode 0, frame 3: 'observation.state' holds NaN"),
        ({"obs": {**good["obs"], "observation.stat": nan}}, "'observation.stat' is not a feature.*observation.state"),
        ({"obs": {**good["obs"], "observation.state": nan[:4]}}, r"must have shape \(5, 3\), found \(4, 3\)"),
        ({"action": good["action"][:, :1]}, r"'action' must have shape \(5, 2\), found \(5, 1\)"),
        ({"action": good["action"][:0]}, "has no frames"),
        ({"task": "pish"}, r"no instruction 'pish'. Did you mean 'push'\?"),
    ]:
        with pytest.raises(DataError, match=message):
            w.add_episode(**{**good, **change})
    w.add_episode(**good)  # refusals leave the writer usable
    w.close(complete=True)
    assert load_episodes(tmp_path / "a").num_episodes == 1


@pytest.mark.parametrize("dt", [0.0, float("nan"), float("inf"), -0.1, 0.03])
def test_frames_a_second_are_whole(tmp_path: Path, dt: float) -> None:
    with pytest.raises(DataError, match="dt: "):
        DatasetWriter(tmp_path / "x", observation=OBSERVATION, action=ACTION, dt=dt, tasks=("push",))

"""Round trips: what is recorded is what is loaded, by us and by stock LeRobot."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from robopolicy.core.errors import DataError
from robopolicy.core.types import ENV_STATE, STATE, Feature
from robopolicy.datasets.lerobot_reader import annotate_dataset, dataset_features, load_episodes
from robopolicy.datasets.lerobot_writer import DatasetWriter
from robopolicy.datasets.metadata import RecordingMeta
from robopolicy.datasets.source import DatasetInfo
from robopolicy.datasets.video import read_video
from tests.datasets.conftest import ACTION, LENGTHS, OBSERVATION, episode


def test_round_trip_is_exact(recorded: Path) -> None:
    loaded = load_episodes(recorded)
    for i, length in enumerate(LENGTHS):
        rows = slice(int(loaded.starts[i]), int(loaded.starts[i + 1]))
        expected = episode(i, length)
        for key, value in expected["obs"].items():
            np.testing.assert_array_equal(loaded.obs[key][rows], value)
        np.testing.assert_array_equal(loaded.action[rows], expected["action"])
        np.testing.assert_array_equal(loaded.reward[rows], expected["reward"])
        np.testing.assert_array_equal(loaded.success[rows], expected["success"])
        assert loaded.terminated[rows].tolist() == [False] * (length - 1) + [expected["terminated"]]
        assert [loaded.tasks[k] for k in loaded.obs["task_index"][rows]] == [expected["task"]] * length
    assert loaded.seeds.tolist() == [2**41, 2**41 + 1, 2**41 + 2]
    assert loaded.tasks == ("pull", "unused", "push"), "the env's order, not that of appearance"
    assert loaded.observation == OBSERVATION
    assert (loaded.action_spec, loaded.dt, loaded.outcomes) == (ACTION, 0.1, True)
    assert not list(recorded.parent.glob(".*")), "no temporary directory is left"


def test_a_selection_of_episodes_and_features(recorded: Path) -> None:
    needed = {"observation.state": Feature((3,))}
    loaded = load_episodes(recorded, needed=needed, episodes=[2, 0])
    assert list(loaded.obs) == ["observation.state"]
    assert loaded.lengths.tolist() == [LENGTHS[0], LENGTHS[2]]
    assert loaded.seeds.tolist() == [2**41, 2**41 + 2]
    np.testing.assert_array_equal(loaded.obs["observation.state"][-2:], episode(2, 2)["obs"]["observation.state"])
    with pytest.raises(DataError, match=r"episodes \[7\] asked for; it has 0 to 2"):
        load_episodes(recorded, episodes=[7])
    with pytest.raises(DataError, match="episodes none"):
        load_episodes(recorded, episodes=[])


def test_whole_numbers_and_flags_are_read_as_float32(tmp_path: Path) -> None:
    features = {"observation.count": Feature((2,), "int64"), "observation.level": Feature((3,), "uint8"),
                "observation.touch": Feature((1,), "bool")}  # fmt: skip
    obs = {k: np.arange(4 * f.shape[0]).reshape(4, *f.shape).astype(f.dtype) for k, f in features.items()}
    with DatasetWriter(tmp_path / "d", observation=features, action=ACTION, dt=0.1, tasks=("pull",)) as writer:
        writer.add_episode(**{**episode(0, 4), "obs": obs, "task": "pull"})
    loaded = load_episodes(tmp_path / "d", cameras=())
    assert loaded.observation.keys() == features.keys()
    for key, value in obs.items():
        assert loaded.obs[key].dtype == torch.float32 and loaded.observation[key].dtype == "float32"
        np.testing.assert_array_equal(loaded.obs[key], value)


def test_stock_lerobot_reads_and_batches_it(recorded: Path) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from lerobot.utils.feature_utils import dataset_to_policy_features

    stock = LeRobotDataset("local/demos", root=recorded)
    ours = load_episodes(recorded)
    assert (len(stock), stock.num_episodes, stock.fps) == (sum(LENGTHS), 3, 10)
    for t in (0, 4, 5, 13, 14, 15):
        frame = stock[t]
        for key in ("observation.state", "observation.force"):
            torch.testing.assert_close(frame[key], ours.obs[key][t], rtol=0, atol=0)
        torch.testing.assert_close(frame["action"], ours.action[t], rtol=0, atol=0)
        assert frame["task"] == ours.tasks[ours.obs["task_index"][t]]
    assert [bool(stock[t]["next.done"]) for t in (3, 4, 13, 15)] == [False, True, True, True]
    assert [bool(stock[t]["next.truncated"]) for t in (4, 13)] == [False, True]
    np.testing.assert_allclose(stock.meta.stats["action"]["mean"], ours.action.mean(0), atol=1e-6)

    # lerobot-train: features from the metadata, chunks by delta_timestamps, torch's DataLoader
    features = dataset_to_policy_features(stock.meta.features)
    copy = "observation.environment_state"  # for policies that refuse data with neither it nor pictures
    assert set(features) == {"observation.state", copy, "observation.force", "action"}
    windows = LeRobotDataset("local/demos", root=recorded, delta_timestamps={"action": [0.0, 0.1, 0.2]})
    batch = next(iter(torch.utils.data.DataLoader(windows, batch_size=4)))
    chunk, pad = ours.chunk(torch.arange(4), 3)
    torch.testing.assert_close(batch["action"], chunk)
    assert batch["action_is_pad"].tolist() == pad.tolist()


def test_lerobots_tools_keep_the_seeds(tmp_path: Path) -> None:
    from lerobot.datasets.dataset_tools import delete_episodes
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    path, state = tmp_path / "all", {"observation.state": Feature((3,))}  # its tools cannot handle matrices
    with DatasetWriter(path, observation=state, action=ACTION, dt=0.1, tasks=("push", "pull")) as writer:
        for i, length in enumerate(LENGTHS):
            one = episode(i, length)
            writer.add_episode(**{**one, "obs": {"observation.state": one["obs"]["observation.state"]}})
    delete_episodes(LeRobotDataset("local/x", root=path), [0], output_dir=tmp_path / "fewer", repo_id="local/y")
    loaded = load_episodes(tmp_path / "fewer", action_spec=ACTION)
    assert loaded.seeds.tolist() == [2**41 + 1, 2**41 + 2]


def test_video_round_trip(tmp_path: Path) -> None:
    size, lengths = (48, 64), (6, 4, 5)
    features = {"observation.images.front": Feature((3, *size), "uint8"), "observation.state": Feature(())}
    y, x = np.mgrid[: size[0], : size[1]]
    rng = np.random.default_rng(0)
    movies, path = [], tmp_path / "filmed"
    with DatasetWriter(path, observation=features, action=ACTION, dt=0.05, tasks=("look",)) as writer:
        for e, length in enumerate(lengths):
            shade = np.stack([np.stack([x * 3 + 9 * t, y * 4, 0 * x + 40 * e + 60]) for t in range(length)])
            movies.append(np.clip(shade, 0, 255).astype(np.uint8))
            obs = {"observation.images.front": movies[-1], "observation.state": rng.normal(size=length)}
            zeros = np.zeros(length)
            writer.add_episode(
                obs=obs, action=np.zeros((length, 2)), reward=zeros, success=zeros > 0, terminated=False, task="look",
                seed=e,
            )  # fmt: skip
            with pytest.raises(DataError, match="an episode of one frame makes no video"):  # and nothing is lost
                writer.add_episode(
                    obs={k: v[:1] for k, v in obs.items()}, action=np.zeros((1, 2)), reward=zeros[:1],
                    success=zeros[:1] > 0, terminated=False, task="look", seed=9,
                )  # fmt: skip
    loaded = load_episodes(path)
    pictures = loaded.obs["observation.images.front"]
    assert (pictures.shape, pictures.dtype) == ((sum(lengths), 3, *size), torch.uint8)
    error = np.abs(pictures.numpy().astype(int) - np.concatenate(movies).astype(int))
    assert error.mean() < 3, f"frames are lossy but in place; mean error {error.mean():.2f}"
    assert dataset_features(path)["observation.images.front"] == features["observation.images.front"]

    last = load_episodes(path, episodes=[2]).obs["observation.images.front"]
    assert torch.equal(last, pictures[-lengths[2] :])
    assert list(load_episodes(path, cameras=()).obs) == ["observation.state"]
    assert list(load_episodes(path, needed={}, cameras=("front",)).obs) == ["observation.images.front"]
    with pytest.raises(DataError, match=r"no camera 'fromt'. Did you mean 'front'\?"):
        load_episodes(path, cameras=("fromt",))

    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    stock = LeRobotDataset("local/filmed", root=path, return_uint8=True)
    for t in (0, 5, 6, 14):
        difference = stock[t]["observation.images.front"].int() - pictures[t].int()
        assert difference.abs().float().mean() < 1.5, "the same frame (decoders round colours differently)"

    video = next((path / "videos").glob("*/*/*.mp4"))
    video.write_bytes(video.read_bytes()[:-2000])
    with pytest.raises(DataError, match=r"mp4: (cannot be decoded|ends after)"):
        load_episodes(path)
    video.unlink()
    with pytest.raises(DataError, match=r"mp4: cannot be decoded .*missing or was cut off"):
        load_episodes(path)


def test_a_dataset_recorded_by_others(tmp_path: Path) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    features = {
        "observation.image": {"dtype": "image", "shape": (8, 10, 3), "names": ["height", "width", "channels"]},
        "observation.state": {"dtype": "float64", "shape": (2,), "names": {"motors": ["a", "b"]}},
        "action": {"dtype": "float64", "shape": (2,), "names": None},
    }
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, size=(2, 3, 8, 10, 3), dtype=np.uint8)
    theirs = LeRobotDataset.create("they/them", fps=5, features=features, root=tmp_path / "foreign", use_videos=False)
    for e in range(2):
        for t in range(3):
            theirs.add_frame({"observation.image": pictures[e, t], "observation.state": np.array([e, t], dtype=float),
                              "action": np.array([0.01 * t, 0.0]), "task": "fold"})  # fmt: skip
        theirs.save_episode()
    theirs.finalize()

    with pytest.raises(
        DataError, match=r"action_spec is missing.*robopolicy data import dataset=.*action names are None"
    ):
        load_episodes(tmp_path / "foreign")
    rename = {"observation.image": "observation.images.top"}
    loaded = load_episodes(tmp_path / "foreign", action_spec=ACTION, rename=rename)
    expected = pictures.reshape(6, 8, 10, 3).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(loaded.obs["observation.images.top"], expected)
    assert loaded.obs["observation.state"].dtype == torch.float32
    assert loaded.observation["observation.state"] == Feature((2,), "float32", ("a", "b"))
    assert (loaded.dt, loaded.tasks, loaded.seeds.tolist()) == (0.2, ("fold",), [0, 1])
    assert not loaded.outcomes
    assert not loaded.success.any()
    assert not loaded.terminated.any()

    good = load_episodes(tmp_path / "foreign", action_spec=ACTION, cameras=(), outcomes="success")
    assert good.outcomes
    assert good.reward.tolist() == [0, 0, 1] * 2
    assert torch.equal(good.success, good.terminated)
    annotate_dataset(tmp_path / "foreign", action_spec=ACTION, rename=rename, outcomes="success")
    annotate_dataset(tmp_path / "foreign", action_spec=ACTION, rename=rename, outcomes="success")  # may be replaced
    link = tmp_path / "foreign" / "meta" / "robopolicy.json"
    kept = link.read_text()
    link.unlink()
    link.symlink_to(tmp_path / "new")  # which leads nowhere, and a file would appear there
    with pytest.raises(DataError, match=r"robopolicy\.json"):
        annotate_dataset(tmp_path / "foreign", action_spec=ACTION, rename=rename)
    RecordingMeta(ACTION, 0.2, ("fold",), ()).save(tmp_path / "foreign")
    assert not (tmp_path / "new").exists() and not link.is_symlink()
    link.write_text(kept)
    again = load_episodes(tmp_path / "foreign", needed={"observation.images.top": Feature((3, 8, 10), "uint8")})
    assert torch.equal(again.obs["observation.images.top"], loaded.obs["observation.images.top"])
    assert (again.outcomes, again.reward.tolist(), again.dt) == (True, [0, 0, 1] * 2, 0.2)
    assert not load_episodes(tmp_path / "foreign", outcomes="recorded").outcomes, "arguments go before annotations"
    (tmp_path / "foreign" / "meta" / "robopolicy.json").unlink()

    with pytest.raises(DataError, match=r"rename names 'observation.imag'.*Did you mean 'observation.image'"):
        load_episodes(tmp_path / "foreign", action_spec=ACTION, rename={"observation.imag": "x"})
    needed = {"observation.images.top": Feature((3, 8, 10), "uint8")}
    with pytest.raises(DataError, match=r"needs 'observation.images.top'.*Did you mean 'observation.image'"):
        load_episodes(tmp_path / "foreign", action_spec=ACTION, needed=needed)


def test_an_environment_state_of_others_is_read(tmp_path: Path, recorded: Path) -> None:
    """Under the name that an annotation gives it; robopolicy's own copy of the state is read once."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    root = tmp_path / "foreign"
    vector = {"dtype": "float32", "shape": (2,), "names": None}
    theirs = LeRobotDataset.create("they/them", fps=5, features={STATE: vector, ENV_STATE: vector, "action": vector},
                                   root=root, use_videos=False)  # fmt: skip
    for t in range(3):
        zero = np.zeros(2, np.float32)
        theirs.add_frame({STATE: zero, ENV_STATE: zero + t, "action": zero, "task": "fold"})
    theirs.save_episode()
    theirs.finalize()
    for rename in (None, {ENV_STATE: "observation.objects"}, {ENV_STATE: "observation.world"}, None):
        annotate_dataset(root, action_spec=ACTION, rename=rename)
        name = (rename or {}).get(ENV_STATE, ENV_STATE)
        found = load_episodes(root).obs
        assert set(found) == {STATE, name, "task_index"} and found[name][:, 0].tolist() == [0, 1, 2]
    assert not DatasetInfo.open(root).repeats_state
    assert DatasetInfo.open(recorded).repeats_state and ENV_STATE not in load_episodes(recorded).obs
    again = load_episodes(recorded, rename={ENV_STATE: "observation.objects"}).obs
    assert torch.equal(again["observation.objects"], again[STATE])


def test_the_action_spec_is_verified(recorded: Path) -> None:
    other = replace(ACTION, reference="commanded")
    with pytest.raises(DataError, match=r"action\.reference: action_spec has 'commanded', the dataset has 'measured'"):
        load_episodes(recorded, action_spec=other)
    assert load_episodes(recorded, action_spec=ACTION).action_spec == ACTION
    with pytest.raises(DataError, match="was recorded by robopolicy and says already"):
        annotate_dataset(recorded, action_spec=other)


def test_meta_of_another_version(dataset: Path) -> None:
    file = dataset / "meta" / "robopolicy.json"
    data = json.loads(file.read_text())
    file.write_text(json.dumps({**data, "version": 99}))
    with pytest.raises(DataError, match="version 99; this robopolicy reads up to 1"):
        RecordingMeta.load(dataset)
    file.write_text(json.dumps({**data, "surprise": 1}))
    with pytest.raises(DataError, match="surprise"):
        RecordingMeta.load(dataset)
    file.write_text("{")
    with pytest.raises(DataError, match="damaged"):
        load_episodes(dataset)


@pytest.mark.parametrize(("matrix", "range_"), [("ITU709", "MPEG"), ("ITU709", "JPEG"), ("ITU601", "JPEG")])
def test_colours_are_read_by_the_tag_of_the_film(tmp_path: Path, matrix: str, range_: str) -> None:
    import av
    from av.video.reformatter import ColorRange, Colorspace

    colours = np.array([(200, 30, 30), (30, 200, 30), (30, 30, 200)], np.uint8)
    picture = np.repeat(np.repeat(colours[None], 48, axis=0), 32, axis=1)
    with av.open(str(tmp_path / "film.mp4"), "w") as film:
        stream = film.add_stream("libx264", rate=10, options={"crf": "5"})
        stream.width, stream.height, stream.pix_fmt = 96, 48, "yuv420p"
        stream.codec_context.colorspace = Colorspace[matrix]
        stream.codec_context.color_range = ColorRange[range_]
        for i in range(2):
            frame = av.VideoFrame.from_ndarray(picture, "rgb24")
            frame = frame.reformat(format="yuv420p", dst_colorspace=matrix, dst_color_range=range_)
            frame.pts = i
            film.mux(stream.encode(frame))
        film.mux(stream.encode())
    read = torch.zeros(2, 3, 48, 96, dtype=torch.uint8)
    read_video(tmp_path / "film.mp4", np.arange(2) / 10, np.arange(2), read, fps=10)
    found = read[1, :, 24, [16, 48, 80]].T.numpy().astype(int)
    assert np.abs(found - colours).max() <= 4, found

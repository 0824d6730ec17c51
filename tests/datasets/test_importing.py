"""`robopolicy data import`: datasets of LeRobot's own, from a folder, the hub's cache and format v2.1."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robopolicy.cli.main import main
from robopolicy.config.hydra_configs import hydra_config
from robopolicy.core.errors import ConfigError, DataError
from robopolicy.core.types import ActionSpec, Feature
from robopolicy.datasets.action_facts import ActionFacts
from robopolicy.datasets.foreign import HUB, fetch
from robopolicy.datasets.importing import command, data_import
from robopolicy.datasets.inspect import data_check
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.datasets.lerobot_writer import DatasetWriter

JOINTS = ("shoulder_pan.pos", "elbow_flex.pos", "gripper.pos")
LENGTHS = (12, 9)


def arrays(length: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """States [T 3], and absolute joint targets [T 3] that the next state reaches."""
    walk = np.cumsum(np.random.default_rng(seed).normal(size=(length + 1, 3)), axis=0).astype(np.float32)
    walk = 2.0 * walk / np.abs(walk).max(0)
    return walk[:-1], walk[1:]


def recorded(path: Path, *, names: tuple[str, ...] = JOINTS, action: Any = None, rename: Any = None) -> Path:
    """A dataset of LeRobot's without a word of ours."""
    spec = ActionSpec(
        names=names, units=("1",) * 3, low=(-9.0,) * 3, high=(9.0,) * 3, frame="joint", tcp="x", rotation="joint",
        reference="absolute", gripper=None, gripper_meaning="",
    )  # fmt: skip
    observation = {"observation.state": Feature((3,), names=names)}
    with DatasetWriter(path, observation=observation, action=spec, dt=0.1, tasks=("reach",)) as writer:
        for seed, length in enumerate(LENGTHS):
            state, target = arrays(length, seed)
            done = np.zeros(length, dtype=bool)
            writer.add_episode(
                obs={"observation.state": state}, action=target if action is None else action(length), reward=done,
                success=done, terminated=False, task="reach", seed=seed,
            )  # fmt: skip
    (path / "meta" / "robopolicy.json").unlink()
    return path


def old_format(path: Path) -> Path:
    """The same arrays in LeRobot's format v2.1."""
    columns = {"timestamp": "float32", "frame_index": "int64", "episode_index": "int64", "index": "int64",
               "task_index": "int64"}  # fmt: skip
    vectors = {k: {"dtype": "float32", "shape": [3], "names": list(JOINTS)} for k in ("observation.state", "action")}
    features = vectors | {k: {"dtype": v, "shape": [1], "names": None} for k, v in columns.items()}
    info = {
        "codebase_version": "v2.1", "robot_type": "arm", "total_episodes": 2, "total_frames": sum(LENGTHS),
        "total_tasks": 1, "total_videos": 0, "total_chunks": 1, "chunks_size": 1000, "fps": 10,
        "splits": {"train": "0:2"},
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet", "video_path": None,
        "features": features,
    }  # fmt: skip
    (path / "meta").mkdir(parents=True)
    (path / "data" / "chunk-000").mkdir(parents=True)
    (path / "meta" / "info.json").write_text(json.dumps(info))
    (path / "meta" / "tasks.jsonl").write_text(json.dumps({"task_index": 0, "task": "reach"}) + "\n")
    episodes, stats, first = [], [], 0
    for seed, length in enumerate(LENGTHS):
        state, action = arrays(length, seed)
        frame = np.arange(length)
        table = {"observation.state": list(state), "action": list(action), "timestamp": (frame / 10).astype(np.float32),
                 "frame_index": frame, "episode_index": np.full(length, seed), "index": first + frame,
                 "task_index": np.zeros(length, dtype=np.int64)}  # fmt: skip
        pd.DataFrame(table).to_parquet(path / "data" / "chunk-000" / f"episode_{seed:06d}.parquet")
        episodes.append({"episode_index": seed, "tasks": ["reach"], "length": length})
        values = {k: np.stack(v) if k in vectors else np.asarray(v)[:, None] for k, v in table.items()}
        stats.append({"episode_index": seed, "stats": {k: {
            "min": v.min(0).tolist(), "max": v.max(0).tolist(), "mean": v.mean(0).tolist(), "std": v.std(0).tolist(),
            "count": [length]} for k, v in values.items()}})  # fmt: skip
        first += length
    for name, rows in (("episodes", episodes), ("episodes_stats", stats)):
        (path / "meta" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """LeRobot's home with a dataset in the hub's cache, as a download leaves it; there is no network."""
    from huggingface_hub import constants
    from lerobot.utils import constants as lerobot

    home = tmp_path / "home"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(lerobot, "HF_LEROBOT_HOME", home)
    monkeypatch.setattr(lerobot, "HF_LEROBOT_HUB_CACHE", home / "hub")
    cache, commit = home / "hub" / "datasets--lab--arm", "c" * 40
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "v3.0").write_text(commit)
    (cache / "blobs").mkdir()
    source, snapshot = recorded(tmp_path / "uploaded"), cache / "snapshots" / commit
    for number, file in enumerate(sorted(p for p in source.rglob("*") if p.is_file())):
        blob, link = cache / "blobs" / f"{number:040d}", snapshot / file.relative_to(source)
        file.rename(blob)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    return cache


def test_joint_targets_are_inferred_and_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path / "arm")
    assert main(["train", "policy=gaussian", f"dataset={path}", f"run_dir={tmp_path / 'run'}", "tracker=quiet"]) == 1
    assert f"robopolicy data import dataset={path}" in capsys.readouterr().err
    assert main(["data", "import", f"dataset={path}", "action.units=[deg,deg,1]"]) == 0, "1 is a number for Hydra"
    assert load_episodes(path).action_spec.units == ("deg", "deg", "1")
    assert main(["data", "import", f"dataset={path}", "outcomes=success"]) == 0
    assert load_episodes(path).action_spec.units == ("deg", "deg", "1"), "what was said stays"
    (path / "meta" / "robopolicy.json").unlink()
    assert main(["data", "import", f"dataset={path}", "outcomes=success"]) == 0
    said = capsys.readouterr().out
    assert "inferred action.reference=absolute" in said and "action.units=[rad,rad,1]" in said
    assert f"robopolicy data import dataset={path} action.<fact>=…" in said and "before you train" in said
    episodes = load_episodes(path)
    spec = episodes.action_spec
    assert (spec.names, spec.frame, spec.rotation, spec.gripper) == (JOINTS, "joint", "joint", 2)
    assert spec.low == pytest.approx(episodes.action.min(0).values.tolist())
    assert episodes.success.sum() == 2 and episodes.dt == pytest.approx(0.1)
    written = json.loads((path / "meta" / "robopolicy.json").read_text())["provenance"]
    assert set(written["inferred"]) >= {"low", "units", "reference"}, "guesses can be told from statements"
    data_check(dataset=path)


def test_facts_of_the_command_line_win_over_the_file_and_that_over_the_data(tmp_path: Path) -> None:
    path = recorded(tmp_path / "arm")
    facts = tmp_path / "facts.yaml"
    facts.write_text("action: {units: [deg], low: [-180], tcp: flange}\noutcomes: success\n")
    data_import(dataset=path, facts=facts, action=ActionFacts(units=("rad",)))
    found = load_episodes(path)
    assert (found.action_spec.units, found.action_spec.low, found.action_spec.tcp) == (
        ("rad",) * 3, (-180.0,) * 3, "flange")  # fmt: skip
    assert found.success.any()
    facts.write_text("action: {unit: [deg]}\n")
    with pytest.raises(ConfigError, match="units"):
        data_import(dataset=path, facts=facts)


def test_earlier_answers_stay_until_their_own_key_is_given_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recorded(tmp_path / "arm", names=("a", "b", "c"))
    given = dict(units=("m",), frame="base", tcp="x", rotation="none", gripper="none", reference="absolute")
    rename = {"observation.state": "observation.joints"}
    data_import(dataset=path, action=ActionFacts(**given), outcomes="success", rename=rename)  # type: ignore[arg-type]
    data_import(dataset=path, action=ActionFacts(low=(-9.0,), high=(9.0,)))
    data_import(dataset=path, action=ActionFacts(tcp="flange"))
    said = capsys.readouterr().out
    assert (
        "kept action.units=[m,m,m]" in said and "outcomes=success" in said and "is read as observation.joints" in said
    )
    found = load_episodes(path)
    assert found.action_spec.units == ("m",) * 3 and found.action_spec.high == (9.0,) * 3
    assert (found.action_spec.tcp, found.action_spec.gripper) == ("flange", None) and bool(found.success.any())
    assert "observation.joints" in found.obs
    inferred = json.loads((path / "meta" / "robopolicy.json").read_text())["provenance"]["inferred"]
    assert set(inferred) == {"names", "gripper_meaning"}, "with another name the state shows no reference"
    with pytest.raises(ConfigError, match=r"action\.units"):
        data_import(dataset=path, out=tmp_path / "copy")  # a copy may hold a stranger's answers
    meta = json.loads((path / "meta" / "robopolicy.json").read_text())
    meta["provenance"]["inferred"] = 5
    (path / "meta" / "robopolicy.json").write_text(json.dumps(meta))
    with pytest.raises(DataError, match=r"provenance\.inferred: expected an object, found 5"):
        data_import(dataset=path)


def test_a_column_of_any_name_can_be_an_observation(tmp_path: Path) -> None:
    path = recorded(tmp_path / "arm")
    for file in [*path.rglob("*.parquet"), path / "meta" / "info.json"]:
        if file.suffix == ".json":
            file.write_text(file.read_text().replace('"observation.state"', '"state"'))
        elif "observation.state" in (table := pd.read_parquet(file)).columns:
            table.rename(columns={"observation.state": "state"}).to_parquet(file)
    units = ActionFacts(units=("rad",))
    with pytest.raises(ConfigError, match=r"action\.reference"):
        data_import(dataset=path, action=units)
    data_import(dataset=path, action=ActionFacts(units=("rad",), reference="absolute"))
    assert "observation.state" not in load_episodes(path).obs
    (path / "meta" / "robopolicy.json").unlink()
    data_import(dataset=path, action=units, rename={"state": "observation.state"})  # and it shows the reference
    found = load_episodes(path)
    np.testing.assert_array_equal(found.obs["observation.state"][: LENGTHS[0]].numpy(), arrays(LENGTHS[0], 0)[0])
    words = ["data", "import", f"dataset={path}", "rename={observation.environment_state: null}"]
    assert "observation.environment_state" in found.obs and main(words) == 0
    assert set(load_episodes(path).obs) == {"observation.state", "task_index"}, "what was named before stays"


@pytest.mark.parametrize(
    ("rename", "match"),
    [
        ({"action": "observation.action"}, "'action', which is no observation"),
        ({"timestamp": None}, "'timestamp', which is no observation"),
        ({"observation.state": "task_index"}, r"expected a name that begins with 'observation\.'"),
        ({"observation.state": "../x"}, r"expected a name that begins with 'observation\.'"),
    ],
)
def test_names_that_are_none_of_observations_are_refused(rename: Any, match: str, tmp_path: Path) -> None:
    path = recorded(tmp_path / "arm")
    with pytest.raises(DataError, match=match):
        data_import(dataset=path, action=ActionFacts(units=("rad",)), rename=rename)


@pytest.mark.parametrize("key", ["observation.state", "action"])
@pytest.mark.parametrize("value", [None, np.nan])  # the conversion makes nulls of NaN
def test_a_missing_number_of_format_2_1_is_named_by_its_episode_and_the_users_folder(
    key: str, value: float | None, tmp_path: Path
) -> None:
    path = old_format(tmp_path / "old")
    file = path / "data" / "chunk-000" / "episode_000001.parquet"
    table = pq.read_table(file)
    rows = table[key].to_pylist()
    rows[3][1] = value
    pq.write_table(table.set_column(table.column_names.index(key), key, pa.array(rows)), file)
    with pytest.raises(DataError, match=rf"^{path}: 1 defect\n.*{key}, episode 1, frame 3: .*delete_episodes"):
        data_import(dataset=path, out=tmp_path / "new")


@pytest.mark.parametrize("name", ["a=b", "a,b", "it's"])
def test_printed_commands_can_be_pasted(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path / name)
    data_import(dataset=path, action=ActionFacts(units=("rad",)))
    printed = re.findall(r"robopolicy (data import .*?) (?:outcomes|action)", capsys.readouterr().out)
    for words in (*map(shlex.split, printed), shlex.split(command(path, tmp_path / f"{name}2", []))[1:]):
        assert hydra_config("data_import", words[2:])["dataset"] == str(path)


def remade(path: Path, **columns: Any) -> Path:
    """The same dataset with columns of other values, functions of the old ones."""
    (file,) = path.glob("data/*/*.parquet")
    table = pq.read_table(file)
    for name, change in columns.items():
        key = name.replace("__", ".")
        old = np.stack(table[key].to_numpy()) if key == "observation.state" else table[key].to_numpy()
        new = pa.array(change(old).tolist(), table[key].type)
        table = table.set_column(table.column_names.index(key), key, new)
    pq.write_table(table, file)
    return path


def test_what_is_refused_is_not_annotated(tmp_path: Path) -> None:
    path = recorded(tmp_path / "arm")
    (file,) = path.glob("data/*/*.parquet")
    table = pq.read_table(file)
    index = table.column_names.index("next.success")
    pq.write_table(table.set_column(index, "next.success", pa.array([0.3] * table.num_rows)), file)
    info = json.loads((path / "meta" / "info.json").read_text())
    info["features"]["next.success"]["dtype"] = "float64"
    (path / "meta" / "info.json").write_text(json.dumps(info))
    facts = {"frame": "joint", "rotation": "joint", "tcp": "x", "reference": "absolute"}
    with pytest.raises(DataError, match="expected 0 or 1"):
        data_import(dataset=path, action=ActionFacts(units=("rad",) * 3, **facts))
    assert not (path / "meta" / "robopolicy.json").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "0 of 2 episodes succeeded, rewards from 0 to 0\n"),
        ({"next__reward": lambda x: x + 0.5}, "rewards from 0.5 to 0.5. For reinforcement learning the env's rewards"),
        ({"observation__state": lambda x: x * [1.0, 1e-3, 1.0]}, "observation.state: .* vary by less than 5% of the"),
    ],
)
def test_what_training_makes_of_the_data_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], said: str
) -> None:
    path = remade(recorded(tmp_path / "arm"), **change)
    facts = {"frame": "joint", "rotation": "joint", "tcp": "x", "reference": "absolute"}
    data_import(dataset=path, action=ActionFacts(units=("rad",) * 3, **facts))
    shown = capsys.readouterr().out
    assert re.search(said, shown), shown
    assert ("another unit" in shown) == ("observation__state" in change)


@pytest.mark.parametrize(
    ("names", "action", "asked"),
    [
        (("a", "b", "c"), None, {"units", "frame", "tcp", "rotation"}),  # absolute, of what?
        (("dx", "dy", "dz"), lambda n: np.full((n, 3), 0.01), {"units", "frame", "tcp", "reference"}),
        (("wrist_x", "wrist_y", "wrist_z"), None, {"units", "frame", "tcp", "rotation"}),  # its place, no joints
        (JOINTS, lambda n: 100.0 * np.random.default_rng(0).normal(size=(n, 3)), {"units", "reference"}),
    ],
)
def test_what_the_data_do_not_show_is_asked_for_at_once(
    tmp_path: Path, names: tuple[str, ...], action: Any, asked: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = recorded(tmp_path / "arm", names=names, action=action)
    with pytest.raises(ConfigError) as error:
        data_import(dataset=path)
    lines = str(error.value).splitlines()[1:]
    assert {line.strip().split("=")[0] for line in lines} == {f"action.{key}" for key in asked}
    assert not (path / "meta" / "robopolicy.json").exists()
    data_check(dataset=path)
    shown = capsys.readouterr().out
    assert all(f"action.{key}=…" in shown for key in asked), "the command that mends it"


def test_a_dataset_of_the_hub_is_taken_from_lerobots_cache_without_a_network(hub: Path, tmp_path: Path) -> None:
    name = Path(f"{HUB}lab/arm")
    with pytest.raises(ConfigError, match="out=data/arm"):
        data_import(dataset=name)
    out = data_import(dataset=name, out=tmp_path / "data" / "arm")
    assert load_episodes(out).num_frames == sum(LENGTHS)
    assert not any(p.is_symlink() for p in out.rglob("*"))
    assert not list(hub.rglob("robopolicy.json")), "the cache is as it was"
    with pytest.raises(DataError, match="exists"):
        data_import(dataset=name, out=out)
    with pytest.raises(DataError, match="lab/missing"):
        fetch(f"{HUB}lab/missing")
    with pytest.raises(DataError, match=r"\.\./x"):
        fetch(f"{HUB}../x")


def test_lerobots_own_folder_of_a_dataset_comes_first(hub: Path) -> None:
    own = recorded(hub.parents[1] / "me" / "mine")
    assert fetch(f"{HUB}me/mine") == own


def test_commands_say_how_to_fetch_a_dataset_of_the_hub(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "policy=gaussian", f"dataset={HUB}a/b", f"run_dir={tmp_path / 'run'}", "tracker=quiet"]
    assert main(arguments) == 1
    assert f"robopolicy data import dataset={HUB}a/b out=data/b" in capsys.readouterr().err


def test_format_2_1_is_converted_in_a_copy(tmp_path: Path) -> None:
    path = old_format(tmp_path / "old")
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    with pytest.raises(DataError, match=rf"robopolicy data import dataset={path} out="):
        load_episodes(path)
    out = data_import(dataset=path, out=tmp_path / "new")
    found = load_episodes(out)
    assert found.lengths.tolist() == list(LENGTHS) and found.tasks == ("reach",)
    np.testing.assert_array_equal(found.action[: LENGTHS[0]].numpy(), arrays(LENGTHS[0], 0)[1])
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new", "old"], "no folder of the conversion is left"
    data_check(dataset=out)


@pytest.mark.parametrize("version", ["v2.0", None])
def test_other_formats_are_refused_before_anything_is_copied(version: str | None, tmp_path: Path) -> None:
    path = old_format(tmp_path / "old")
    info = json.loads((path / "meta" / "info.json").read_text())
    (path / "meta" / "info.json").write_text(json.dumps({**info, "codebase_version": version}))
    for out in (None, tmp_path / "new"):
        with pytest.raises(DataError, match=rf"old: LeRobot format {version}, expected v3.x or v2.1"):
            data_import(dataset=path, out=out)
    if version:
        with pytest.raises(DataError, match=r"First to v2\.1"):
            load_episodes(path)


def test_a_damaged_old_dataset_is_named_by_its_own_folder(tmp_path: Path) -> None:
    path = old_format(tmp_path / "old")
    (path / "meta" / "episodes_stats.jsonl").unlink()
    with pytest.raises(DataError) as found:
        data_import(dataset=path, out=tmp_path / "new")
    assert f"{path}: LeRobot could not convert it" in str(found.value) and ".import-" not in str(found.value)


def test_hostile_old_datasets_are_refused(tmp_path: Path) -> None:
    path = old_format(tmp_path / "old")
    info = json.loads((path / "meta" / "info.json").read_text())
    info["features"]["observation.images.../../x"] = {"dtype": "video", "shape": [4, 4, 3], "names": None}
    (path / "meta" / "info.json").write_text(json.dumps(info))
    with pytest.raises(DataError, match="names without"):
        data_import(dataset=path, out=tmp_path / "new")
    (path / "data" / "link.parquet").symlink_to("/etc/hostname")
    with pytest.raises(DataError, match="link"):
        data_import(dataset=path, out=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_dataset_of_ours_is_refused(tmp_path: Path) -> None:
    path = recorded(tmp_path / "arm")
    data_import(dataset=path)
    meta = path / "meta" / "robopolicy.json"
    meta.write_text(meta.read_text().replace('"annotated": true', '"env": "reach"'))
    for options in ({}, {"out": tmp_path / "copy", "outcomes": "success"}):
        with pytest.raises(DataError, match="says already"):
            data_import(dataset=path, **options)
    assert not (tmp_path / "copy").exists()

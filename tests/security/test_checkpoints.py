"""Every reader of files that others wrote: what each refuses, by the key that is wrong."""

from __future__ import annotations

import io
import json
import sqlite3
import tracemalloc
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import pandas as pd
import pytest
import torch
import zstandard
from mcap.records import Chunk

from robopolicy.core.errors import CheckpointError, ConfigError, DataError, SpecError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import STATE
from robopolicy.evaluation.episode_table import COLUMNS, EpisodeTable
from robopolicy.evaluation.policy_ref import PolicyRef
from robopolicy.policies.find import find_policy, read_spec
from robopolicy.policies.lerobot import policy
from robopolicy.policies.lerobot.config import decode
from robopolicy.policies.lerobot.metadata import NOTE, read_metadata
from robopolicy.policies.lerobot.policy import STEPS, pipeline
from robopolicy.real.recording import mcap_files
from robopolicy.real.recording.recording import read
from robopolicy.real.recording.replay import rebuild, reproduce
from robopolicy.real.ros2.urdf import check_urdf
from robopolicy.real.ros2.wiring import load_wiring
from robopolicy.real.safety import SafetyError, load_profile
from robopolicy.real.safety.command_limiter import CommandLimiter
from robopolicy.real.safety.profile import Profile
from robopolicy.real.safety.profile_data import check_data
from robopolicy.real.safety.risk import RiskCritic
from robopolicy.real.safety.settings import settings_of
from robopolicy.reporting.html_report import write_report
from robopolicy.reporting.imagination import imagination
from robopolicy.reporting.run_reader import read_run
from robopolicy.runs.checkpointer import load_policy, save_policy
from robopolicy.runs.folder_lock import claimed
from robopolicy.runs.logger import Tracker
from robopolicy.runs.run_dir import open_run, read_config
from robopolicy.utils.storage import LEVELS, checkpoints_in, read_tensors, write_manifest, write_tensors
from robopolicy.world_models.models.world import read_spec as read_env_spec
from scripts import hostile_inputs

SPEC = asdict(hostile_inputs.SPEC)
NODE = hostile_inputs.NODES["diffusion"]


# --- specs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        (("observation", "observation.state", "shape"), [10**9], "shape"),
        (("observation", "observation.state", "shape"), [2**14, 2**15], "observation"),
        (("observation", "observation.state", "shape"), [1] * 80, "shape"),
        (("observation", "observation.state", "shape"), [True], "shape"),
        (("observation", "observation.state", "shape"), [3.0], "shape"),
        (("observation", "observation.state", "dtype"), "load", "dtype"),
        (("observation", "observation.state", "names"), "abc", "names"),
        (("observation", "../../x"), {"shape": [3], "dtype": "float32", "names": None}, "observation"),
        (("action", "gripper"), 2, "gripper"),
        (("action", "frame"), "moon", "frame"),
        (("action", "low"), [0.0, "x"], "low"),
        (("action", "low"), [float("nan"), 0.0], "low"),
        (("action", "names"), [], "names"),
        (("action", "more"), 1, "more"),
        (("dt",), 0.0, "dt"),
        (("dt",), float("inf"), "dt"),
        (("dt",), True, "dt"),
        (("horizon",), 10**9, "horizon"),
        (("n_obs_steps",), 10**9, "n_obs_steps"),
        (("tasks",), "toy", "tasks"),
        (("version",), True, "version"),
        (("version",), 10**30, "version"),
    ],
)  # fmt: skip
def test_a_spec_holds_what_it_can(path: tuple[str, ...], value: Any, key: str) -> None:
    data = json.loads(json.dumps(SPEC))
    inner = data
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    with pytest.raises(CheckpointError, match=rf"(?s)spec\.json.*{key}"):
        PolicySpec.from_json(json.dumps(data))


def test_an_env_spec_holds_what_it_can() -> None:
    data = {**SPEC, "id": "x", "digest": "d", "history": 0, "chunk": 0, "joint_access": False, "resumable": False}
    data = {k: v for k, v in data.items() if k not in ("n_obs_steps", "n_action_steps", "version")}
    assert read_env_spec(data).observation == hostile_inputs.SPEC.observation
    for key, value in (("horizon", 0), ("id", 3), ("more", 1), ("chunk", -1)):
        with pytest.raises(CheckpointError, match=key):
            read_env_spec({**data, key: value})


def test_infinite_limits_are_limits() -> None:
    data = {**SPEC, "action": {**SPEC["action"], "high": [float("inf"), 1.0]}}
    assert PolicySpec.from_json(json.dumps(data)).action.high[0] == float("inf")


# --- policies -------------------------------------------------------------------------------------------------------


def altered(folder: Path, file: str, **changes: Any) -> Path:
    path = folder / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    for part in (folder / "base", folder):
        if part.is_dir():
            write_manifest(part)
    return folder


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"node": []}, "node"), ({"base": "yes"}, "base"), ({"format": True}, "format"), ({"more": 1}, "more"),
        ({"node": {**NODE, "denoising_steps": 10**11}}, "node|policy"),
        ({"node": {**NODE, "network": {**hostile_inputs.UNET, "dims": [2**20]}}}, "policy"),
        ({"node": {**NODE, "network": {**hostile_inputs.UNET, "groups": 3}}}, r"policy\.network\.dims"),
    ],
)  # fmt: skip
def test_a_policy_that_cannot_be_built_is_refused(tmp_path: Path, changes: dict[str, Any], key: str) -> None:
    folder = altered(save_policy(hostile_inputs.policy("diffusion"), tmp_path / "p"), "policy.json", **changes)
    with pytest.raises(CheckpointError, match=key):
        load_policy(folder)


def test_what_is_larger_than_its_weights_is_not_built(tmp_path: Path) -> None:
    wide = {**hostile_inputs.NODES["gaussian"], "network": {**hostile_inputs.MLP, "width": 6000, "depth": 4}}
    folder = altered(save_policy(hostile_inputs.policy("gaussian"), tmp_path / "p"), "policy.json", node=wide)
    with pytest.raises(CheckpointError, match=r"policy\.json"):  # else it would be the weights that do not fit
        load_policy(folder)


def test_links_that_no_manifest_names_are_refused(tmp_path: Path) -> None:
    folder = save_policy(hostile_inputs.policy("gaussian"), tmp_path / "p")
    (folder / "spec.json").rename(tmp_path / "elsewhere.json")
    write_manifest(folder)
    (folder / "spec.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(CheckpointError, match=r"spec\.json"):
        load_policy(folder)


def test_bases_in_one_another_have_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_policy(hostile_inputs.policy("residual"), tmp_path / "p")
    monkeypatch.setattr("robopolicy.policies.io.verify", lambda folder: None)
    deepest = folder
    for _ in range(10):
        deepest = deepest / "base"
        deepest.mkdir(exist_ok=True)
        for name in ("policy.json", "spec.json", "model.safetensors"):
            (deepest / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(CheckpointError, match=f"{LEVELS} bases"):
        load_policy(folder)


@pytest.mark.parametrize("mark", ["../elsewhere", "/etc", "", "a/b", "..", "nul\0", "x" * 5000])
@pytest.mark.parametrize("name", ["latest", "best"])
def test_pointers_lead_to_checkpoints(tmp_path: Path, mark: str, name: str) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    save_policy(hostile_inputs.policy("gaussian"), tmp_path / "elsewhere")
    pointer = tmp_path / "run" / "checkpoints" / name
    pointer.write_text(mark)
    for path in (tmp_path / "run", pointer):
        with pytest.raises(CheckpointError, match=name):
            find_policy(path, which=name)  # type: ignore[arg-type]


def test_a_memory_counts_in_itself(tmp_path: Path) -> None:
    folder = save_policy(hostile_inputs.policy("ricl"), tmp_path / "p")
    whole = read_tensors(folder / "memory.safetensors")
    load_policy(folder)
    for name, value in (
        ("table", whole["table"] + 10**6), ("table", whole["table"] - 1), ("task", whole["task"] + 7),
        ("task", whole["task"][:-1]), ("chunk", whole["chunk"][:-1]), ("key", whole["key"] * torch.nan),
        ("key", whole["key"].double()), ("seed", whole["seed"].float()), ("table", whole["table"][:, :0]),
        ("seed", whole["seed"][:, None]),
    ):  # fmt: skip
        write_tensors({**whole, name: value}, folder / "memory.safetensors")
        write_manifest(folder)
        with pytest.raises(CheckpointError, match=name):
            load_policy(folder)
    write_tensors(whole, folder / "memory.safetensors")
    with pytest.raises(CheckpointError, match="tasks"):
        load_policy(altered(folder, "memory.json", tasks=[1]))


def test_lerobots_steps_are_those_that_were_read_through() -> None:
    pytest.importorskip("lerobot")
    assert not any("groot" in name or "action_tokenizer" in name for name in STEPS)
    for name in ("groot_n1_7_vlm_encode_v1", ["x"], "action_tokenizer_processor"):
        with pytest.raises(CheckpointError, match=r"registry_name|groot|tokenizer"):
            pipeline({"steps": [{"registry_name": name, "config": {}}]}, action=False)
    with pytest.raises(CheckpointError, match="time_limit_processor"):  # harmless, but no supported policy needs it
        pipeline(
            {"steps": [{"registry_name": "time_limit_processor", "config": {"max_episode_steps": 3}}]}, action=False
        )


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model directory whose code leaves a file beside it; all prompts are answered by yes."""
    pytest.importorskip("lerobot")
    pytest.importorskip("transformers")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "zz", "auto_map": {"AutoConfig": "evil.C"}}))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return folder


def tokenizing(name: Any, **more: Any) -> dict[str, Any]:
    return {"steps": [{"registry_name": "tokenizer_processor", "config": {"tokenizer_name": name, **more}}]}


def test_a_tokenizer_brings_no_code(evil: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer_name.*auto_map"):
        pipeline(tokenizing(str(evil)), action=False)
    with pytest.raises(CheckpointError, match=r"vlm_model_name.*auto_map"):
        decode({"type": "smolvla", "vlm_model_name": str(evil)})
    (evil / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer_name.*evil\.py"):
        pipeline(tokenizing(str(evil)), action=False)
    (evil / "evil.py").unlink()
    for found in ({"auto_map": {"AutoConfig": "x/y--evil.C"}}, {"text_config": {"attn_implementation": "x/y"}}):
        (evil / "config.json").write_text(json.dumps(found))
        with pytest.raises(CheckpointError, match=r"tokenizer_name.*(auto_map|attn_implementation)"):
            pipeline(tokenizing(str(evil)), action=False)
    (evil / "config.json").write_text("{}")
    (evil / "vocab.pkl").touch()
    with pytest.raises(CheckpointError, match=r"vocab\.pkl"):
        pipeline(tokenizing(str(evil)), action=False)
    assert not (evil.parent / "ran").exists()


def test_names_of_tokenizers_are_known(evil: Path) -> None:
    for name in ("stranger/model", "gpt2", str(evil / "config.json"), 3, None, "x\0"):
        with pytest.raises(CheckpointError, match="tokenizer_name"):
            pipeline(tokenizing(name), action=False)
    with pytest.raises(CheckpointError, match="vlm_model_name"):
        decode({"type": "smolvla", "vlm_model_name": "stranger/model"})
    known = decode({"type": "smolvla"}).vlm_model_name
    with pytest.raises(CheckpointError, match="tokenizer:"):
        pipeline(tokenizing(known, tokenizer="x"), action=False)


def test_nothing_asks_whether_code_may_run(evil: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that has passed, or that another thread has changed since."""
    from transformers import AutoConfig, dynamic_module_utils

    for way in (lambda: decode({"type": "act"}), lambda: pipeline({"steps": []}, action=False)):
        monkeypatch.setattr(dynamic_module_utils, "TIME_OUT_REMOTE_CODE", 15)
        way()
        with pytest.raises(ValueError, match="trust_remote_code"):
            AutoConfig.from_pretrained(evil)
    monkeypatch.setattr(policy, "check_name", lambda *_: None)
    with pytest.raises(CheckpointError, match="policy_preprocessor"):
        pipeline(tokenizing(str(evil)), action=False)
    assert not (evil.parent / "ran").exists()


@pytest.mark.parametrize("kind", ["act", "diffusion", "vqbet", "smolvla", "pi0", "pi05"])
def test_a_lerobot_config_downloads_and_compiles_nothing(kind: str) -> None:
    pytest.importorskip("lerobot")
    harmful = {
        "compile_model": True, "pretrained_backbone_weights": "ResNet18_Weights.IMAGENET1K_V1",
        "load_vlm_weights": True, "device": "meta", "push_to_hub": True, "repo_id": "x/y", "pretrained_path": "x/y",
        "pretrained_revision": "main",
    }  # fmt: skip
    has = decode({"type": kind})
    asked = {key: value for key, value in harmful.items() if hasattr(has, key)}
    for found in (has, decode({"type": kind, **asked})):
        left = {key: getattr(found, key) for key in asked}
        assert left.pop("device") == "cpu" and not any(left.values()), "defaults download too"


def test_a_saved_lerobot_policy_reads_what_its_spec_offers(tmp_path: Path) -> None:
    pytest.importorskip("lerobot")
    hostile_inputs.lerobot_saved(tmp_path)
    folder = tmp_path / "policy"
    hostile_inputs.acts(load_policy(folder))
    spec = json.loads((folder / "spec.json").read_text())
    node = json.loads((folder / "policy.json").read_text())["node"]
    wide = {STATE: {**spec["observation"][STATE], "shape": [4], "names": None}}
    action = {**spec["action"], **{k: [*spec["action"][k], spec["action"][k][0]] for k in ("units", "low", "high")}}
    for file, change, key in (
        ("spec.json", {"observation": {}}, STATE),
        ("spec.json", {"observation": wide}, STATE),
        ("spec.json", {"action": {**action, "names": ["x", "y", "z"]}}, "action"),
        ("policy.json", {"node": {**node, "inputs": {}}}, STATE),
        ("policy.json", {"node": {**node, "inputs": {**node["inputs"], "more": "observation.more"}}}, "more"),
    ):
        before = (folder / file).read_text()
        with pytest.raises((SpecError, CheckpointError), match=key):
            load_policy(altered(folder, file, **change))
        (folder / file).write_text(before)
        write_manifest(folder)
    hostile_inputs.acts(load_policy(folder))


def test_a_lerobot_note_is_typed(tmp_path: Path) -> None:
    note = {"action": SPEC["action"], "dt": 0.05, "tasks": ["t"], "rename": {}}
    (tmp_path / NOTE).write_text(json.dumps(note))
    assert read_metadata(tmp_path).dt == 0.05
    for key, value in (("dt", -1.0), ("dt", "1"), ("rename", {"a": 1}), ("tasks", "t"), ("action", {})):
        (tmp_path / NOTE).write_text(json.dumps({**note, key: value}))
        with pytest.raises(CheckpointError, match=key):
            read_metadata(tmp_path)
    (tmp_path / NOTE).unlink()
    for data in ({"dataset": 3}, {"dataset": {"root": 3}}, {"dataset": {"root": "nul\0"}}):
        (tmp_path / "train_config.json").write_text(json.dumps(data))
        assert read_metadata(tmp_path).action is None


# --- runs -----------------------------------------------------------------------------------------------------------


def test_a_runs_config_is_data(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    for text, key in (("task: 3", "task"), ("base: [x]", "base"), ("a: &x 1\nb: *x", "config"), ("- 1", "config"),
                      ("a: !!python/name:os.system", "config")):  # fmt: skip
        file.write_text(text)
        with pytest.raises(ConfigError, match=key):
            read_config(tmp_path)
    file.write_text("task: null\nbase: runs/x\nseed: 1\n")
    assert read_config(tmp_path) == {"task": None, "base": "runs/x", "seed": 1}


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "checkpoints", "videos/test"])
def test_a_run_has_no_links_out_of_itself(tmp_path: Path, name: str) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    (run / "videos").mkdir(parents=True)
    outside.write_text("kept")
    (run / name).symlink_to(outside)
    with pytest.raises(ConfigError, match=name), open_run(run, {}):
        pass
    with pytest.raises(DataError, match=name):
        read_run(run)
    (run / "config.yaml").touch()
    save_policy(hostile_inputs.policy("gaussian"), run / "saved")
    with pytest.raises(CheckpointError, match=name):
        PolicyRef.of(run / "saved", "latest", None)
    assert outside.read_text() == "kept"


def test_a_lock_is_never_followed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "outside").write_text("kept")
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "outside")
    with pytest.raises(ConfigError, match=r"\.lock"), claimed(tmp_path / "run", "run_dir"):
        pass
    assert (tmp_path / "outside").read_text() == "kept"


def test_a_state_that_does_not_fit_is_a_checkpoint_error(tmp_path: Path) -> None:
    hostile_inputs.run(tmp_path)
    newest = max(checkpoints_in(tmp_path / "run" / "checkpoints"))
    hostile_inputs.resume(tmp_path)
    whole = json.loads((newest / "state.json").read_text())
    for change in ({"rng": 3}, {"training": 3}, {"training": {**whole["training"], "step": "x"}},
                   {"training": {**whole["training"], "algo": {}}}):  # fmt: skip
        (newest / "state.json").write_text(json.dumps({**whole, **change}))
        write_manifest(newest)
        with pytest.raises(CheckpointError, match=r"state\.json"):
            hostile_inputs.resume(tmp_path)


def rows(**changes: Any) -> pd.DataFrame:
    row: dict[str, Any] = {
        "seed": 2 << 40, "env": "e", "digest": "d", "task": "t", "success_once": True, "success_at_end": True,
        "return": 1.0, "length": 3, "ended_by": "success", "policy": "p", "deterministic": False, "version": "0",
        "wall_s": 0.1,
    }  # fmt: skip
    return pd.DataFrame([{**row, **changes}], columns=list(COLUMNS))


@pytest.mark.parametrize(
    ("column", "value"),
    [("success_once", "False"), ("success_once", 0.25), ("success_at_end", None), ("seed", 0.5), ("seed", "x"),
     ("length", 2**70), ("return", "x"), ("deterministic", "no")],
)  # fmt: skip
def test_episode_rows_hold_what_they_say(tmp_path: Path, column: str, value: Any) -> None:
    with pytest.raises(DataError, match=column):
        EpisodeTable(rows(**{column: value}))
    rows(**{column: value}).to_csv(tmp_path / "episodes.csv", index=False)
    if value == "False":  # in CSV that is how a boolean is spelled
        assert EpisodeTable.load(tmp_path / "episodes.csv").successes() == [False]
        return
    with pytest.raises(DataError, match=r"episode"):
        EpisodeTable.load(tmp_path / "episodes.csv")


def test_a_report_runs_no_script_of_a_run(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    gate = {"step": evil, "imagined": [0.5, 0.4, 0.6], "kept": [0.5, 0.4, 0.6], "true": None, "uncertain": 0.1,
            "reason": evil, "accepted": True}  # fmt: skip
    run = tmp_path / "run"
    (run / "videos").mkdir(parents=True)
    (run / "videos" / "a.mp4").write_bytes(b"x")
    (run / "videos" / "index.json").write_text(
        json.dumps([{"file": "a.mp4", "outcome": evil, "kind": evil, "label": evil}])
    )
    (run / "spec.json").write_text(json.dumps({evil: evil}))
    (run / "metrics.jsonl").write_text(f'{{"step": 1e999, "{evil}": 1}}\n{{"step": {"9" * 350}}}\n' + "[" * 10_000)
    for data in ([gate], [{**gate, "step": 1, "uncertain": evil}], {"x": 1}, [3], [[[]]]):
        (run / "gate.json").write_text(json.dumps(data))
        assert evil not in "".join(imagination([read_run(run)]))
        page = write_report(run, tmp_path / "out.html").read_text()
        assert evil not in page and "gate.json" in page


def test_a_reports_rounds_are_numbers(tmp_path: Path) -> None:
    evil, rate = "<script>alert(1)</script>", [0.5, 0.4, 0.6]
    fine = {"round": 1, "real_steps_total": 5, "real_steps": 5, "imagined": rate, "true": rate, "gap": 0.1,
            "imagined_refitted": rate, "reason": evil}  # fmt: skip
    (tmp_path / "config.yaml").write_text("rounds: 1\n")
    for change, shown in (({}, "Rounds"), ({"real_steps": evil}, "Not shown"), ({"round": evil}, "Not shown")):
        (tmp_path / "rounds.json").write_text(json.dumps([{**fine, **change}]))
        page = "".join(imagination([read_run(tmp_path)]))
        assert evil not in page and shown in page


def test_what_a_tracker_finds_is_data(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "wall_s": 1.0}\n' + "[" * 100_000 + '\n{"step": [], "wall_s": 1}\n'
    )
    tracker = Tracker(tmp_path, wandb="disabled", quiet=True)
    tracker.rewind(5)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "wall_s": 1.0}\n'


# --- the arm --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        (("joints",), ["a"] * 7, "joints"), (("joints",), [], "joints"), (("velocity",), [1.0] * 6, "velocity"),
        (("velocity",), [-1.0] * 7, "velocity"), (("jerk",), "x", "jerk"), (("position",), {}, "position"),
        (("kinematics", "offsets"), [[0, 0, 0]], "offsets"), (("kinematics", "turns"), [2] * 7, "turns"),
        (("capsules", 0, "link"), 8, "capsules"), (("capsules", 0, "radius"), 0.0, "radius"),
        (("capsules", 0, "start"), [0.0], "start"), (("pairs",), [["base", "moon"]], "pairs"),
        (("position", "maker", "range"), [[1.0] * 7, [0.0] * 7], "range"),
        (("home",), [0.0] * 6, "home"), (("home",), None, "home"),
    ],
)  # fmt: skip
def test_a_profiles_data_fit_one_another(path: tuple[Any, ...], value: Any, key: str) -> None:
    data = json.loads(json.dumps(load_profile("panda").data))
    inner = data
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    with pytest.raises(SafetyError, match=key):
        check_data(data, "profile")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("last", np.zeros((1, 6))), ("stop", np.zeros((1, 0, 7))), ("stop", np.zeros((1, 7))),
        ("stop", np.zeros((1, 2, 6))),
        ("at", np.array([5])), ("at", np.array([-1])), ("at", np.array([0, 0])), ("active", np.array([True, True])),
        ("search", np.array([0, 10**6])), ("search", np.array([0])), ("c", np.full((1, 6, 7), np.nan)),
        ("stop", np.full((1, 1, 7), np.inf)),
    ],
)  # fmt: skip
def test_a_governors_state_fits_it(name: str, value: Any) -> None:
    limiter = CommandLimiter(load_profile("panda"))
    state = limiter.state_dict()
    limiter.load_state_dict(state)
    with pytest.raises(SafetyError, match="limiter"):
        limiter.load_state_dict({**state, name: value})


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recording")
    hostile_inputs.recording(folder)
    return folder


def test_a_recording_holds_what_it_can(messages: Path, tmp_path: Path) -> None:
    for i, (file, key, value) in enumerate((
        ("0000_header", "dt", 1e-9), ("0000_header", "budget_s", 0), ("0000_header", "watchdogs", {"state": ["x"]}),
        ("0000_header", "profile", {"data": {}, "settings": {}}), ("0001_activate", "q", [0.0]),
        ("0001_activate", "limiter", {}), ("0001_activate", "tank", {"energy": 1.0, "q": [0.0], "torque": None}),
        ("0003_tick", "events", [["heard", [0.0]]]), ("0003_tick", "events", [["feed", "x"]]),
        ("0018_footer", "messages", {"tick": "x"}), ("0018_footer", "dropped", None), ("0003_tick", "now", None),
    )):  # fmt: skip
        folder = tmp_path / str(i)
        folder.mkdir()
        for part in messages.glob("*.json"):
            data = json.loads(part.read_text())
            (folder / part.name).write_text(json.dumps({**data, key: value} if part.stem == file else data))
        with pytest.raises((DataError, SafetyError)):
            reproduce(read(hostile_inputs.packed(folder)))


def test_a_recordings_limits_are_held_against_their_form(messages: Path) -> None:
    """Compiled loops would read beyond the arm's last link."""
    header = json.loads((messages / "0000_header.json").read_text())
    header["profile"]["data"]["capsules"][0]["link"] = 8
    profile = Profile(header["profile"]["data"], settings_of(header["profile"]["settings"]))
    with pytest.raises(SafetyError, match="capsules"):
        rebuild({**header, "digest": profile.digest})


def test_a_recordings_header_is_held_against_its_risk(messages: Path) -> None:
    header = json.loads((messages / "0000_header.json").read_text())
    rebuild(header)
    risk = {"layers": [[[[0.0]], [0.0]]], "dt": 0.004, "low": 0.2, "high": 0.8, "floor": 0.2, "settings": {}}
    for value in (risk, {**risk, "dt": 0.0}, {**risk, "layers": []}, 3):
        with pytest.raises((DataError, SafetyError), match=r"risk|header"):
            rebuild({**header, "risk": value})


def test_chunks_unpack_to_what_they_say() -> None:
    data = bytes(2**20)
    for kind, packed in (("zstd", zstandard.compress(data)), ("lz4", lz4.frame.compress(data)), ("", data)):
        fine = Chunk(kind, packed, 0, 0, 0, len(data))
        assert mcap_files.check_chunk(fine) == len(data)
        with pytest.raises(DataError, match="chunk"):
            mcap_files.check_chunk(Chunk(kind, packed, 0, 0, 0, 1000))
    huge = zstandard.ZstdCompressor().compress(bytes(mcap_files.LARGEST + 1))
    with pytest.raises(DataError, match="chunk"):
        mcap_files.check_chunk(Chunk("zstd", huge, 0, 0, 0, mcap_files.LARGEST + 1))
    with pytest.raises(DataError, match="bzip"):
        mcap_files.check_chunk(Chunk("bzip", b"", 0, 0, 0, 0))


def test_a_critics_arrays_are_as_large_as_they_say(tmp_path: Path) -> None:
    profile = load_profile("panda")
    layers = ((np.zeros((21, 4)), np.zeros(4)), (np.zeros((4, 1)), np.zeros(1)))
    RiskCritic(profile, 0.004, layers).save(tmp_path / "critic.npz")
    RiskCritic.load(tmp_path / "critic.npz", profile, 0.004)
    for shape in ("(100000000,)", "(3, 2)"):
        head = io.BytesIO()
        head.write(b"\x93NUMPY\x01\x00")
        text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
        head.write(len(text).to_bytes(2, "little") + text.encode() + bytes(32))
        with zipfile.ZipFile(tmp_path / "lies.npz", "w") as file:
            file.writestr("w0.npy", head.getvalue())
        tracemalloc.start()
        with pytest.raises(SafetyError, match="lies"):
            RiskCritic.load(tmp_path / "lies.npz", profile, 0.004)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**20


@pytest.mark.parametrize(
    "text", ["<!DOCTYPE x [<!ENTITY a 'b'>]><robot>&a;</robot>", "\ud800", "<a>" * 10_000, "x" * 2**25]
)
def test_a_urdf_is_plain_xml(text: str) -> None:
    with pytest.raises(SafetyError, match="urdf"):
        check_urdf(load_profile("panda"), text)


def test_a_urdf_defines_no_entities(tmp_path: Path) -> None:
    hostile_inputs.cell(tmp_path)
    text = (tmp_path / "arm.urdf").read_text()
    check_urdf(load_profile("panda"), text)
    with pytest.raises(SafetyError, match="DOCTYPE"):
        check_urdf(load_profile("panda"), '<!DOCTYPE robot [<!ENTITY a "b">]>' + text)


def test_a_wiring_is_plain_yaml(tmp_path: Path) -> None:
    for text in ("a: &x 1", "[", "topics: !!python/name:os.system", "\ud800".encode("utf-8", "surrogatepass").hex()):
        (tmp_path / "robot.yaml").write_text(text)
        with pytest.raises(SafetyError, match="robot"):
            load_wiring(str(tmp_path / "robot.yaml"))


def test_a_bag_is_tables_in_its_folder(tmp_path: Path) -> None:
    pytest.importorskip("rclpy")
    from robopolicy.real.ros2.bags.reader import Bag

    base = sqlite3.connect(tmp_path / "x.db3")
    base.execute("CREATE TABLE topics (id INTEGER, name TEXT, type TEXT)")
    base.execute(
        "CREATE VIEW messages AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    )
    base.close()
    with pytest.raises(DataError, match="messages"):
        Bag(tmp_path / "x.db3")
    (tmp_path / "bag").mkdir()
    about: dict[str, Any] = {"storage_identifier": "mcap", "relative_file_paths": ["../x.mcap"]}
    (tmp_path / "x.mcap").write_bytes(b"")
    for change in ({}, {"relative_file_paths": [3]}, {"relative_file_paths": "x"}, {"relative_file_paths": [".."]},
                   {"storage_identifier": ["mcap"]}):  # fmt: skip
        (tmp_path / "bag" / "metadata.yaml").write_text(
            json.dumps({"rosbag2_bagfile_information": {**about, **change}})
        )
        with pytest.raises(DataError, match="bag"):
            Bag(tmp_path / "bag")


def test_read_spec_reads_no_weights(tmp_path: Path) -> None:
    folder = save_policy(hostile_inputs.policy("gaussian"), tmp_path / "p")
    (folder / "model.safetensors").write_bytes(b"")
    assert read_spec(folder) == hostile_inputs.SPEC

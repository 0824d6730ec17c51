"""Policies and checkpoints on disk: what is saved comes back exactly; what is broken is refused and never believed."""

from __future__ import annotations

import json
import logging
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from robopolicy.core.errors import CheckpointError, ConfigError, SpecError
from robopolicy.core.types import STATE, Feature
from robopolicy.policies import io
from robopolicy.policies.base import Policy
from robopolicy.policies.factory import build_policy
from robopolicy.policies.normalizer import Normalizer
from robopolicy.runs.checkpointer import FORMAT, MIGRATIONS, Checkpointer, load_policy, save_policy
from robopolicy.runs.run_dir import has_checkpoint
from robopolicy.training.ranked import RankedCheckpointer
from robopolicy.utils import ranks, storage
from robopolicy.utils.atomic import write_atomically
from robopolicy.utils.storage import read_tensors, write_tensors
from tests.fakes import PointEnv, PointPolicy

GAUSSIAN = {
    "_target_": "gaussian",
    "network": {"_target_": "mlp", "_partial_": True, "width": 8, "depth": 1},
}
RESIDUAL = {"_target_": "residual", "hidden": [8, 8], "scale": 0.3}


def gaussian(seed: int = 0) -> Policy:
    torch.manual_seed(seed)
    spec = replace(PointPolicy().spec, observation={STATE: PointEnv(1).spec.observation[STATE]})
    return build_policy(GAUSSIAN, spec=spec, normalizer=Normalizer.from_limits(spec.observation, spec.action))


def residual(**options: Any) -> Policy:
    base = gaussian(1)
    normalizer = Normalizer.from_limits(base.spec.observation, base.spec.action)
    policy = build_policy(RESIDUAL | options, spec=base.spec, normalizer=normalizer, base=base)
    for parameter in policy.net.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return policy


def act(policy: Policy) -> torch.Tensor:
    obs = {STATE: torch.linspace(-1, 1, 4).view(1, 1, 4), "base_action": torch.tensor([[0.01, -0.02]])}
    return policy.act(obs, noise=torch.zeros(1, *policy.noise_shape))


STATE_TREE: dict[str, Any] = {
    "step": 7, "rate": 0.1, "name": "x", "flag": True, "none": None, "big": 2**100, "nan_free": [1, 2.5, "a"],
    "pair": (1, torch.tensor([1.5])), "optimizer": {"state": {0: {"exp_avg": torch.ones(2, 3)}, 1: {}}},
    "empty": torch.zeros(0, 3), "scalar": torch.tensor(3, dtype=torch.int64), "mask": torch.tensor([True, False]),
    "a": {"b": torch.tensor([1.0])}, "a.b": torch.tensor([2.0]), "$odd": 1,
}  # fmt: skip


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


# --- policies -------------------------------------------------------------------------------------------------------


def test_policy_with_base_comes_back_exactly(tmp_path: Path) -> None:
    policy = residual()
    save_policy(policy, tmp_path / "p")
    assert {p.name for p in (tmp_path / "p").iterdir()} == {
        "policy.json", "spec.json", "model.safetensors", "manifest.json", "base"
    }  # fmt: skip
    loaded = load_policy(tmp_path / "p", env=PointEnv(1).spec)
    assert same(dict(policy.state_dict()), dict(loaded.state_dict()))
    assert loaded.spec == policy.spec
    assert loaded.base is not None
    assert loaded.config == RESIDUAL
    assert not loaded.training
    assert torch.equal(act(policy), act(loaded))


def test_a_residual_comes_back_reading_what_it_read_and_its_base_reading_everything(tmp_path: Path) -> None:
    names = PointEnv(1).spec.observation[STATE].names
    assert names is not None
    policy = residual(state=[names[1], names[0]])
    save_policy(policy, tmp_path / "p")
    loaded = load_policy(tmp_path / "p", env=PointEnv(1).spec)
    assert loaded.reading.columns.tolist() == [1, 0] and torch.equal(act(policy), act(loaded))
    assert loaded.base is not None and torch.equal(act(loaded.base), act(gaussian(1)))


def test_saving_again_replaces_and_foreign_folders_are_left_alone(tmp_path: Path) -> None:
    save_policy(gaussian(0), tmp_path / "p")
    save_policy(gaussian(5), tmp_path / "p")
    assert torch.equal(act(load_policy(tmp_path / "p")), act(gaussian(5)))
    assert [p.name for p in tmp_path.iterdir()] == ["p"]
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "draft.txt").write_text("years of work")
    with pytest.raises(CheckpointError, match="is not overwritten"):
        save_policy(gaussian(), tmp_path / "thesis")


def test_what_is_replaced_comes_back_where_replacing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_policy(gaussian(0), tmp_path / "p")
    rename = Path.rename

    def fail(path: Path, target: Path) -> Path:
        if path.suffix == ".tmp":
            raise OSError("no")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(CheckpointError, match="could not be written"):
        save_policy(gaussian(5), tmp_path / "p")
    assert torch.equal(act(load_policy(tmp_path / "p")), act(gaussian(0)))
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


def test_tied_and_shared_weights_survive(tmp_path: Path) -> None:
    shared = torch.arange(6.0).view(2, 3)
    storage.write_tensors({"a": shared, "b": shared, "c": shared[0], "t": shared.T}, tmp_path / "x.safetensors")
    back = storage.read_tensors(tmp_path / "x.safetensors")
    assert torch.equal(back["a"], back["b"])
    assert torch.equal(back["c"], shared[0])
    assert torch.equal(back["t"], shared.T)


def test_policy_without_a_config_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"PointPolicy does not know.*build_policy"):
        save_policy(PointPolicy(), tmp_path / "p")
    assert list(tmp_path.iterdir()) == []


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def rehash(folder: Path) -> None:
    storage.write_manifest(folder)


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def flip(folder: Path) -> None:
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)


def swap_for_pickle(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(pickle.dumps({"a": 1}))
    rehash(folder)


def only_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"a": torch.zeros(1)}, folder / "model.pt")
    rehash(folder)


def newer(folder: Path) -> None:
    edit_json(folder / "policy.json", format=io.FORMAT + 1)


def other_net(folder: Path) -> None:
    edit_json(folder / "policy.json", node={**GAUSSIAN, "network": {**GAUSSIAN["network"], "width": 16}})  # type: ignore[dict-item]
    rehash(folder)


def evil(folder: Path) -> None:
    edit_json(folder / "policy.json", node={"_target_": "os.system", "command": "true"})
    rehash(folder)


def no_spec(folder: Path) -> None:
    edit_json(folder / "spec.json", action={"names": ["x"]})
    rehash(folder)


def no_node(folder: Path) -> None:
    edit_json(folder / "policy.json", node={})
    rehash(folder)


def other_spec(folder: Path) -> None:
    edit_json(folder / "spec.json", version=99)
    rehash(folder)


def diverged(folder: Path) -> None:
    weights = storage.read_tensors(folder / "model.safetensors")
    storage.write_tensors({k: v * torch.nan for k, v in weights.items()}, folder / "model.safetensors")
    rehash(folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, r"model\.safetensors is damaged: \d+ bytes, expected \d+"),
        (flip, r"model\.safetensors is damaged: its sha256"),
        (lambda f: (f / "model.safetensors").unlink(), r"model\.safetensors is missing"),
        (lambda f: (f / "spec.json").unlink(), r"spec\.json is missing"),
        (lambda f: (f / "manifest.json").unlink(), r"manifest\.json is missing"),
        (lambda f: (f / "policy.json").write_text("{"), r"policy\.json is damaged"),
        (swap_for_pickle, r"model\.safetensors: looks like a pickle .* is refused"),
        (only_pickle, r"model\.pt: looks like a pickle"),
        (newer, r"format 2 is newer than this robopolicy reads \(1\)"),
        (other_net, r"weights do not fit.*\n.*expected shape \(16, 4\), found \(8, 4\)"),
        (evil, r"policy\.json.*policy\._target_: "),
        (no_spec, r"spec\.json.*action\.units"),
        (no_node, r"policy\.json.*_target_"),
        (other_spec, r"spec\.json has version 99"),
        (diverged, r"holds NaN or infinity"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_broken_policies_are_refused(tmp_path: Path, damage: Any, message: str) -> None:
    save_policy(gaussian(), tmp_path / "p")
    damage(tmp_path / "p")
    with pytest.raises(CheckpointError, match=f"(?s){message}"):
        load_policy(tmp_path / "p")


def test_damage_inside_the_base_is_seen(tmp_path: Path) -> None:
    save_policy(residual(), tmp_path / "p")
    flip(tmp_path / "p" / "base")
    with pytest.raises(CheckpointError, match=r"base/model\.safetensors is damaged"):
        load_policy(tmp_path / "p")


@pytest.mark.parametrize("name", ["policy.pt", "last.ckpt", "model.bin", "weights.pkl"])
def test_pickle_files_are_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x00")
    with pytest.raises(CheckpointError, match="looks like a pickle"):
        load_policy(tmp_path / name)


@pytest.mark.parametrize("header", [640, 896, 1152, 1408, 19280])
def test_tensors_whose_header_length_reads_like_a_pickle_are_read(tmp_path: Path, header: int) -> None:
    path = tmp_path / "model.safetensors"
    write_tensors({"a": torch.ones(1)}, path)
    start = int.from_bytes(path.read_bytes()[:8], "little")
    write_tensors({"a" * (1 + header - start): torch.ones(1)}, path)
    assert int.from_bytes(path.read_bytes()[:8], "little") == header
    assert len(read_tensors(path)) == 1


def test_paths_that_hold_no_policy_say_what_was_found(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file or directory"):
        load_policy(tmp_path / "nothing")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(CheckpointError, match=r"no policy here; expected policy\.json.*notes\.txt"):
        load_policy(tmp_path)


def test_spec_is_checked_before_weights_load(tmp_path: Path) -> None:
    save_policy(gaussian(), tmp_path / "p")
    truncate(tmp_path / "p")
    rehash(tmp_path / "p")  # unreadable weights that nobody gets to
    spec = replace(PointEnv(1).spec, dt=0.05, observation={STATE: Feature((5,))})
    with pytest.raises(SpecError, match=r"(?s)expects shape \(4,\).*dt: the policy was trained at 0.1 s"):
        load_policy(tmp_path / "p", env=spec)


def test_version_0_is_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fabricated older format: no manifest, other names, the head's weights under another key."""
    policy = gaussian()
    save_policy(policy, tmp_path / "p")
    (tmp_path / "p" / "manifest.json").unlink()
    weights = storage.read_tensors(tmp_path / "p" / "model.safetensors")
    weights["old.log_std"] = weights.pop("log_std")
    storage.write_tensors(weights, tmp_path / "p" / "model.safetensors")
    (tmp_path / "p" / "policy.json").write_text(json.dumps({"class": GAUSSIAN["_target_"], "args": {"width": 8}}))
    with pytest.raises(CheckpointError, match="has format 0, and no migration leads from it to 1"):
        load_policy(tmp_path / "p")

    def from_0(files: io.PolicyFiles) -> io.PolicyFiles:
        network = {**GAUSSIAN["network"], **files.meta["args"]}  # type: ignore[dict-item]
        files.meta = {"format": 1, "node": {"_target_": files.meta["class"], "network": network}, "base": False}
        files.tensors["log_std"] = files.tensors.pop("old.log_std")
        return files

    monkeypatch.setitem(io.MIGRATIONS, 0, from_0)
    assert torch.equal(act(load_policy(tmp_path / "p")), act(policy))


# --- training states ------------------------------------------------------------------------------------------------


def test_state_comes_back_exactly(tmp_path: Path) -> None:
    saver = Checkpointer(tmp_path)
    assert saver.latest() is None
    assert saver.step is None
    saver.save(7, policy=gaussian(), state=STATE_TREE)
    loader = Checkpointer(tmp_path)
    assert loader.step == 7
    assert same(loader.latest(), STATE_TREE)


def test_another_number_of_threads_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = torch.get_num_threads()
    Checkpointer(tmp_path).save(7, policy=gaussian(), state={})
    Checkpointer(tmp_path).latest()
    assert not caplog.records
    try:
        torch.set_num_threads(before + 1)
        Checkpointer(tmp_path).latest()
    finally:
        torch.set_num_threads(before)
    assert f"computed with {before} threads, training goes on with {before + 1}" in caplog.text


def test_optimizer_states_and_generators_resume(tmp_path: Path) -> None:
    net = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    generator = torch.Generator().manual_seed(3)
    saver = Checkpointer(tmp_path)
    saver.save(1, policy=gaussian(), state={"optim": optimizer.state_dict(), "rng": generator.get_state()})
    drawn, expected = torch.rand(3), torch.rand(3, generator=generator)  # after the save
    state = Checkpointer(tmp_path).latest()
    assert state is not None
    fresh = torch.optim.Adam(net.parameters())
    fresh.load_state_dict(state["optim"])
    assert same(fresh.state_dict(), optimizer.state_dict())
    generator.set_state(state["rng"])
    assert torch.equal(torch.rand(3, generator=generator), expected)
    assert torch.equal(torch.rand(3), drawn)  # the global generator is part of every checkpoint


@pytest.mark.parametrize("value", [{1, 2}, lambda: 0, object(), torch.nn.Linear(1, 1)])
def test_what_cannot_be_stored_is_named(tmp_path: Path, value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"state\['training\.algo\.0'\] is a "):
        Checkpointer(tmp_path).save(1, policy=gaussian(), state={"algo": [value]})
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_newest_two_and_the_best_are_kept_and_paths_lead_to_them(tmp_path: Path) -> None:
    saver = Checkpointer(tmp_path, keep=2)
    for step in range(1, 6):
        saver.save(step, policy=gaussian(step), state={"step": step}, best=step == 2)
    folder = tmp_path / "checkpoints"
    names = {"step_0000000002", "step_0000000004", "step_0000000005", "latest", "best"}
    assert {p.name for p in folder.iterdir()} == names
    for path, step in [
        (tmp_path, 5), (folder / "latest", 5), (folder / "best", 2), (folder / "step_0000000004", 4),
        (folder / "step_0000000004" / "policy", 4),
    ]:  # fmt: skip
        assert torch.equal(act(load_policy(path)), act(gaussian(step))), path
    assert torch.equal(act(load_policy(tmp_path, which="best")), act(gaussian(2)))
    with pytest.raises(ConfigError, match="keep"):
        Checkpointer(tmp_path, keep=0)
    (folder / "step_0000000098").mkdir()
    for gone in ("step_0000000098", "step_0000000099"):  # emptied, and removed: the newest that is not empty
        (folder / "latest").write_text(gone)
        assert torch.equal(act(load_policy(folder / "latest")), act(gaussian(5)))
    (folder / "latest").unlink()
    assert torch.equal(act(load_policy(tmp_path)), act(gaussian(5)))


@pytest.mark.parametrize("written", [0, 1], ids=["before both pointers", "between them"])
def test_the_best_is_found_again_where_a_run_ended_before_its_pointer(tmp_path: Path, monkeypatch, written) -> None:
    saver, calls = Checkpointer(tmp_path), iter(range(9))
    saver.save(1, policy=gaussian(1), state={}, best=True)

    def ends(path: Path, text: str) -> None:
        if next(calls) == written:
            raise OSError("killed")
        write_atomically(path, text)

    monkeypatch.setattr("robopolicy.runs.checkpointer.write_atomically", ends)
    with pytest.raises(CheckpointError, match="pointer could not be written"):
        saver.save(2, policy=gaussian(2), state={}, best=True)
    monkeypatch.undo()
    resumed = Checkpointer(tmp_path)
    assert resumed.step == 2
    for step in (3, 4, 5):
        resumed.save(step, policy=gaussian(step), state={})
    assert torch.equal(act(load_policy(tmp_path, which="best")), act(gaussian(2)))


def test_an_older_damaged_checkpoint_is_no_hindrance(tmp_path: Path) -> None:
    saver = Checkpointer(tmp_path)
    saver.save(1, policy=gaussian(1), state={}, best=True)
    saver.save(2, policy=gaussian(2), state={})
    (tmp_path / "checkpoints" / "step_0000000001" / "checkpoint.json").write_text("{")
    assert Checkpointer(tmp_path).step == 2


def test_run_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(CheckpointError, match="has not written a 'best' checkpoint yet"):
        load_policy(tmp_path, which="best")
    with pytest.raises(CheckpointError, match="has not written a 'latest' checkpoint yet"):
        load_policy(tmp_path)


@pytest.mark.parametrize("file", ["state.safetensors", "state.json", "policy/model.safetensors", "manifest.json"])
def test_damaged_newest_falls_back_with_a_warning(tmp_path: Path, file: str, caplog: pytest.LogCaptureFixture) -> None:
    saver = Checkpointer(tmp_path)
    for step in (1, 2):
        saver.save(step, policy=gaussian(step), state={"step": step, "x": torch.full((100,), float(step))})
    path = tmp_path / "checkpoints" / "step_0000000002" / file
    path.write_bytes(path.read_bytes()[:-7])
    resumed = Checkpointer(tmp_path)
    with caplog.at_level(logging.WARNING):
        state = resumed.latest()
    assert state is not None
    assert state["step"] == 1
    assert "Falling back" in caplog.text
    assert torch.equal(act(load_policy(tmp_path)), act(gaussian(1)))
    resumed.save(2, policy=gaussian(2), state={"step": 2})
    assert Checkpointer(tmp_path).latest() == {"step": 2}
    path.write_bytes(b"")  # and once more: there is a damaged one of this name already
    assert Checkpointer(tmp_path).step == 1


def test_all_damaged_is_an_error_not_a_fresh_start(tmp_path: Path) -> None:
    Checkpointer(tmp_path).save(1, policy=gaussian(), state={})
    (tmp_path / "checkpoints" / "step_0000000001" / "state.json").write_text("")
    for _ in range(2):  # the second try is no fresh start either
        with pytest.raises(CheckpointError, match="all 1 checkpoints are damaged"):
            Checkpointer(tmp_path).latest()


@pytest.mark.parametrize("format", [FORMAT - 1, 99])
def test_state_of_another_format_is_refused(tmp_path: Path, format: int) -> None:
    of_format(tmp_path, format)
    with pytest.raises(CheckpointError, match=rf"format {format} \(robopolicy 9\.9\)"):
        Checkpointer(tmp_path).latest()


def test_state_of_an_older_format_is_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MIGRATIONS, FORMAT - 1, lambda state: {**state, "new": True})
    of_format(tmp_path, FORMAT - 1)
    assert Checkpointer(tmp_path).latest() == {"step": 1, "new": True}


def of_format(run_dir: Path, format: int) -> None:
    """Write a checkpoint whose training state claims to be of `format`."""
    Checkpointer(run_dir).save(1, policy=gaussian(), state={"step": 1})
    folder = run_dir / "checkpoints" / "step_0000000001"
    edit_json(folder / "checkpoint.json", format=format, robopolicy="9.9")
    rehash(folder)


def test_saving_a_step_again_never_touches_the_one_before(tmp_path: Path) -> None:
    """As two interruptions at one step do."""
    saver = Checkpointer(tmp_path)
    for value in range(6):
        saver.save(5, policy=gaussian(value), state={"value": value})
        assert Checkpointer(tmp_path).latest() == {"value": value}
        assert torch.equal(act(load_policy(tmp_path)), act(gaussian(value)))
    names = {"step_0000000005_4", "step_0000000005_5"}
    assert {p.name for p in (tmp_path / "checkpoints").glob("step_*")} == names


# --- full disks, kills, interrupts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [2_000, 60_000], ids=["amid the policy", "amid the state"])
def test_full_disk_keeps_the_previous_checkpoint_and_leaves_no_trash(tmp_path: Path, limit: int) -> None:
    """A file-size limit makes real writes fail, those inside the safetensors library too."""
    saver = Checkpointer(tmp_path)
    saver.save(1, policy=gaussian(), state={"step": 1})
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(
            CheckpointError, match=r"(?s)could not be written.*MiB are free.*step_0000000001\) is intact"
        ):
            saver.save(2, policy=gaussian(), state={"step": 2, "x": torch.zeros(50_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert {p.name for p in (tmp_path / "checkpoints").iterdir()} == {"step_0000000001", "latest"}
    assert Checkpointer(tmp_path).latest() == {"step": 1}
    saver.save(2, policy=gaussian(), state={"step": 2})  # after making room
    assert Checkpointer(tmp_path).latest() == {"step": 2}


KILLED = """
    import os, sys, time
    from pathlib import Path
    import torch
    torch.set_num_threads(1)
    from robopolicy.runs.checkpointer import Checkpointer
    from tests.runs.test_checkpointer import gaussian

    run, stop_at = Path(sys.argv[1]), int(sys.argv[2])
    saver = Checkpointer(run)
    saver.save(1, policy=gaussian(1), state={"step": 1, "x": torch.ones(1000)})
    count, fsync = 0, os.fsync

    def slow(handle):
        global count
        count += 1
        if count == stop_at:
            print("here", flush=True)
            time.sleep(60)
        fsync(handle)

    os.fsync = slow
    saver.save(2, policy=gaussian(2), state={"step": 2, "x": torch.ones(1000)})
    print("done", count, flush=True)
"""


def killed_while_saving(run: Path, stop_at: int) -> str:
    """Start a process that saves twice and SIGKILL it before fsync number `stop_at` of the second save."""
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(run), str(stop_at)],
        stdout=subprocess.PIPE, text=True, cwd=root, env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert process.stdout is not None
    said = process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    return said


@pytest.mark.parametrize("stop_at", [5, 10, 12])
def test_kill_9_amid_a_write_never_loses_the_previous_one(tmp_path: Path, stop_at: int) -> None:
    # 5: amid the files of the temporary folder; 10: all written, not yet renamed; 12: renamed, `latest` not yet moved.
    assert killed_while_saving(tmp_path, stop_at) == "here\n"
    folder = tmp_path / "checkpoints"
    renamed = (folder / "step_0000000002").exists()
    state = Checkpointer(tmp_path).latest()
    assert state is not None
    assert state["step"] == (2 if renamed else 1)
    assert renamed == (stop_at > 10)
    assert torch.equal(act(load_policy(tmp_path)), act(gaussian(state["step"])))
    assert not list(folder.glob(".*")), "leftovers of the killed write are removed"
    Checkpointer(tmp_path).save(3, policy=gaussian(3), state={"step": 3})
    assert Checkpointer(tmp_path).step == 3


def test_first_ctrl_c_asks_and_save_raises_once_all_is_on_disk(tmp_path: Path) -> None:
    saver = Checkpointer(tmp_path)
    handler = signal.getsignal(signal.SIGINT)
    with saver.interruptible():
        os.kill(os.getpid(), signal.SIGINT)
        deadline = time.monotonic() + 5
        while not saver.requested and time.monotonic() < deadline:
            time.sleep(0.01)
        assert saver.requested
        with pytest.raises(KeyboardInterrupt):
            saver.save(3, policy=gaussian(), state={"step": 3})
        with pytest.raises(KeyboardInterrupt):  # the second one does not wait
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is handler
    assert Checkpointer(tmp_path).latest() == {"step": 3}


def test_a_copy_of_a_checkpoint_is_left_alone(tmp_path: Path) -> None:
    saver = Checkpointer(tmp_path, keep=1)
    saver.save(1, policy=gaussian(), state={"value": 1})
    folder = tmp_path / "checkpoints"
    copies = [folder / f"step_0000000001{end}" for end in ("_backup", " (copy)", "_")]
    for copy in copies:
        shutil.copytree(folder / "step_0000000001", copy)
    assert Checkpointer(tmp_path).latest() == {"value": 1}
    Checkpointer(tmp_path, keep=1).save(2, policy=gaussian(), state={"value": 2})
    assert all(copy.is_dir() for copy in copies) and not (folder / "step_0000000001").exists()
    shutil.rmtree(folder / "step_0000000002")
    assert not has_checkpoint(tmp_path), "nothing but copies"


@pytest.mark.parametrize(("saved", "now"), [(2, 1), (1, 2)])
def test_a_run_of_more_gpus_resumes_on_fewer(
    saved: int, now: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    states = [torch.full((16,), i, dtype=torch.uint8) for i in range(saved)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: states)
    Checkpointer(tmp_path).save(1, policy=gaussian(), state={"step": 1})
    monkeypatch.setattr(torch.cuda, "device_count", lambda: now)
    restored: dict[int, torch.Tensor] = {}
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: restored.update({device: state}))
    assert Checkpointer(tmp_path).latest() == {"step": 1}
    assert list(restored) == [0] and torch.equal(restored[0], states[0])
    assert f"{saved} GPUs were visible; now there are {now}" in caplog.text


def test_other_ranks_than_the_first_leave_the_folder_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpointer = Checkpointer(tmp_path)
    for step in (1, 2):
        checkpointer.save(step, policy=gaussian(), state={})
    folder = tmp_path / "checkpoints"
    (folder / "step_0000000002" / "state.json").write_text("cut")
    (half := folder / ".latest.0123456789abcdef.tmp").touch()  # the first rank is writing it
    monkeypatch.setattr(ranks, "rank", lambda: 1)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    newest = RankedCheckpointer(tmp_path).latest_path()
    assert newest is not None and newest.name == "step_0000000001"
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before and half.exists()
    monkeypatch.setattr(ranks, "rank", lambda: 0)
    RankedCheckpointer(tmp_path).latest_path()
    assert not half.exists() and (folder / "damaged_step_0000000002").exists()

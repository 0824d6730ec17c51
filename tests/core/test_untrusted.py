"""Files of strangers: every way in which one may lie is refused by name, and nothing else is read or touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from robopolicy.core import untrusted
from robopolicy.core.errors import CheckpointError, ConfigError, DataError
from robopolicy.core.untrusted import (
    DEPTH,
    below,
    check_links,
    check_types,
    inside,
    parse_json,
    parse_yaml,
    pointed,
    read_bytes,
    read_json,
    refusing,
    tensor_header,
)
from robopolicy.policies.factory import build_policy
from robopolicy.policies.normalizer import Normalizer
from robopolicy.runs.checkpointer import save_policy
from robopolicy.utils import storage
from robopolicy.utils.allocation import allocating_at_most
from tests.toy import ACTION, OBSERVATION, spec


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    open_ = os.open
    monkeypatch.setattr(os, "open", lambda path, *args: opened.append(path) or open_(path, *args))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "large").write_bytes(bytes(100))
    for name in ("pipe", "folder", "device", "circle", "gone", "nul\0"):
        with pytest.raises(DataError, match=name.strip("\0")):
            read_bytes(tmp_path / name, error=DataError)
    assert opened == []
    with pytest.raises(CheckpointError, match=r"large.*100"):
        read_bytes(tmp_path / "large", limit=99)
    assert read_bytes(tmp_path / "large", limit=100) == bytes(100)


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "../x", "/etc/passwd", "a\\b", "nul\0", "a" * 300, "\ud800", 3,
                                  None, ["a"]])  # fmt: skip
def test_names_in_files_lead_nowhere_else(tmp_path: Path, name: Any) -> None:
    with pytest.raises(CheckpointError, match="key"):
        inside(tmp_path, name, where="key")


def test_links_out_of_a_folder_are_not_followed(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    (run / "a" / "b").mkdir(parents=True)
    other.mkdir()
    (run / "here").symlink_to("a")
    check_links(run)
    assert inside(run, "here", where="key") == run / "here"
    for link in (run / "there", run / "a" / "b" / "there"):
        link.symlink_to(other)
        with pytest.raises(ConfigError, match="there"):
            check_links(run, error=ConfigError)
        link.unlink()
    (run / "a" / "there").symlink_to(other)
    check_links(run, levels=1)
    with pytest.raises(CheckpointError, match="key"):
        inside(run / "a", "there", where="key")
    with pytest.raises(CheckpointError, match="key"):
        below(run, "a/there/file", where="key")
    (run / "latest").write_text("../other\n")
    with pytest.raises(CheckpointError, match="latest"):
        pointed(run / "latest")
    (run / "latest").write_text("a\n")
    assert pointed(run / "latest") == run / "a"


def test_the_hubs_cache_keeps_a_snapshots_files_beside_it(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--x--y" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    blobs = tmp_path / "models--x--y" / "blobs"
    blobs.mkdir()
    (blobs / "ab").touch()
    (snapshot / "config.json").symlink_to("../../blobs/ab")
    check_links(snapshot)
    (snapshot / "other.json").symlink_to("../../../elsewhere")
    with pytest.raises(CheckpointError, match="other"):
        check_links(snapshot)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000, '{"a":' * 100_000, "[" * (DEPTH + 2) + "]" * (DEPTH + 2), '{"a": 1, "a": 2}', "NaN",
        "[Infinity]", "1e999", "9" * 401, "1" * 5000, r'"\ud800"', r'{"\udfff": 1}', r'[["x", "\ud800x"]]', b"\xff",
        b'"\xed\xa0\x80"', "", "{torn",
    ],
    ids=lambda text: ascii(text)[:20],
)  # fmt: skip
def test_json_that_is_refused(text: str | bytes) -> None:
    with pytest.raises(DataError, match="here"):
        parse_json(text, "here", error=DataError)


def test_json_that_is_read(tmp_path: Path) -> None:
    text = r'{"a": [1, -2.5, 1e-300, null, true, "é \ud83e\udd16"], "b": {"c": []}}'
    assert parse_json(text, "here") == json.loads(text)
    assert parse_json("[NaN, 1e999, -Infinity]", "here", finite=False)[1] == float("inf")
    nested = json.loads("[" * DEPTH + "]" * DEPTH)
    assert parse_json(json.dumps(nested), "here") == nested
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"list\.json"):
        read_json(tmp_path / "list.json")


@pytest.mark.parametrize(
    "text",
    [
        "a: &x [1]\nb: *x", "a: &x 1", "a: !!python/object/apply:os.system ['true']", "a: !!set {b}", "!x {a: 1}",
        "<<: {a: 1}", "a: 1\na: 2", "? [1]\n: 2", "[" * 10_000, "a: " + "1" * 401, "a: " + "1" * 5000,
        'a: "\\ud800"', "a: [", "\x00",
        "a: 1\n---\nb: 2", "- " * 200,
    ],
    ids=lambda text: ascii(text)[:20],
)  # fmt: skip
def test_yaml_that_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="here"):
        parse_yaml(text, "here", error=ConfigError)


def test_yaml_that_is_read() -> None:
    text = "a: {b: [1, 2.5, 1.0e-05, null, true, x, '1', 2001-99-99]}\n1: .inf\n"
    found = parse_yaml(text, "here")
    assert found == {"a": {"b": [1, 2.5, 1e-5, None, True, "x", "1", "2001-99-99"]}, "1": float("inf")}
    assert parse_yaml("", "here") is None


def test_whatever_values_do_is_ours() -> None:
    for error in (TypeError("no"), RecursionError(), MemoryError(), KeyError("k"), RuntimeError("\ud800")):
        with pytest.raises(DataError, match="here") as found, refusing("here", DataError):
            raise error
        str(found.value).encode()
    with pytest.raises(ConfigError, match="own"), refusing("here", DataError):
        raise ConfigError("own")
    with pytest.raises(KeyboardInterrupt), refusing("here", DataError):
        raise KeyboardInterrupt


def test_types_of_keys() -> None:
    check_types({"task": None, "other": 1}, {"task": dict}, "here", ConfigError)
    with pytest.raises(ConfigError, match="task"):
        check_types({"task": 3}, {"task": dict}, "here", ConfigError)


# --- safetensors ----------------------------------------------------------------------------------------------------

GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def packed(path: Path, head: Any, data: bytes = bytes(8), length: int | None = None) -> Path:
    text = (head if isinstance(head, str) else json.dumps(head)).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize(
    ("head", "key"),
    [
        ({"a": {**GOOD, "dtype": "F128"}}, "a"),
        ({"a": {**GOOD, "dtype": 3}}, "dtype"),
        ({"a": {**GOOD, "shape": [3]}}, "a"),
        ({"a": {**GOOD, "shape": [-2]}}, "shape"),
        ({"a": {**GOOD, "shape": [2.0]}}, "shape"),
        ({"a": {**GOOD, "shape": [True]}}, "shape"),
        ({"a": {**GOOD, "shape": [1] * 80}}, "shape"),
        ({"a": {**GOOD, "shape": [2**62, 4]}}, "a"),
        ({"a": {**GOOD, "data_offsets": [8, 0]}}, "a"),
        ({"a": {**GOOD, "data_offsets": [0, 8, 8]}}, "data_offsets"),
        ({"a": {**GOOD, "more": 1}}, "more"),
        ({"a": {"dtype": "F32", "shape": [2]}}, "data_offsets"),
        ({"a": GOOD, "b": GOOD}, "b"),  # one upon the other
        ({"a": {**GOOD, "shape": [1], "data_offsets": [4, 8]}}, "a"),  # a gap
        ({"a": {**GOOD, "shape": [1], "data_offsets": [0, 4]}}, "byte 4"),  # more behind it
        ({"a": GOOD, "__metadata__": {"x": 1}}, "__metadata__"),
        ([], "header"),
        ('{"a": ' + json.dumps(GOOD) + ', "a": ' + json.dumps(GOOD) + "}", "twice"),
        ("[" * 10_000, "header"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_headers_that_lie(tmp_path: Path, head: Any, key: str) -> None:
    with pytest.raises(CheckpointError, match=key):
        tensor_header(packed(tmp_path / "x.safetensors", head))


@pytest.mark.parametrize("length", [0, 1, 2**63, 2**64 - 1, 10_000])
def test_header_lengths_that_lie(tmp_path: Path, length: int) -> None:
    with pytest.raises(CheckpointError, match="safetensors"):
        tensor_header(packed(tmp_path / "x.safetensors", {"a": GOOD}, length=length))


def test_headers_that_are_read(tmp_path: Path) -> None:
    storage.write_tensors(
        {"a": torch.ones(2, 3), "n": torch.arange(3), "e": torch.zeros(0, 4)}, tmp_path / "x.safetensors"
    )
    assert {k: e.shape for k, e in tensor_header(tmp_path / "x.safetensors").items()} == {
        "a": (2, 3), "n": (3,), "e": (0, 4)
    }  # fmt: skip
    assert set(storage.read_tensors(tmp_path / "x.safetensors")) == {"a", "n", "e"}
    packed(tmp_path / "x.safetensors", {"a": {**GOOD, "shape": [3]}})
    with pytest.raises(CheckpointError, match="'a'"):
        storage.read_tensors(tmp_path / "x.safetensors")


# --- allocation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(10**6, 10**6),
        lambda: torch.full((10**6, 10**6), 1.0),
        lambda: torch.linspace(0.0, 1.0, 10**11),
        lambda: torch.arange(0.0, 1e12),
        lambda: torch.arange(0.0, 1.0, 1e-12),
        lambda: torch.eye(16_000),
        lambda: torch.ones(3).repeat(10**11),
        lambda: torch.ones(3).expand(10**11, 3) + 1.0,
        lambda: torch.ones(10**6)[:, None] * torch.ones(10**6),
        lambda: torch.ones(3).expand(10**11, 3).contiguous(),
        lambda: torch.zeros(1).new_zeros(10**11),
        lambda: torch.hann_window(10**12),
        lambda: nn.functional.one_hot(torch.arange(10**5), 10**8),
        lambda: torch.ones(3)[torch.zeros(1, dtype=torch.int64).expand(10**12)],
        lambda: [torch.zeros(1) for _ in range(10**7)],
    ],
)
def test_what_is_far_too_large_is_refused_before_it_is_made(make: Any) -> None:
    with pytest.raises(CheckpointError, match="here"), allocating_at_most((2**20, 1_000), "here"):
        make()


def test_a_policy_is_loaded_and_trained_without_slow_imports(tmp_path: Path) -> None:
    """PyTorch's compiler takes a second, scipy.stats half of one; every training imports `coevolve`."""
    node = {"_target_": "diffusion", "network": {"_target_": "residual_mlp", "_partial_": True}}
    normalizer = Normalizer.from_limits(OBSERVATION, ACTION)
    save_policy(build_policy(node, spec=spec(), normalizer=normalizer), tmp_path / "policy")
    code = (
        "import sys; from robopolicy.policies.io import load_policy; load_policy(sys.argv[1]); "
        "import robopolicy.world_models.training.coevolve, robopolicy.evaluation.training_seeds; "
        "print([m for m in ('torch._dynamo', 'sympy', 'diffusers', 'scipy.stats') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "policy"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_tensors_are_counted_too() -> None:
    with pytest.raises(CheckpointError, match="here"), allocating_at_most((2**40, 1_000), "here"):
        [torch.zeros(1) for _ in range(10_000)]


def test_what_fits_is_made_as_ever() -> None:
    torch.manual_seed(0)
    expected = nn.Linear(8, 8).weight
    torch.manual_seed(0)
    with allocating_at_most((2**20, 1_000), "here"):
        made = nn.Linear(8, 8).weight
        with pytest.raises(RuntimeError, match="tensor b"):
            torch.zeros(2) + torch.zeros(3)
    assert torch.equal(expected, made)


# --- manifests, weights, checkpoints --------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "p" / "base").mkdir(parents=True)
    for name in ("a", "base/b"):
        (tmp_path / "p" / name).write_text(name)
    storage.write_manifest(tmp_path / "p" / "base")
    storage.write_manifest(tmp_path / "p")
    storage.verify(tmp_path / "p")
    return tmp_path / "p"


def claim(folder: Path, **files: Any) -> None:
    data = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({"files": {**data["files"], **files}}))


NOTHING = {"bytes": 0, "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}


@pytest.mark.parametrize(
    "name", ["../outside", "/etc/hostname", "base/../../outside", "..", "base//b", "manifest.json"]
)
def test_a_manifest_names_what_lies_in_its_folder(folder: Path, name: str) -> None:
    (folder.parent / "outside").touch()
    claim(folder, **{name: NOTHING})
    with pytest.raises(CheckpointError, match="manifest"):
        storage.verify(folder)


@pytest.mark.parametrize("entry", [None, 3, {"bytes": "0"}, {"bytes": True, "sha256": NOTHING["sha256"]}, {"bytes": 1}])
def test_a_manifest_says_size_and_checksum(folder: Path, entry: Any) -> None:
    claim(folder, a=entry)
    with pytest.raises(CheckpointError, match=r"files\.a"):
        storage.verify(folder)


def test_manifests_in_one_another_have_an_end(tmp_path: Path) -> None:
    deepest = tmp_path.joinpath(*["base"] * (storage.LEVELS + 2))
    deepest.mkdir(parents=True)
    for path in [deepest, *deepest.parents][: storage.LEVELS + 3]:
        storage.write_manifest(path)
    with pytest.raises(CheckpointError, match=str(storage.LEVELS)):
        storage.verify(tmp_path)


def test_weights_are_of_their_kind() -> None:
    module = nn.BatchNorm1d(2)
    weights = {k: v.clone() for k, v in module.state_dict().items()}
    storage.load_weights(module, {**weights, "weight": weights["weight"].bfloat16()}, where="here")
    for name, value in (("weight", torch.ones(2, dtype=torch.int64)), ("num_batches_tracked", torch.tensor(1.5))):
        with pytest.raises(CheckpointError, match=name):
            storage.load_weights(module, {**weights, name: value}, where="here")


def test_folders_of_other_names_are_no_checkpoints(tmp_path: Path) -> None:
    for name in (
        "step_0000000002",
        "step_0000000002_1",
        "step_0000000002_backup",
        "step_",
        "step_1_2_3",
        "step_9" * 30,
    ):
        (tmp_path / name).mkdir()
    (tmp_path / "step_3").symlink_to(tmp_path)
    assert sorted(p.name for p in storage.checkpoints_in(tmp_path)) == ["step_0000000002", "step_0000000002_1"]


def test_this_module_needs_no_torch() -> None:
    """`robopolicy.real.safety` reads through it in processes that have none to spare."""
    text = Path(untrusted.__file__).read_text()
    assert "import torch" not in text and "from torch" not in text


def test_a_typo_of_a_key_is_answered_with_the_closest_one() -> None:
    class Inner(untrusted.Strict):
        depth: int

    class Outer(untrusted.Strict):
        inner: Inner

    with pytest.raises(CheckpointError, match=r"inner\.dept: .*'depth'"):
        untrusted.checked(Outer, {"inner": {"depth": 1, "dept": 2}}, "here")

"""Write directories completely or not at all, with checksums, and nested states as safetensors and JSON; no pickle.

A directory is written under a temporary name, synced to disk and renamed: a kill −9 or a full disk at any moment
leaves either the new directory complete or no trace of it. `manifest.json` holds size and sha256 of every file, and
stands for them in the manifest of a directory further up.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pydantic
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from robopolicy.core.errors import CheckpointError, closest
from robopolicy.core.untrusted import Strict, below, checked, parse_json, read_bytes, read_json, refusing, tensor_header
from robopolicy.utils.atomic import fsync, hidden

MANIFEST = "manifest.json"
_PICKLED = (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")  # first bytes of pickles and of their archives
PICKLES = {".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".bin", ".joblib", ".npy", ".npz"}
LEVELS = 8  # of manifests in one another: a checkpoint, its policy, that one's base, …
STATE = 2**30  # bytes of state.json
_CHECKPOINT = re.compile(r"step_[0-9]{1,18}(_[0-9]{1,9})?")
_TENSOR, _TUPLE, _ITEMS = "$tensor", "$tuple", "$items"  # marks in state.json


@contextmanager
def new_directory(path: Path, *, keeps: str = "") -> Iterator[Path]:
    """Make a temporary directory, which becomes `path` when the block ends without an error.

    Args:
        path: an older directory there is replaced; for the moment between two renames it lies beside, hidden.
        keeps: what is still intact when this fails, for the message.

    Raises:
        CheckpointError: the disk is full or refuses; nothing is left behind.
    """
    temp, old = hidden(path, "tmp"), hidden(path, "old")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temp.mkdir()
        yield temp
        write_manifest(temp)
        for folder, _, files in os.walk(temp):
            for name in files:
                fsync(Path(folder, name))
            fsync(Path(folder))
        if path.exists():
            path.rename(old)
        temp.rename(path)
        fsync(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path.name}: could not be written to {_shown(path.parent)}: {error}. {_space(path.parent)}"
            f"{' ' + keeps if keeps else ''} Free some space, then repeat the command: it resumes."
        ) from error
    finally:
        shutil.rmtree(temp, ignore_errors=True)
        if old.exists() and not path.exists():
            old.rename(path)


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the folders with a Checkpointer's names: step_0000001000, step_0000001000_1."""
    return [p for p in folder.glob("step_*") if _CHECKPOINT.fullmatch(p.name) and p.is_dir() and not p.is_symlink()]


# --- manifests ------------------------------------------------------------------------------------------------------


def write_manifest(folder: Path) -> None:
    files = {name: _fingerprint(folder / name) for name in sorted(_files(folder))}
    (folder / MANIFEST).write_text(json.dumps({"files": files}, indent=1) + "\n", encoding="utf-8")


class _File(Strict):
    bytes: pydantic.NonNegativeInt
    sha256: str = pydantic.Field(pattern=r"^[0-9a-f]{64}$")


class _Manifest(Strict):
    files: dict[str, _File]


def verify(folder: Path, *, levels: int = LEVELS) -> None:
    """Compare every file with the manifest.

    Args:
        levels: of folders with a manifest of their own that may lie in one another.

    Raises:
        CheckpointError: a file is missing, truncated or altered, or there is no manifest, or it names what lies
            outside.
    """
    shown = _shown(folder)
    if not (folder / MANIFEST).exists():
        raise CheckpointError(f"{shown}: {MANIFEST} is missing, so its files cannot be trusted to be whole")
    if levels < 0:
        raise CheckpointError(f"{shown}: lies more than {LEVELS} checkpoints deep in one another")
    where = f"{shown}/{MANIFEST}"
    files = checked(_Manifest, read_json(folder / MANIFEST), where).files
    for name, expected in files.items():
        path = below(folder, name, where=f"{where}: files")
        if not path.is_file():
            raise CheckpointError(f"{shown}/{name} is missing")
        if path.stat().st_size != expected.bytes:
            raise CheckpointError(f"{shown}/{name} is damaged: {path.stat().st_size} bytes, expected {expected.bytes}")
        if _fingerprint(path) != dict(expected):
            raise CheckpointError(f"{shown}/{name} is damaged: its sha256 is not the one in {MANIFEST}")
        if path.name == MANIFEST:
            verify(path.parent, levels=levels - 1)


def _files(folder: Path, prefix: str = "") -> Iterator[str]:
    """Yield relative names; a subdirectory with its own manifest is represented by that file."""
    for path in folder.iterdir():
        name = prefix + path.name
        if path.is_dir():
            yield from [f"{name}/{MANIFEST}"] if (path / MANIFEST).exists() else _files(path, f"{name}/")
        elif name != MANIFEST:
            yield name


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


# --- tensors and states ---------------------------------------------------------------------------------------------


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file; tensors that share memory are stored separately."""
    seen: set[int] = set()
    ready = {}
    for name, tensor in tensors.items():
        value = tensor.detach().to("cpu").contiguous()
        storage = value.untyped_storage().data_ptr()
        ready[name] = value.clone() if storage in seen else value
        seen.add(storage)
    save_file(ready, path)


def read_tensors(path: Path, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        CheckpointError: missing, truncated, or something else such as a pickle.
    """
    refuse_pickle(path)
    if not path.is_file():
        raise CheckpointError(f"{_shown(path)} is missing")
    tensor_header(path)
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            names = file.keys()  # the handle is not a mapping: it cannot be iterated over itself
            return {name: file.get_tensor(name) for name in names}
    except (SafetensorError, ValueError, RuntimeError, MemoryError, KeyError, OSError) as error:
        raise CheckpointError(f"{_shown(path)} is damaged: not a whole safetensors file ({error})") from error


def refuse_pickle(path: Path) -> None:
    """Raise CheckpointError where `path` is a pickle by name or by its first bytes; loading one may run any code."""
    named = path.suffix.lower() in PICKLES
    if path.is_file():
        with path.open("rb") as file:
            start = file.read(9)
        # A safetensors file begins with the length of its JSON, which may happen to be a pickle's first bytes.
        is_tensors = start[8:] == b"{" and int.from_bytes(start[:8], "little") + 8 <= path.stat().st_size
        named = named or (start[:2] in _PICKLED and not is_tensors)
    if named:
        raise CheckpointError(
            f"{_shown(path)}: looks like a pickle (torch.save and the like), which can run any code when it is "
            "loaded, and is refused. Expected a policy directory with model.safetensors, as `train` writes it; "
            "load foreign weights in a script of your own and write them with robopolicy.runs.checkpointer.save_policy."
        )


def write_state(state: Any, folder: Path) -> None:
    """Write a nested state (dicts, lists, tuples of tensors and JSON values) as state.json and state.safetensors.

    Raises:
        CheckpointError: some value is neither; its path in the state is named.
    """
    tensors: dict[str, Tensor] = {}
    tree = _encode(state, "", tensors)
    (folder / "state.json").write_text(json.dumps(tree), encoding="utf-8")
    write_tensors(tensors, folder / "state.safetensors")


def read_state(folder: Path) -> Any:
    """Read the result of `write_state`; tensors on the CPU."""
    tensors = read_tensors(folder / "state.safetensors")
    where = f"{_shown(folder)}/state.json"
    tree = parse_json(read_bytes(folder / "state.json", limit=STATE), where, finite=False)  # metrics may be NaN
    with refusing(where):
        return _decode(tree, tensors)


def _encode(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        name = path or "value"
        while name in tensors:  # {"a": {"b": …}, "a.b": …}
            name += "'"
        tensors[name] = value
        return {_TENSOR: name}
    if isinstance(value, dict):
        plain = all(isinstance(k, str) and not k.startswith("$") for k in value)
        items = [(k, _encode(v, f"{path}.{k}" if path else str(k), tensors)) for k, v in value.items()]
        return dict(items) if plain else {_ITEMS: [[_encode(k, path, tensors), v] for k, v in items]}
    if type(value) in (list, tuple):
        parts = [_encode(v, f"{path}.{i}" if path else str(i), tensors) for i, v in enumerate(value)]
        return parts if isinstance(value, list) else {_TUPLE: parts}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise CheckpointError(
        f"state[{path!r}] is a {type(value).__module__}.{type(value).__name__}; a checkpoint holds tensors, numbers, "
        "strings, booleans, None, and lists, tuples and dicts of them. Convert it in state_dict()."
    )


def _decode(tree: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, list):
        return [_decode(v, tensors) for v in tree]
    if not isinstance(tree, dict):
        return tree
    if _TENSOR in tree:
        return tensors[tree[_TENSOR]]
    if _TUPLE in tree:
        return tuple(_decode(v, tensors) for v in tree[_TUPLE])
    if _ITEMS in tree:
        return {_decode(k, tensors): _decode(v, tensors) for k, v in tree[_ITEMS]}
    return {k: _decode(v, tensors) for k, v in tree.items()}


def load_weights(module: torch.nn.Module, tensors: dict[str, Tensor], *, skip: str = "", where: str) -> None:
    """Load strictly: every parameter and buffer of `module`, except those under prefix `skip`, and nothing else.

    Raises:
        CheckpointError: names or shapes differ; the first few of each kind are listed.
    """
    own = {k: v for k, v in module.state_dict().items() if not (skip and k.startswith(skip))}
    found = [f"{k!r} is missing. {closest(k, tensors, n=1)}" for k in own if k not in tensors][:4]
    found += [f"{k!r} is not a weight of this policy" for k in tensors if k not in own][:4]
    found += [
        f"{k!r}: expected shape {tuple(v.shape)}, found {tuple(tensors[k].shape)}"
        for k, v in own.items()
        if k in tensors and tensors[k].shape != v.shape
    ][:4]
    found += [
        f"{k!r}: expected {_sort(v)}, found {_sort(tensors[k])}"
        for k, v in own.items()
        if k in tensors and _sort(tensors[k]) != _sort(v)
    ][:4]
    if found:
        raise CheckpointError(f"{where}: weights do not fit what the config builds:\n  - "
                              + "\n  - ".join(found))  # fmt: skip
    bad = [k for k, v in tensors.items() if v.is_floating_point() and not bool(torch.isfinite(v).all())]
    if bad:
        raise CheckpointError(
            f"{where}: weight {bad[0]!r} holds NaN or infinity: its training diverged, or its normaliser was not fitted"
        )
    module.load_state_dict(tensors, strict=False)  # strict above, but for `skip`


def _sort(tensor: Tensor) -> str:
    """Return the kind of numbers; their precision may differ."""
    return "floats" if tensor.is_floating_point() else "booleans" if tensor.dtype == torch.bool else "integers"


def _space(folder: Path) -> str:
    try:
        return f"{shutil.disk_usage(folder).free / 2**20:.0f} MiB are free there."
    except OSError:
        return ""


def _shown(path: Path) -> str:
    """Return the last parts of a path, without the machine's layout."""
    return "/".join(path.parts[-3:]).lstrip("/")

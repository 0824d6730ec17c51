"""Policies and training states on disk: safetensors and JSON, checksummed, atomic, versioned. Never a pickle.

policy directory      policy.json (the config node that rebuilds it) · spec.json · model.safetensors · manifest.json
                      base/ (a policy directory), where there is a policy underneath
checkpoint            policy/ · state.json · state.safetensors · checkpoint.json · manifest.json
run directory         checkpoints/step_0000001000/ …, and the files `latest` and `best`, which hold a name of these
"""

from __future__ import annotations

import json
import logging
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from robopolicy.build import build_policy, resolve
from robopolicy.errors import CheckpointError, ConfigError
from robopolicy.evaluate.provenance import version
from robopolicy.normalize import Normalizer
from robopolicy.policies.base import Policy
from robopolicy.schema import parameters, plain
from robopolicy.spec import PolicySpec, check_fits
from robopolicy.storage import (
    MANIFEST,
    PICKLES,
    load_weights,
    new_directory,
    read_state,
    read_tensors,
    refuse_pickle,
    remove_leftovers,
    verify,
    write_manifest,
    write_state,
    write_tensors,
    write_text,
)
from robopolicy.types import BASE_ACTION, EnvSpec

FORMAT = 1
_BASE = "base"
_log = logging.getLogger(__name__)


@dataclass
class PolicyFiles:
    """A policy directory in memory, as migrations see it."""

    meta: dict[str, Any]  # policy.json
    spec: dict[str, Any]  # spec.json; has a version and migrations of its own (spec.py)
    tensors: dict[str, Tensor] | None = None  # read for migrations, else only once the spec has been checked


# format found → function that turns its files into the next format's. Filled when FORMAT grows.
MIGRATIONS: dict[int, Callable[[PolicyFiles], PolicyFiles]] = {}


def save_policy(policy: Policy, path: Path | str, *, config_node: dict[str, Any] | None = None) -> Path:
    """Write a policy directory, whole or not at all; an older one at `path` is replaced.

    Args:
        config_node: rebuilds the policy; `policy.config`, which build_policy sets, when None.

    Raises:
        CheckpointError: no config node, a full disk, or `path` holds something else.
    """
    path = Path(path)
    if path.exists() and not (path / "policy.json").exists() and any(path.iterdir()):
        raise CheckpointError(f"{path}: holds other files and is not overwritten. Give a new directory.")
    with new_directory(path) as folder:
        _write_policy(policy, folder, config_node)
    return path


def load_policy(
    path: Path | str,
    *,
    device: torch.device | str = "cpu",
    env: EnvSpec | None = None,
    which: Literal["latest", "best"] = "latest",
) -> Policy:
    """Rebuild a policy and load its weights strictly.

    Args:
        path: a policy directory, a checkpoint, or a run directory, of which `which` is taken.
        env: what the policy shall run on; checked before weights load.

    Raises:
        CheckpointError: missing, damaged, a pickle, a newer format, weights that do not fit.
        SpecError: the policy does not fit `env`.
    """
    return _load_policy(find_policy(path, which=which), device, env).eval()


def find_policy(path: Path | str, *, which: Literal["latest", "best"] = "latest") -> Path:
    """The policy directory that a run directory, checkpoint, pointer or policy directory stands for."""
    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or directory; expected a run directory, checkpoint or policy")
    if path.is_file():
        refuse_pickle(path)
        if path.name not in ("latest", "best"):
            raise CheckpointError(f"{path}: is a file. Give the directory that holds it (policy.json lies beside it).")
        path = path.parent / path.read_text(encoding="utf-8").strip()
    if (path / "checkpoints").is_dir():
        pointer = path / "checkpoints" / which
        if not pointer.is_file():
            raise CheckpointError(f"{path}: its training has not written a {which!r} checkpoint yet")
        path = path / "checkpoints" / pointer.read_text(encoding="utf-8").strip()
    if (path / "policy").is_dir():
        path = path / "policy"
    if not (path / "policy.json").is_file():
        for file in sorted(p for p in path.glob("*") if p.suffix in PICKLES):
            refuse_pickle(file)
        found = sorted(p.name for p in path.glob("*"))[:8] if path.is_dir() else "nothing"
        raise CheckpointError(f"{path}: no policy here; expected policy.json, spec.json, {MANIFEST}; found {found}")
    return path


def read_spec(path: Path | str, *, which: Literal["latest", "best"] = "latest") -> PolicySpec:
    """The spec of a saved policy, without its weights."""
    folder = find_policy(path, which=which)
    return PolicySpec.from_json(json.dumps(_read_json(folder / "spec.json")))


def _write_policy(policy: Policy, folder: Path, config_node: dict[str, Any] | None = None) -> None:
    node = getattr(policy, "config", None) if config_node is None else config_node
    if node is None:
        raise CheckpointError(
            f"{type(policy).__name__} does not know the config that rebuilds it. Build it with "
            "robopolicy.build.build_policy(node, spec=…), or pass config_node={'_target_': …}."
        )
    meta = {"format": FORMAT, "robopolicy": version(), "node": plain(node), _BASE: policy.base is not None}
    (folder / "policy.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
    (folder / "spec.json").write_text(policy.spec.to_json() + "\n", encoding="utf-8")
    tensors = policy.state_dict()
    if policy.base is not None:
        tensors = {k: v for k, v in tensors.items() if not k.startswith(f"{_BASE}.")}
        (folder / _BASE).mkdir()
        _write_policy(policy.base, folder / _BASE)
    write_tensors(tensors, folder / "model.safetensors")
    write_manifest(folder)


def _load_policy(folder: Path, device: torch.device | str, env: EnvSpec | None) -> Policy:
    files = _read_files(folder)
    spec = PolicySpec.from_json(json.dumps(files.spec))
    if env is not None:
        check_fits(spec, env, ignore=[BASE_ACTION] if files.meta.get(_BASE) else [])
    node, runtime = files.meta["node"], {}
    try:
        known, _ = parameters(resolve(node["_target_"], "policy"), node)
        if files.meta.get(_BASE):
            runtime["base"] = _load_policy(folder / _BASE, device, env)
        if "normalizer" in known:
            runtime["normalizer"] = Normalizer(spec.observation, spec.action)
        policy = build_policy(node, "policy", spec=spec, **runtime)
    except ConfigError as error:
        raise CheckpointError(
            f"{folder}: policy.json does not describe a policy of this robopolicy: {error}"
        ) from error
    if policy.spec != spec:
        raise CheckpointError(f"{folder}: spec.json and the policy that policy.json builds have different specs")
    if files.tensors is None:
        files.tensors = read_tensors(folder / "model.safetensors")
    load_weights(policy, files.tensors, skip=f"{_BASE}." if policy.base is not None else "", where=str(folder))
    return policy.to(device)


def _read_files(folder: Path) -> PolicyFiles:
    meta = _read_json(folder / "policy.json")
    found = meta.get("format", 0)
    if not isinstance(found, int) or found > FORMAT:
        raise CheckpointError(
            f"{folder}: format {found!r} is newer than this robopolicy reads ({FORMAT}). Upgrade robopolicy."
        )
    if found >= 1 or (folder / MANIFEST).exists():
        verify(folder)
    if not (folder / "model.safetensors").exists():
        for file in folder.glob("*"):
            refuse_pickle(file)
    files = PolicyFiles(meta, _read_json(folder / "spec.json"))
    while found < FORMAT:
        files.tensors = files.tensors or read_tensors(folder / "model.safetensors")
        if found not in MIGRATIONS:
            raise CheckpointError(f"{folder}: has format {found}, and no migration leads from it to {FORMAT}")
        files = MIGRATIONS[found](files)
        found = files.meta["format"]
    return files


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged ({error})") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} is damaged: expected an object, found {type(data).__name__}")
    return data


class Checkpointer:
    """The checkpoints of a run: written atomically, the newest `keep` and the best one kept.

    Ctrl-C: inside `interruptible()` a first SIGINT or SIGTERM only sets `requested`; the loop saves at its next safe
    point, and `save` raises KeyboardInterrupt once everything is on disk.

    Args:
        run_dir: `checkpoints/` is made in it.
        keep: newest checkpoints to keep; at least 2, so that a damaged one can be fallen back from.
    """

    def __init__(self, run_dir: Path | str, *, keep: int = 2) -> None:
        if keep < 1:
            raise ConfigError(f"keep: expected at least 1 checkpoint, found {keep}")
        self.folder = Path(run_dir) / "checkpoints"
        self.keep = keep
        self.requested = False
        remove_leftovers(self.folder)
        self._valid: Path | None = None

    def save(self, step: int, *, policy: Policy, state: dict[str, Any], best: bool = False) -> Path:
        """Write a checkpoint and move `latest` (and `best`) to it.

        Args:
            policy: what is to be evaluated and deployed.
            state: all that training resumes from; nested dicts, lists and tuples of tensors and JSON values. The
                global torch RNG is added by itself.

        Raises:
            CheckpointError: the disk is full, or a value cannot be stored; the previous checkpoint stays.
            KeyboardInterrupt: the user asked to stop; everything is saved.
        """
        previous = self._all()
        path = self.folder / f"step_{step:010d}"
        if path.exists():  # saved before under this number, perhaps damaged: never overwritten in place
            path = path.with_name(f"{path.name}_{len(list(self.folder.glob(path.name + '*')))}")
        keeps = f"The previous checkpoint ({previous[0].name}) is intact." if previous else ""
        with new_directory(path, keeps=keeps) as folder:
            (folder / "policy").mkdir()
            _write_policy(policy, folder / "policy")
            write_state({"training": state, "rng": _rng_state()}, folder)
            (folder / "checkpoint.json").write_text(
                json.dumps({"format": FORMAT, "robopolicy": version(), "step": step}) + "\n", encoding="utf-8"
            )
        try:
            for pointer in ("latest", "best") if best else ("latest",):
                write_text(self.folder / pointer, path.name + "\n")
        except OSError as error:
            raise CheckpointError(f"{self.folder.name}: pointer could not be written: {error}. {path.name} is whole.") \
                from error  # fmt: skip
        self._valid = path
        self._prune()
        if self.requested:
            raise KeyboardInterrupt
        return path

    def latest(self) -> dict[str, Any] | None:
        """The `state` of the newest whole checkpoint, or None; restores the global torch RNG.

        A damaged checkpoint is set aside with a warning, and the one before it taken.

        Raises:
            CheckpointError: all are damaged, or written by a newer robopolicy.
        """
        path = self.latest_path()
        if path is None:
            return None
        state = read_state(path)
        _set_rng_state(state["rng"])
        return state["training"]

    def latest_path(self) -> Path | None:
        """The newest checkpoint, verified; None before the first one."""
        if self._valid is not None and self._valid.exists():
            return self._valid
        found = self._all()
        for path in found:
            try:
                verify(path)
                meta = _read_json(path / "checkpoint.json")
            except CheckpointError as error:
                _log.warning("%s Falling back to the checkpoint before it.", error)
                path.rename(path.with_name("damaged_" + path.name))
                continue
            if meta["format"] != FORMAT:
                raise CheckpointError(
                    f"{path}: its training state has format {meta['format']} (robopolicy {meta['robopolicy']}), this "
                    f"one reads {FORMAT}. Finish the run with the version that began it; its policy loads anyhow."
                )
            self._valid = path
            write_text(self.folder / "latest", path.name + "\n")
            return path
        if found:
            raise CheckpointError(
                f"{self.folder}: all {len(found)} checkpoints are damaged. "
                "Remove the folder to start from the beginning."
            )
        return None

    @property
    def step(self) -> int | None:
        """Step of the newest whole checkpoint."""
        path = self.latest_path()
        return None if path is None else int(_read_json(path / "checkpoint.json")["step"])

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Turn the first SIGINT or SIGTERM into `requested`; the second one interrupts at once."""

        def ask(number: int, frame: Any) -> None:
            if self.requested:
                raise KeyboardInterrupt
            self.requested = True
            _log.warning("Stopping at the next safe point and saving. Press Ctrl-C again to stop without saving.")

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _all(self) -> list[Path]:
        """Checkpoints, newest first."""
        found = [p for p in self.folder.glob("step_*") if p.is_dir()]
        return sorted(found, key=lambda p: [int(n) for n in p.name.split("_")[1:]], reverse=True)

    def _prune(self) -> None:
        best = self.folder / "best"
        kept = {best.read_text(encoding="utf-8").strip()} if best.exists() else set()
        for path in self._all()[self.keep :]:
            if path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)


def _rng_state() -> dict[str, Any]:
    """Of the global generators, which dropout and the like draw from."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"torch": torch.get_rng_state(), "cuda": cuda}


def _set_rng_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])

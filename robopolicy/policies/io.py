"""Save and load policies: safetensors and JSON, checksummed, written atomically, versioned. Never a pickle.

policy directory      policy.json (the config node that rebuilds it) · spec.json · model.safetensors · manifest.json
                      memory.safetensors · memory.json, with a retrieval memory
                      base/ (a policy directory), where there is a policy underneath
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from robopolicy.config.registry import resolve
from robopolicy.config.schema import plain, signature
from robopolicy.core.errors import CheckpointError, ConfigError
from robopolicy.core.specs import PolicySpec, check_fits
from robopolicy.core.types import BASE_ACTION, EnvSpec
from robopolicy.core.untrusted import (
    Strict,
    check_links,
    check_numbers,
    checked,
    read_json,
    refusing,
)
from robopolicy.policies.base import Policy
from robopolicy.policies.factory import build_policy
from robopolicy.policies.find import find_policy, is_ours
from robopolicy.policies.lerobot.load import load_lerobot
from robopolicy.policies.normalizer import Normalizer
from robopolicy.utils.allocation import allocating_at_most, budget
from robopolicy.utils.provenance import version
from robopolicy.utils.storage import (
    LEVELS,
    MANIFEST,
    load_weights,
    new_directory,
    read_tensors,
    refuse_pickle,
    verify,
    write_manifest,
    write_tensors,
)

FORMAT = 1
_BASE = "base"


@dataclass
class PolicyFiles:
    """A policy directory in memory, as migrations see it."""

    meta: dict[str, Any]  # policy.json
    spec: dict[str, Any]  # spec.json; has a version and migrations of its own (core/specs.py)
    tensors: dict[str, Tensor] | None = None  # read for migrations, else only once the spec has been checked


# format found → function that turns its files into the next format's. Filled when FORMAT grows.
MIGRATIONS: dict[int, Callable[[PolicyFiles], PolicyFiles]] = {}


def save_policy(policy: Policy, path: Path | str, *, config_node: dict[str, Any] | None = None) -> Path:
    """Write a policy directory atomically; an older one at `path` is replaced.

    Args:
        config_node: rebuilds the policy; `policy.config`, which build_policy sets, when None.

    Raises:
        CheckpointError: no config node, a full disk, or `path` holds something else.
    """
    path = Path(path)
    if path.exists() and not (path / "policy.json").exists() and any(path.iterdir()):
        raise CheckpointError(f"{path}: holds other files and is not overwritten. Give a new directory.")
    with new_directory(path) as folder:
        write_policy(policy, folder, config_node)
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
        path: a policy directory, a checkpoint, or a run directory, from which `which` is loaded; or LeRobot's, or
            hub:<owner>/<name> (robopolicy/policies/lerobot/find.py).
        env: the env that the policy will run on; checked before weights load.

    Raises:
        CheckpointError: missing, damaged, a pickle, a newer format, weights that do not fit.
        SpecError: the policy does not fit `env`.
    """
    folder = find_policy(path, which=which)
    if not is_ours(folder):
        return load_lerobot(folder, device=device, env=env)
    check_links(folder)
    return _load_policy(folder, device, env).eval()


def write_policy(policy: Policy, folder: Path, config_node: dict[str, Any] | None = None) -> None:
    """Write a policy into an empty folder, which may be part of a larger directory."""
    node = getattr(policy, "config", None) if config_node is None else config_node
    if node is None:
        raise CheckpointError(
            f"{type(policy).__name__} does not know the config that rebuilds it. Build it with "
            "robopolicy.policies.factory.build_policy(node, spec=…), or pass config_node={'_target_': …}."
        )
    meta = {"format": FORMAT, "robopolicy": version(), "node": plain(node), _BASE: policy.base is not None}
    (folder / "policy.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
    (folder / "spec.json").write_text(policy.spec.to_json() + "\n", encoding="utf-8")
    tensors = policy.state_dict()
    if policy.base is not None:
        tensors = {k: v for k, v in tensors.items() if not k.startswith(f"{_BASE}.")}
        (folder / _BASE).mkdir()
        write_policy(policy.base, folder / _BASE)
    write_tensors(tensors, folder / "model.safetensors")
    if policy.memory is not None:
        policy.memory.write(folder)
    write_manifest(folder)


class _PolicyMeta(Strict):
    """policy.json."""

    format: int
    robopolicy: str = ""
    node: dict[str, Any]
    base: bool = False


def _load_policy(folder: Path, device: torch.device | str, env: EnvSpec | None, *, levels: int = LEVELS) -> Policy:
    if levels < 0:
        raise CheckpointError(f"{folder}: lies on more than {LEVELS} bases")
    files = _read_files(folder)
    spec = PolicySpec.from_data(files.spec)
    meta = checked(_PolicyMeta, files.meta, f"{folder}/policy.json")
    if env is not None:
        check_fits(spec, env, ignore=[BASE_ACTION] if meta.base else [])
    base = _load_policy(folder / _BASE, device, env, levels=levels - 1) if meta.base else None
    policy = _built(folder, meta.node, spec, base)
    if files.tensors is None:
        files.tensors = read_tensors(folder / "model.safetensors")
    load_weights(policy, files.tensors, skip=f"{_BASE}." if policy.base is not None else "", where=str(folder))
    if policy.memory is not None:
        policy.memory.read(folder)
    if env is not None:
        policy.set_tasks(env.tasks)
    return policy.to(device)


def _built(folder: Path, node: dict[str, Any], spec: PolicySpec, base: Policy | None) -> Policy:
    """Build the policy of a checkpoint's node; its weights are not loaded yet.

    The node is untrusted: errors of the constructor become CheckpointError, and its allocations are limited by the size
    of the weights.
    """
    where = f"{folder}/policy.json"
    check_numbers(node, f"{where}: node")
    runtime: dict[str, Any] = {} if base is None else {"base": base}
    try:
        known = signature(resolve(node, "policy"), node).known
        with allocating_at_most(budget(folder / "model.safetensors"), where), refusing(f"{where}: node"):
            if "normalizer" in known:
                runtime["normalizer"] = Normalizer(spec.observation, spec.action)
            policy = build_policy(node, "policy", spec=spec, **runtime)
    except ConfigError as error:
        raise CheckpointError(f"{folder}: policy.json describes no policy of this robopolicy: {error}") from error
    if policy.spec != spec:
        raise CheckpointError(f"{folder}: spec.json and the policy that policy.json builds have different specs")
    return policy


def _read_files(folder: Path) -> PolicyFiles:
    meta = read_json(folder / "policy.json")
    found = meta.get("format", 0)
    if not isinstance(found, int) or found > FORMAT:
        raise CheckpointError(f"{folder}: format {found!r} is newer than this robopolicy reads ({FORMAT}). Upgrade it.")
    if found >= 1 or (folder / MANIFEST).exists():
        try:
            verify(folder)
        except CheckpointError as error:
            raise CheckpointError(
                f"{error}. Restore it from a copy, or take another checkpoint (<run directory>/checkpoints/step_…)."
            ) from error
    whole = (folder / "model.safetensors").exists()
    for file in [folder / "model.safetensors"] if whole else folder.glob("*"):
        refuse_pickle(file)
    files = PolicyFiles(meta, read_json(folder / "spec.json", finite=False))
    while found < FORMAT:
        files.tensors = files.tensors or read_tensors(folder / "model.safetensors")
        if found not in MIGRATIONS:
            raise CheckpointError(f"{folder}: has format {found}, and no migration leads from it to {FORMAT}")
        files = MIGRATIONS[found](files)
        found = files.meta["format"]
    return files

"""Find a policy directory, and read its spec and checksum without its weights."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from robopolicy.core.errors import CheckpointError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.untrusted import pointed, read_bytes, read_json
from robopolicy.policies.lerobot.find import HUB, download, find_lerobot, fingerprint
from robopolicy.utils.storage import MANIFEST, PICKLES, checkpoints_in, refuse_pickle


def find_policy(path: Path | str, *, which: Literal["latest", "best"] = "latest") -> Path:
    """Find the policy directory of a run directory, checkpoint, pointer or policy directory; LeRobot's too.

    hub:<owner>/<name>[@<revision>] is downloaded first.
    """
    path = Path(path)
    if str(path).startswith(HUB):
        path = download(str(path).removeprefix(HUB))
    if (lerobot := find_lerobot(path)) is not None:
        if which == "best":
            raise CheckpointError(f"{path}: LeRobot marks no best checkpoint; name one: <run>/checkpoints/<step>")
        return lerobot
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or directory; expected a run directory, checkpoint or policy")
    if path.is_file():
        refuse_pickle(path)
        if path.name not in ("latest", "best"):
            raise CheckpointError(f"{path}: is a file. Give the directory that holds it (policy.json lies beside it).")
        path = _pointed(path)
    if (path / "checkpoints").is_dir():
        path = _pointed(path / "checkpoints" / which)
    if (path / "policy").is_dir():
        path = path / "policy"
    if not (path / "policy.json").is_file():
        for file in sorted(p for p in path.glob("*") if p.suffix in PICKLES):
            refuse_pickle(file)
        found = sorted(p.name for p in path.glob("*"))[:8] if path.is_dir() else "nothing"
        raise CheckpointError(f"{path}: no policy here; expected policy.json, spec.json, {MANIFEST}, or "
                              f"LeRobot's config.json; found {found}")  # fmt: skip
    return path


def _pointed(pointer: Path) -> Path:
    """Return the checkpoint that a run's pointer names; without a usable `latest`, the newest that is not empty."""
    found = pointed(pointer) if pointer.is_file() else None
    if pointer.name == "latest" and (found is None or not any(found.glob("*"))):
        filled = [path for path in checkpoints_in(pointer.parent) if any(path.iterdir())]
        found = max(filled, key=lambda path: path.name, default=None)
    if found is None:
        run = pointer.parent.parent
        raise CheckpointError(f"{run}: its training has not written a {pointer.name!r} checkpoint yet")
    return found


def read_spec(path: Path | str, *, which: Literal["latest", "best"] = "latest") -> PolicySpec:
    """Read the spec of a policy of ours, without its weights.

    Raises:
        CheckpointError: as `find_policy`, or the policy is LeRobot's, whose directories have none.
    """
    folder = find_policy(path, which=which)
    if not is_ours(folder):
        raise CheckpointError(
            f"{path}: is a policy of LeRobot, which holds no spec.json. Save it as ours first: "
            "save_policy(load_policy(path, env=env.spec), new_path); docs/lerobot.md shows how."
        )
    return PolicySpec.from_data(read_json(folder / "spec.json", finite=False))


def is_ours(folder: Path) -> bool:
    """Return True for a policy directory that `save_policy` wrote, False for one of LeRobot."""
    return (folder / "policy.json").is_file()


def policy_digest(folder: Path) -> str:
    """Compute the sha256 over all files of a policy directory."""
    if is_ours(folder):
        return hashlib.sha256(read_bytes(folder / MANIFEST)).hexdigest()
    return fingerprint(folder)

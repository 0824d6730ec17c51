"""Find LeRobot's policy directories, on this machine or on the hub."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from robopolicy.core.errors import CheckpointError
from robopolicy.core.untrusted import leads_inside, read_json
from robopolicy.utils.storage import new_directory

CONFIG, WEIGHTS = "config.json", "model.safetensors"
HUB = "hub:"
WANTED = ["*.json", "*.safetensors", "*.txt", "*.model"]  # of a policy on the hub: never pickles


def find_lerobot(path: Path) -> Path | None:
    """Find the LeRobot policy directory of `path`; None where there is none.

    Args:
        path: the directory itself, a checkpoint or a run of `lerobot-train`.
    """
    if (path / "policy" / "policy.json").is_file():
        return None  # ours, perhaps exported for LeRobot
    for inner in (".", "pretrained_model", "checkpoints/last/pretrained_model"):
        file = path / inner / CONFIG
        if file.is_file() and not (file.parent / "policy.json").is_file() and "type" in read_json(file):
            if not leads_inside(file.parent, path):
                raise CheckpointError(f"{path}: {inner} is a link that leads out of it, and is not followed")
            return file.parent
    return None


def training_run(folder: Path) -> tuple[Path, str] | None:
    """Return <run> and <step> of <run>/checkpoints/<step>/pretrained_model, as `lerobot-train` writes it."""
    folder = folder.resolve()
    run = folder.parents[2] if len(folder.parents) > 2 else folder
    return (run, folder.parent.name) if folder.parent.parent.name == "checkpoints" else None


def fingerprint(folder: Path) -> str:
    """Compute the sha256 over all JSON and safetensors files, by name."""
    digest = hashlib.sha256()
    for file in sorted(p for p in folder.iterdir() if p.suffix in (".json", ".safetensors")):
        if not file.is_file():
            raise CheckpointError(f"{file}: expected a regular file, found a folder, pipe or device")
        with file.open("rb") as opened:
            digest.update(f"{file.name} {hashlib.file_digest(opened, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def download(ident: str) -> Path:
    """Download weights and JSON of <owner>/<name>[@<revision>] from the hub; an exported policy of ours too.

    Raises:
        CheckpointError: the hub does not have it, or cannot be reached.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    name, _, revision = ident.partition("@")
    try:
        found = snapshot_download(name, revision=revision or None, allow_patterns=WANTED)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        first = str(error).strip().splitlines()[0]
        raise CheckpointError(
            f"{HUB}{ident}: could not be fetched ({first}). Expected {HUB}<owner>/<name>[@<revision>]; without a "
            "network give a local directory."
        ) from error
    folder = Path(found)
    if not (folder / CONFIG).is_file():
        raise CheckpointError(f"{HUB}{ident}: holds no {CONFIG}, so it is not a LeRobot policy")
    if not (folder / "policy" / "policy.json").is_file():
        return folder
    copy = folder.parents[1] / "robopolicy" / folder.name  # ours refuse links, which the hub's cache is made of
    if not copy.exists():
        with new_directory(copy) as made:
            shutil.copytree(folder, made, dirs_exist_ok=True)
    return copy

"""Bring datasets that others recorded to this machine: from the hub or its cache, and from LeRobot's format v2.1."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from robopolicy.core.errors import DataError
from robopolicy.core.untrusted import check_links
from robopolicy.datasets.files import read_json, visible
from robopolicy.datasets.source import INFO_FILE, OLD, is_plain

HUB = "hub:"
PARTS = ("data", "meta", "videos")
_REVISIONS = ("v3.0", "v2.1", "main")  # asked for in this order, where none is given


def is_hub(path: Path) -> bool:
    """Return whether a value of `dataset` names a dataset of the hub."""
    return str(path).startswith(HUB)


def format_of(path: Path) -> str:
    """Return the version of a dataset's format, such as "v3.0".

    Raises:
        DataError: no dataset, or its info.json is damaged.
    """
    if not (path / INFO_FILE).is_file():
        raise DataError(f"dataset={path}: no dataset here, {INFO_FILE} is missing. Expected a LeRobotDataset.")
    return str(read_json(path / INFO_FILE).get("codebase_version"))


def fetch(name: str) -> Path:
    """Return the folder of hub:<owner>/<name>[@<revision>]: LeRobot's own folder of it, its cache, or a download.

    `HF_LEROBOT_HOME` and `HF_HUB_OFFLINE=1` are obeyed as LeRobot obeys them.

    Raises:
        DataError: the hub does not have it, or cannot be reached.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, RevisionNotFoundError
    from lerobot.utils import constants

    ident, _, revision = name.removeprefix(HUB).partition("@")
    owner, _, rest = ident.partition("/")
    own = constants.HF_LEROBOT_HOME / ident
    if not revision and owner and rest and is_plain(owner) and is_plain(rest) and (own / INFO_FILE).is_file():
        return own
    problem: Exception | None = None
    for wanted in [revision] if revision else _REVISIONS:
        try:
            return Path(
                snapshot_download(
                    ident, repo_type="dataset", revision=wanted, cache_dir=constants.HF_LEROBOT_HUB_CACHE,
                    allow_patterns=[f"{part}/**" for part in PARTS],
                )
            )  # fmt: skip
        except (RevisionNotFoundError, LocalEntryNotFoundError) as error:
            problem = problem or error
        except (HfHubHTTPError, HFValidationError, OSError) as error:
            problem = error
            break
    first = str(problem).strip().splitlines()[0]
    raise DataError(
        f"dataset={HUB}{name.removeprefix(HUB)}: could not be fetched ({first}). Expected {HUB}<owner>/<name>"
        "[@<revision>]; without a network give the folder of a copy."
    ) from problem


@contextlib.contextmanager
def copied(source: Path, out: Path) -> Iterator[Path]:
    """Yield a copy of a dataset in a new folder beside `out`, which becomes `out` at the end of the block.

    Films are hard links where the disk allows, tables are copies. A dataset of format v2.1 is converted.

    Raises:
        DataError: `out` exists, a link leads out of `source`, or the conversion fails.
    """
    if out.exists():
        raise DataError(f"out={out}: exists. Remove it, or give another folder.")
    check_links(source, error=DataError)
    old = format_of(source) == OLD
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.import-") as folder:
        copy = Path(folder) / "dataset"
        for part in PARTS:
            for file in visible(p for p in (source / part).rglob("*") if p.is_file()):
                _place(file, copy / file.relative_to(source))
        if old:
            _convert(copy, source)
        try:
            yield copy
        except DataError as error:  # the copy is gone when this is read
            raise DataError(str(error).replace(str(copy), str(source))) from error
        copy.rename(out)


def _place(file: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):  # another disk
        if file.suffix == ".mp4":  # large, and never changed in place
            os.link(file.resolve(), to)
            return
    shutil.copyfile(file, to)


def _convert(root: Path, source: Path) -> None:
    """Convert a copy of `source`, of format v2.1, in place, by LeRobot's own converter, without a network."""
    features = read_json(root / INFO_FILE).get("features")
    if not isinstance(features, dict) or not all(map(is_plain, features)):
        raise DataError(f"{INFO_FILE}: features: expected names without / \\ and .., of which paths are made")
    from lerobot.scripts.convert_dataset_v21_to_v30 import convert_dataset

    try:
        convert_dataset(repo_id="local/dataset", root=root, push_to_hub=False)
    except Exception as error:  # of a damaged dataset: LeRobot lets any through
        raise DataError(
            f"{source}: LeRobot could not convert it from {OLD} ({type(error).__name__}: "
            f"{str(error).replace(str(root), str(source))}). Copy the whole dataset again."
        ) from error
    shutil.rmtree(root.with_name(f"{root.name}_old"), ignore_errors=True)

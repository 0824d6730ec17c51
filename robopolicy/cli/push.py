"""`robopolicy push`: put a policy or a dataset on the Hugging Face hub, for the commands of LeRobot and ours."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from robopolicy.core.errors import ConfigError, RobopolicyError
from robopolicy.core.untrusted import check_links
from robopolicy.datasets.foreign import PARTS
from robopolicy.datasets.inspect import data_check
from robopolicy.datasets.source import INFO_FILE
from robopolicy.policies.find import find_policy, is_ours
from robopolicy.policies.lerobot.export import write_policy
from robopolicy.policies.lerobot.find import WANTED

VERSION = "v3.0"  # LeRobot's format; its reader looks for a revision of this name
_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_KEPT = {  # by kind of repository: what is read there again, and nothing else that lies in the folder
    "dataset": [f"{part}/*.{end}" for part in PARTS for end in ("json", "jsonl", "parquet", "mp4")],
    "model": [*WANTED, "*.md"],
}
_CARD = """---
library_name: robopolicy
tags: [robotics, LeRobot]
---

A robot policy of robopolicy, as LeRobot's type `robopolicy`.

    robopolicy eval checkpoint=hub:{repo} task=<task> out=runs/{name}
"""


def push(*, source: Path, repo: str, private: bool = True, message: str = "robopolicy push") -> str:
    """Upload a policy or a dataset to a repository of the hub, which is made if it is not there.

    A policy of ours is exported first, so that LeRobot's commands run it too. A dataset is checked first, and tagged
    with the version of its format.

    Args:
        source: run directory, checkpoint or policy directory; or a LeRobotDataset v3.
        repo: <owner>/<name>. private: of a new repository. message: of the commit.

    Returns:
        Address of the commit.

    Raises:
        ConfigError: `repo` is no name of the hub's. CheckpointError, DataError: nothing of use lies in `source`.
        RobopolicyError: the hub refused it, or cannot be reached.
    """
    if not _NAME.fullmatch(repo) or ".." in repo:
        raise ConfigError(f"repo={repo!r}: expected <owner>/<name> of the hub, e.g. repo=me/pick")
    if (source / INFO_FILE).is_file():
        data_check(dataset=source)
        return _upload(source, repo, "dataset", private, message)
    folder = find_policy(source)
    if not is_ours(folder):
        return _upload(folder, repo, "model", private, message)
    with tempfile.TemporaryDirectory() as made:
        out = Path(made) / "policy"
        write_policy(source, out)
        if not (out / "README.md").exists():
            (out / "README.md").write_text(_CARD.format(repo=repo, name=repo.partition("/")[2]), encoding="utf-8")
        return _upload(out, repo, "model", private, message)


def _upload(folder: Path, repo: str, kind: str, private: bool, message: str) -> str:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    check_links(folder)
    hub = HfApi()
    try:
        hub.create_repo(repo, private=private, repo_type=kind, exist_ok=True)
        done = hub.upload_folder(
            repo_id=repo, folder_path=folder, repo_type=kind, commit_message=message, allow_patterns=_KEPT[kind]
        )
        if kind == "dataset":
            hub.create_tag(repo, tag=VERSION, repo_type=kind, exist_ok=True)
    except (HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OSError) as error:
        first = str(error).strip().splitlines()[0]
        raise RobopolicyError(f"repo={repo}: could not be pushed ({first}). Sign in by `hf auth login`, with a token "
                              "that may write there.") from error  # fmt: skip
    print(f"pushed: {done.commit_url}")
    return str(done.commit_url)

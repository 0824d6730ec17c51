"""Tell rows and films of a run's newest checkpoint from those of others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from robopolicy.policies.find import policy_digest
from robopolicy.utils.storage import MANIFEST, checkpoints_in

_PLAYED = re.compile(r"(.*)/(step_\d+)(?:_\d+)?(?:@(\w+))?")  # in the column `policy` of rows: run/checkpoint@digest


def older_checkpoint(path: Path, policies: Iterable[object], *, own: bool = False) -> str:
    """Return the checkpoint of a run that is among `policies` and is not its newest; "" for none.

    Args:
        policies: names in the column `policy` of rows.
        own: they are of this run, whatever it was called then. So a later checkpoint, or other weights of the same
            step, were removed.
    """
    newest = max(checkpoints_in(path / "checkpoints"), key=lambda folder: folder.name, default=None)
    if newest is None:
        return ""
    played = [match for policy in policies if (match := _PLAYED.fullmatch(str(policy))) is not None]
    for match in sorted(played, key=lambda found: found[2]):
        step, same = match[2], newest.name.startswith(match[2])
        if own and not (same and _is_of(newest, match[3])):
            return step
        if match[1] == path.resolve().name and step < newest.name[: len(step)]:
            return step
    return ""


def played_run(policies: Iterable[object]) -> str:
    """Return the name of the run, or policy, that all `policies` are of; "" where they are of several."""
    names = {re.split("[/@]", str(policy))[0] for policy in policies}
    return names.pop() if len(names) == 1 else ""


def holds_evaluations_alone(path: Path) -> bool:
    """Return whether a folder is one of `eval out=` or `compare out=`: nothing of a training is there."""
    training = ("config.yaml", "spec.json", "metrics.jsonl")
    return any(path.glob("episodes*")) and not any((path / name).is_file() for name in training)


def _is_of(checkpoint: Path, digest: str | None) -> bool:
    """Return whether rows with this digest are of the policy in `checkpoint`; unknown ones are."""
    folder = checkpoint / "policy"
    return digest is None or not (folder / MANIFEST).is_file() or policy_digest(folder).startswith(digest)

"""Name a task other than that of a run's training: its rows must not take the place of the run's own."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from robopolicy.core.trees import flatten
from robopolicy.evaluation.policy_ref import PolicyRef, trained_task
from robopolicy.reporting.settings import WORKERS, task_name

_MOST, _LENGTH = 3, 60  # keys that are spelled out, and letters
_UNFIT = re.compile(r"[^\w.]+")  # for the name of a file


def task_label(given: dict[str, Any] | None, ref: PolicyRef) -> str:
    """Return "" for the task of the run's training, or where it had none; else a name for `given`."""
    own = trained_task(ref)
    if given is None or own is None:
        return ""
    a, b = (_values(node) for node in (given, own))
    changed = sorted(key for key in {*a, *b} if a.get(key) != b.get(key))
    if not changed:
        return ""
    name, before = (task_name({"task": node}) for node in (given, own))
    said = name
    if name == before and len(changed) <= _MOST:
        said = "-".join(f"{key.rpartition('.')[2]}_{a.get(key)}" for key in changed)
    digest = hashlib.sha256(json.dumps(a, sort_keys=True).encode()).hexdigest()[:6]
    return f"{_UNFIT.sub('_', said)[:_LENGTH].strip('_')}-{digest}"


def _values(node: dict[str, Any]) -> dict[str, str]:
    """Return the keys that make a task, by their values as text."""
    flat = flatten({key: value for key, value in node.items() if key not in WORKERS})
    return {key: json.dumps(value, default=str) for key, value in flat.items()}

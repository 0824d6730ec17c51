"""Recognise the teacher of a resumed training."""

from __future__ import annotations

from typing import Any

from robopolicy.core.errors import CheckpointError
from robopolicy.policies.base import Policy


def fingerprint(policy: Policy) -> float:
    """Return the sum of absolute weights, to recognise the teacher."""
    return float(sum(p.detach().double().abs().sum() for p in policy.parameters()))


def check_same_teacher(state: dict[str, Any], teacher: Policy) -> None:
    """Compare the teacher with the one of a saved `state`; older checkpoints of a distillation say nothing of it.

    Raises:
        CheckpointError: its weights are others.
    """
    if "teacher" in state and abs(state["teacher"] - (found := fingerprint(teacher))) > 1e-6 * abs(found):
        raise CheckpointError(
            "teacher: its weights are not those that the run began with. Restore them, or give a new run_dir."
        )

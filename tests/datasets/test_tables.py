"""tables.py: how recorded episodes ended, of datasets that say less than ours."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import torch

from robopolicy.datasets.tables import Columns, read_outcomes

DONE = [False, True, False, True]  # two episodes of two frames: a failure, then a success
WON = [False, False, False, True]


def terminated(**columns: list[Any]) -> list[bool]:
    table = pa.table({f"next.{key}": value for key, value in columns.items()})
    source: Any = SimpleNamespace(root=Path("data"))
    return read_outcomes(Columns(table, torch.tensor([0, 2, 4]), source), "recorded")[1].tolist()


@pytest.mark.parametrize(
    "outcome",
    [{"success": WON}, {"reward": [0.0, 0.0, 0.0, 1.0]}, {"success": WON, "reward": [0.1, 0.2, 0.3, 0.4]}],
    ids=["success", "reward", "success before reward"],
)
def test_a_failure_whose_end_has_no_reason_is_cut_and_not_terminated(outcome: dict[str, list[Any]]) -> None:
    """A terminated transition has a target without a value of what follows: the critic would learn 0 there."""
    assert terminated(done=DONE, **outcome) == [False, False, False, True]


def test_an_end_without_any_outcome_is_not_a_termination() -> None:
    assert terminated(done=DONE) == [False] * 4


def test_a_recorded_reason_counts() -> None:
    """The task itself ended the failure, and a time limit cut the success."""
    assert terminated(done=DONE, success=WON, truncated=[False, False, False, True]) == [False, True, False, False]

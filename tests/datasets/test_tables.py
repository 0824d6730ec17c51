"""tables.py: how recorded episodes ended, of datasets that say less than ours."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import torch

from robopolicy.core.errors import DataError
from robopolicy.datasets.tables import Columns, read_driver, read_outcomes

DONE = [False, True, False, True]  # two episodes of two frames: a failure, then a success
WON = [False, False, False, True]


def outcomes(**columns: list[Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, bool]:
    table = pa.table({f"next.{key}": value for key, value in columns.items()})
    source: Any = SimpleNamespace(root=Path("data"))
    return read_outcomes(Columns(table, torch.tensor([0, 2, 4]), source), "recorded")


def terminated(**columns: list[Any]) -> list[bool]:
    return outcomes(**columns)[1].tolist()


def success(**columns: list[Any]) -> list[bool]:
    return outcomes(**columns)[2].tolist()


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


@pytest.mark.parametrize("outcome", [{"success": WON}, {"reward": [0.0, 0.0, 0.0, 1.0]}], ids=["success", "reward"])
def test_without_marked_ends_an_episode_that_ends_in_success_terminates(outcome: dict[str, list[Any]]) -> None:
    """A last frame that does not terminate has no successor, so the reward of the success would not be learned."""
    assert terminated(**outcome) == [False, False, False, True]
    assert terminated(**outcome, truncated=[False] * 4) == [False, False, False, True]
    assert terminated(**outcome, truncated=[False, True, False, True]) == [False] * 4
    assert terminated(success=[True, False, True, False]) == [False] * 4


@pytest.mark.parametrize(
    ("reward", "won"),
    [
        ([0.0, 0.0, 0.0, 1.0], [False, False, False, True]),
        ([0.0, 0.0, 0.0, 0.0], [False] * 4),
        ([0.0, 0.0, 0.1, 1.0], [False] * 4),
        ([1.0, 1.0, 1.0, 1.0], [False] * 4),
    ],
    ids=["sparse", "all failed", "shaped", "for every step"],
)
def test_a_reward_of_one_at_the_end_alone_says_success_where_nothing_else_does(
    reward: list[float], won: list[bool]
) -> None:
    """LeRobot's HIL-SERL records rewards and ends, and no `next.success`."""
    assert success(done=DONE, reward=reward) == won


def test_with_minus_one_a_step_a_reward_of_zero_says_success() -> None:
    """Fetch's convention: a failure that the time limit cut is no termination, and the success is one."""
    reward, end, won, known = outcomes(done=DONE, reward=[-1.0, -1.0, -1.0, 0.0])
    assert end.tolist() == won.tolist() == [False, False, False, True] and known
    assert reward.tolist() == [-1.0, -1.0, -1.0, 0.0]


def test_of_shaped_rewards_nothing_is_said_unless_the_cuts_are_known() -> None:
    shaped = [0.3, 0.5, 0.4, 0.9]
    assert not outcomes(done=DONE, reward=shaped)[3] and terminated(done=DONE, reward=shaped) == [False] * 4
    cut = outcomes(done=DONE, reward=shaped, truncated=[False, True, False, False])
    assert cut[3] and cut[1].tolist() == [False, False, False, True]


@pytest.mark.parametrize("key", ["success", "done", "truncated"])
@pytest.mark.parametrize("value", [0.3, float("nan"), 2.0])
def test_a_flag_is_0_or_1(key: str, value: float) -> None:
    flags = {"done": [0.0, 1.0, 0.0, 1.0], "success": [0.0] * 4, "truncated": [0.0] * 4}
    flags[key] = [0.0, 1.0, value, 1.0]
    with pytest.raises(DataError, match=rf"'next.{key}' is {value} in episode 1, frame 2, expected 0 or 1"):
        outcomes(**flags)


def test_recorded_success_wins_over_rewards() -> None:
    assert success(done=DONE, reward=[0.0, 1.0, 0.0, 1.0], success=WON) == WON


@pytest.mark.parametrize(
    ("rows", "shape", "said"),
    [
        ([[1.0], [2.0, 3.0, 4.0]], (2,), "; episode 0, frame 0 has 1"),
        ([[[1.0, 2.0], [3.0, 4.0]], [[5.0], [6.0, 7.0, 8.0]]], (2, 2), ""),
        ([[[1.0]], [[2.0, 3.0, 4.0]]], (2,), "; episode 0, frame 0 has 1"),
    ],
    ids=["vectors", "matrices", "other axes"],
)
def test_rows_of_other_lengths_are_refused_though_their_sum_is_right(rows: list[Any], shape: Any, said: str) -> None:
    source: Any = SimpleNamespace(root=Path("data"))
    columns = Columns(pa.table({"state": rows}), torch.tensor([0, 2]), source)
    with pytest.raises(DataError, match=re.escape(f"'state' must have shape {shape} in every frame{said}") + "$"):
        columns("state", shape)


def test_a_column_of_structs_is_named_as_such() -> None:
    source: Any = SimpleNamespace(root=Path("data"))
    columns = Columns(pa.table({"state": [{"x": 1.0}, {"x": 2.0}]}), torch.tensor([0, 2]), source)
    with pytest.raises(DataError, match=r"'state' must hold numbers, found struct<x: double>"):
        columns("state", (1,))


def driver(values: list[Any]) -> list[int] | None:
    table = pa.table({"complementary_info.is_intervention": values})
    source: Any = SimpleNamespace(root=Path("data"))
    found = read_driver(Columns(table, torch.tensor([0, len(values)]), source))
    return None if found is None else found.tolist()


@pytest.mark.parametrize("values", [[False, True, True], [0.0, 1.0, 1.0]], ids=["bool", "float"])
def test_corrections_of_lerobots_hil_serl_are_a_humans_frames(values: list[Any]) -> None:
    assert driver(values) == [0, 1, 1]
    with pytest.raises(DataError, match=r"is 0\.5 in frame 2, expected 0 \(policy\)"):
        driver([0.0, 1.0, 0.5])

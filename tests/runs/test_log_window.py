"""Means between two log entries, also over an interruption."""

from __future__ import annotations

import pytest

from robopolicy.runs.log_window import LogWindow, interval
from tests.fakes import NoTracker


@pytest.mark.parametrize(
    ("steps", "most", "expected"), [(3, 100, 1), (300, 100, 15), (2_000, 100, 100), (9_999, 100, 100)]
)
def test_a_short_training_has_twenty_points(steps: int, most: int, expected: int) -> None:
    assert interval(steps, most=most) == expected


def test_means_are_of_a_window_and_survive_a_resume() -> None:
    tracker, window = NoTracker(), LogWindow(4)
    for step in range(1, 7):
        window.add({"loss": float(step)}, step, tracker)
    again = LogWindow(5)  # the run was made longer, so its points lie further apart
    again.load_state_dict({"step": 6, **window.state_dict()})
    for step in range(7, 11):
        again.add({"loss": float(step)}, step, tracker)
    assert [(step, row["train/loss"]) for step, row in tracker.rows] == [(4, 2.5), (10, 7.5)]
    assert all(row["train/updates_per_s"] > 0 for _, row in tracker.rows) and again.means == {"loss": 7.5}


def test_a_checkpoint_without_a_count_is_taken_for_one_of_the_same_window() -> None:
    window, tracker = LogWindow(4), NoTracker()
    window.load_state_dict({"step": 6, "sums": {"loss": 11.0}, "means": {}})
    for step in (7, 8):
        window.add({"loss": float(step)}, step, tracker)
    assert tracker.rows[0][1]["train/loss"] == 6.5


def test_a_metric_that_some_updates_lack_is_averaged_over_the_others() -> None:
    tracker, window = NoTracker(), LogWindow(4)
    for step in range(1, 4):
        window.add({"critic": 1.0} | ({"actor": 6.0} if step == 2 else {}), step, tracker)
    again = LogWindow(4)
    again.load_state_dict({"step": 3, **window.state_dict()})
    again.add({"critic": 1.0, "actor": 2.0}, 4, tracker)
    assert again.means == {"critic": 1.0, "actor": 4.0}

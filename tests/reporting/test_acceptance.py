"""Acceptance criteria against rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from robopolicy.core.errors import DataError
from robopolicy.reporting.acceptance import Criterion, check_criterion, read_goals
from robopolicy.reporting.result_rows import measured
from tests.reporting.test_result_rows import rate

CRITERION = Criterion(text="", setting="refined", metric="success_rate", min=0.97, count=2, episodes=500)


@pytest.mark.parametrize(
    ("rows", "status", "reason"),
    [
        ([], "not measured", "no such rows"),
        ([rate(490, 0), rate(485, 1)], "met", ""),
        ([rate(490, 0), rate(484, 1)], "not met", "1 of 2 rows miss it: refined seed 1"),
        ([rate(484, 0)], "not met", "1 of 1 rows miss it: refined seed 0"),
        ([rate(490, 0)], "incomplete", "1 of 2 training seeds"),
        ([rate(490, 0), rate(98, 1, episodes=100)], "incomplete", "100 of 500 episodes"),
        ([rate(490, 0), rate(490, 1), rate(484, 2)], "not met", "1 of 3 rows miss it: refined seed 2"),
        ([rate(490, 0), rate(490, 1), rate(480, "all")], "met", ""),  # seeds count one by one
        ([rate(490, 0, setting="base")], "not measured", "no such rows"),
    ],
)
def test_criteria(rows, status, reason):
    found = check_criterion(CRITERION, rows)
    assert (found.status, found.reason) == (status, reason)


def test_criteria_on_other_fields_and_settings():
    rows = [rate(490, s, setting=f"{t}/refined", env_steps=n) for t, s, n in [("a", 0, 10), ("a", 1, 20), ("b", 0, 30)]]
    steps = Criterion(text="", setting="*/refined", metric="success_rate", field="env_steps", max=30, settings=2)
    assert check_criterion(steps, rows) == ("met", "10 to 30", "")
    assert check_criterion(replace(steps, min=None, max=None), rows).status == "shown"
    few = [check_criterion(replace(steps, max=15, misses=n), rows).status for n in (0, 1, 2)]
    assert few == ["not met", "not met", "met"]  # both settings miss it
    every = {"text": "", "setting": "*/refined", "metric": "success_rate"}
    assert check_criterion(Criterion(**every, settings=3), rows).reason == "2 of 3 settings"
    assert check_criterion(Criterion(**every, count=2), rows).reason == "1 of 2 training seeds"
    walls = Criterion(**every, field="wall_s", max=9)
    assert check_criterion(walls, rows) == ("incomplete", "–", "3 rows without wall_s")
    ratio = [measured(id="speed", setting="rollout", metric="ratio", interval=0.9, command="x")]
    assert check_criterion(Criterion(text="", setting="rollout", metric="ratio", min=0.85), ratio) == (
        "met",
        "0.9",
        "",
    )


def test_criteria_with_typos_are_named(tmp_path):
    path = tmp_path / "acceptance_criteria.json"
    path.write_text('[{"id": "a", "title": "A", "criteria": [{"text": "", "setting": "s", "metric": "m", "mim": 1}]}]')
    with pytest.raises(DataError, match=r"acceptance_criteria\.json .*\n  - 0\.criteria\.0\.mim: unknown key"):
        read_goals(path)
    path.write_text('[{"id": "a", "title": "A", "criteria": [{"text": "", "setting": "s"}]}]')
    with pytest.raises(DataError, match=r"0\.criteria\.0\.metric: Field required"):
        read_goals(path)

"""What each instruction gained or lost, from rows of the same episodes."""

from __future__ import annotations

import pandas as pd
import pytest

from robopolicy.core.errors import DataError
from robopolicy.evaluation.episode_table import COLUMNS, EpisodeTable
from robopolicy.evaluation.forgetting import forgetting, frame, table


def rows(outcomes: dict[str, list[int]]) -> EpisodeTable:
    lines = [(task, bool(ok)) for task, found in outcomes.items() for ok in found]
    made = pd.DataFrame(
        {name: [{"str": "", "bool": False}.get(kind, 0) for _ in lines] for name, kind in COLUMNS.items()}
    )
    made["seed"], made["ended_by"] = range(len(lines)), "truncated"
    made["task"], made["success_once"] = zip(*lines, strict=True)
    return EpisodeTable(made)


def test_by_hand():
    before = rows({"pick": [1] * 12 + [0] * 8, "press": [0] * 10 + [1] * 10, "push": [1, 0] * 10})
    after = rows({"pick": [0] * 12 + [0] * 8, "press": [1] * 20, "push": [0, 1] * 10})
    found = forgetting(before, after)
    assert [(c.task, c.episodes, c.before.value, c.after.value) for c in found] == [
        ("pick", 20, 0.6, 0.0), ("push", 20, 0.5, 0.5), ("press", 20, 0.5, 1.0),
    ]  # fmt: skip
    # One-sided exact McNemar: 12 of 12 discordant pairs fell, 2^-12; 10 of 20; 0 of 10. Holm: the least times three.
    assert found[0].p_worse == pytest.approx(3 * 2.0**-12) and [c.fell for c in found] == [True, False, False]
    assert found[0].difference.value == pytest.approx(-0.6) and found[0].difference.high < 0.0
    assert found[1].p_worse == 1.0 and found[2].p_worse == 1.0
    lines = table(found).splitlines()
    assert len(lines) == 4 and lines[1].startswith("   60.0%    0.0%   -60.0 (") and lines[1].endswith("pick  FELL")
    assert frame(found)["task"].tolist() == ["pick", "push", "press"]


def test_another_instruction_in_the_same_episode_is_refused():
    with pytest.raises(DataError, match="1 of 3 episodes had another instruction before than after"):
        forgetting(rows({"pick": [1, 0], "push": [1]}), rows({"pick": [1], "push": [1, 1]}))
    with pytest.raises(DataError, match="seeds must be the same"):
        forgetting(rows({"pick": [1, 0]}), rows({"pick": [1]}))

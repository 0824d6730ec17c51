from __future__ import annotations

import json
from pathlib import Path

import pytest

from robopolicy.core.errors import ConfigError, DataError
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.training_seeds import common_names, compare_pooled
from tests.evaluation.points import make_rows


def rows(successes: int, **changes: object) -> EpisodeTable:
    return make_rows([True] * successes + [False] * (100 - successes), **changes)  # type: ignore[arg-type]


def test_pairs_are_listed_and_pooled(tmp_path: Path) -> None:
    a, b = [rows(n) for n in (60, 59, 58)], [rows(n) for n in (65, 68, 71)]
    found = compare_pooled(a, b, pair_names=[(f"old-s{i}", f"new-s{i}") for i in range(3)])
    assert (found.a, found.b) == ("old", "new")
    assert found.difference.value == pytest.approx(0.09) and found.rates == pytest.approx((0.59, 0.68))
    assert found.verdict == "new was ahead in these trainings: the interval does not hold 0"
    assert 0.0 < found.difference.low <= 0.05 and 0.13 <= found.difference.high < 0.2
    lines = found.text().splitlines()
    for i, (line, points) in enumerate(zip(lines[2:5], ("+5.0", "+9.0", "+13.0"), strict=True)):
        assert line.startswith(f"  new-s{i} − old-s{i}") and f"{points} points" in line and "McNemar" in line
    assert lines[5].startswith("  mean of 3") and "59.0%" in lines[5] and "+9.0 points" in lines[5]
    assert "too narrow" in lines[-1]
    stored = json.loads(found.save(tmp_path / "training_seeds.json").read_text())
    assert [c["a"] for c in stored["seeds"]] == ["old-s0", "old-s1", "old-s2"]
    assert stored["difference"]["value"] == pytest.approx(0.09)


def test_seeds_that_disagree_show_no_difference() -> None:
    """Two of three trainings gain, one loses as much: episodes alone would claim a difference."""
    found = compare_pooled([rows(50)] * 3, [rows(70), rows(70), rows(30)])
    assert found.difference.low < 0.0 < found.difference.high
    assert found.verdict.startswith("no difference shown")
    enough = compare_pooled([rows(50)] * 10, [rows(60)] * 10)
    assert not enough.caution and enough.verdict == "B is better: the interval does not hold 0"


def test_what_cannot_be_paired_is_refused() -> None:
    for a, b in (([rows(5)], [rows(5), rows(6)]), ([], [])):
        with pytest.raises(ConfigError, match=f"^a, b: .*found {len(a)} and {len(b)}"):
            compare_pooled(a, b)
    with pytest.raises(DataError, match="same task and episodes"):
        compare_pooled([rows(5), rows(5, start=7)], [rows(5), rows(5, start=7)])


def test_names_of_algorithms_are_the_common_part() -> None:
    assert common_names([("bc-s0", "fine_seed_1"), ("bc-s12", "fine_seed_2")]) == ("bc", "fine")
    assert common_names([("bc3", "residual-s0")]) == ("bc3", "residual")
    assert common_names([("residual-s0", "td3-s0"), ("residual-s1", "td3-s1")]) == ("residual", "td3")
    assert common_names([("x", "y"), ("z", "y")]) == ("A", "B")

from __future__ import annotations

import json

import pytest

from robopolicy.core.errors import DataError
from robopolicy.core.rng import episode_seeds
from robopolicy.evaluation.compare import compare, format_p, worse_than_base
from robopolicy.evaluation.rollout import evaluate
from robopolicy.evaluation.statistics import Pairs
from tests.evaluation.points import make_rows
from tests.fakes import PointEnv, PointPolicy


def test_paired_table_by_hand(tmp_path):
    """Bentur et al. (2009): both 1, only A 1, only B 7, neither 12."""
    a = make_rows([True] * 2 + [False] * 19)
    b = make_rows([True] + [False] + [True] * 7 + [False] * 12)
    found = compare(a, b, names=("before", "after"))
    assert found.pairs == Pairs(1, 1, 7, 12)
    assert found.p_value == 18 / 256
    assert found.difference.value == pytest.approx(6 / 21)
    assert found.verdict == "no difference shown at the 5% level"
    text = found.text()
    assert "21 paired episodes" in text and "after − before: +28.6 points (+2.6 to +51.7, Tango)" in text
    assert "exact McNemar p = 0.070" in text
    stored = json.loads(found.save(tmp_path / "compare.json").read_text())
    assert stored["pairs"] == {"both": 1, "only_a": 1, "only_b": 7, "neither": 12}
    assert stored["mcnemar_p"] == 18 / 256


def test_order_of_rows_does_not_matter():
    a, b = make_rows([True, False, False, False]), make_rows([True, True, False, False])
    turned = type(b)(b.frame.iloc[::-1])
    assert compare(a, turned).pairs == compare(a, b).pairs == Pairs(1, 0, 1, 2)


def test_a_better_policy_is_found_better():
    seeds = episode_seeds("test", 0, 200)
    a = evaluate(PointPolicy(noise=0.08), PointEnv(20), seeds)
    b = evaluate(PointPolicy(noise=0.03), PointEnv(7), seeds)
    found = compare(a, b, names=("base", "refined"))
    assert found.verdict == "refined is better" and found.difference.low > 0.2
    assert compare(b, a, names=("refined", "base")).verdict == "refined is better"
    assert compare(a, a).p_value == 1.0


def test_worse_is_what_the_verdict_says():
    """At 5 of 10 lost the interval is below 0, but the exact test (p = 0.0625) shows no difference."""
    base = make_rows([True] * 10)
    few, more = (compare(base, make_rows([False] * n + [True] * (10 - n))) for n in (5, 6))
    assert few.difference.high < 0 and not few.b_is_worse and few.verdict.startswith("no difference shown")
    assert more.b_is_worse and more.verdict == "A is better" and not compare(base, base).b_is_worse


def test_what_cannot_be_paired_is_refused():
    a = make_rows([True, False])
    with pytest.raises(DataError, match="digest must be one and the same"):
        compare(a, make_rows([True, False], digest="other"))
    with pytest.raises(DataError, match="1 of 2 are in A alone and 1 of 2 in B alone"):
        compare(a, make_rows([True, False], start=1))
    with pytest.raises(DataError, match="both need some"):
        compare(a, make_rows([]))


def test_worse_than_base_is_corrected_for_many_looks():
    base = make_rows([True] * 100 + [False] * 100)
    same = base
    worse = make_rows([True] * 92 + [False] * 108)  # 8 broken, none mended: one-sided p = 1/256
    found = worse_than_base(base, [same] * 3 + [worse])
    assert found[3] == (pytest.approx(-0.04), pytest.approx(4 / 256))
    assert found[0] == (0.0, 1.0)
    many = worse_than_base(base, [same] * 19 + [worse])
    assert many[19][1] == pytest.approx(20 / 256)  # no longer below 0.05


def test_p_values_read_well():
    read = [format_p(p) for p in (0.5, 0.0703125, 0.0034, 3.2e-7, 1e-120)]
    assert read == ["0.50", "0.070", "0.003", "3e-07", "< 1e-99"]

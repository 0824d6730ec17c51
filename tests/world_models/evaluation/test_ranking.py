"""Ranking of policies by imagination, against numbers computed by hand."""

from __future__ import annotations

import pytest

from robopolicy.core.errors import ConfigError
from robopolicy.world_models.evaluation.ranking import rank_correlation, spearman


def test_spearman_by_hand() -> None:
    assert spearman([1.0, 2, 30], [5.0, 6, 7]) == pytest.approx(1.0)
    assert spearman([1.0, 2, 3, 4], [2.0, 1, 4, 3]) == pytest.approx(0.6), "1 − 6·4 / (4·15)"
    assert spearman([1.0, 2, 3], [3.0, 2, 1]) == pytest.approx(-1.0)
    assert spearman([1.0, 1, 2], [1.0, 2, 2]) == pytest.approx(0.5), "ranks 1½ 1½ 3 and 1 2½ 2½: 0.75 / 1.5"
    assert spearman([0.0, 0, 0], [1.0, 2, 3]) == 0.0, "what is all equal orders nothing"


def test_the_interval_is_wide_where_the_order_hangs_on_few() -> None:
    true = [i / 15 for i in range(16)]
    exact = rank_correlation(true, true, resamples=500)
    assert exact == (1.0, 1.0, 1.0)
    swapped = [true[i ^ 1] for i in range(16)]  # neighbours in the wrong order
    good = rank_correlation(swapped, true, resamples=500)
    assert good.value == pytest.approx(1 - 6 * 16 / (16 * 255)) and 0.85 < good.low < good.value
    noise = [true[(7 * i) % 16] for i in range(16)]
    poor = rank_correlation(noise, true, resamples=500)
    assert poor.low < 0.0 < poor.high and poor.high - poor.low > 0.5
    assert rank_correlation(noise, true, resamples=500) == poor, "the same numbers every time"


def test_too_few_policies() -> None:
    with pytest.raises(ConfigError, match="at least 4 policies, found 3 and 3"):
        rank_correlation([0.1, 0.2, 0.3], [0.1, 0.2, 0.3])

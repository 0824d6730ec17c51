"""Golden numbers from published tables or worked by hand; each test names its source."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from robopolicy.core.errors import ConfigError
from robopolicy.evaluation.aggregates import pooled_rate
from robopolicy.evaluation.statistics import (
    Pairs,
    bootstrap,
    holm,
    mcnemar,
    paired_difference,
    unpaired_difference,
    wilson,
)


@pytest.mark.parametrize(
    ("successes", "episodes", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_newcombe_table(successes, episodes, low, high):
    """Newcombe (1998), Stat. Med. 17, 857–872, Table I, method 3."""
    found = wilson(successes, episodes)
    assert found.low == pytest.approx(low, abs=5e-5)
    assert found.high == pytest.approx(high, abs=5e-5)


def test_wilson_bars_of_the_issue():
    """485/500 is 97%, and its lower bound is just above 95% (by hand: centre .966416, half-width .015320)."""
    assert wilson(485, 500).low == pytest.approx(0.951096, abs=1e-6)
    assert wilson(484, 500).low < 0.95


def test_wilson_edges():
    assert wilson(20, 20).high == 1.0
    assert wilson(20, 20).low == pytest.approx(1 - wilson(0, 20).high)
    assert math.isnan(wilson(0, 0).value) and wilson(0, 0)[1:] == (0.0, 1.0)
    assert wilson(5, 10, level=0.99).low < wilson(5, 10).low
    with pytest.raises(ConfigError, match="between 0 and episodes=3, found 4"):
        wilson(4, 3)
    with pytest.raises(ConfigError, match="level"):
        wilson(1, 3, level=95)


def test_unpaired_difference_newcombe_table():
    """Newcombe (1998), Stat. Med. 17, 873–890, Table II, method 10: 56/70 − 48/80, 9/10 − 3/10 and 10/10 − 0/10."""
    for (a, n), (b, m), low, high in (
        ((48, 80), (56, 70), 0.0524, 0.3339),
        ((3, 10), (9, 10), 0.1705, 0.8090),
        ((0, 10), (10, 10), 0.6075, 1.0),
    ):
        found = unpaired_difference(wilson(a, n), wilson(b, m))
        assert found.value == pytest.approx(b / m - a / n)
        assert found.low == pytest.approx(low, abs=5e-5)
        assert found.high == pytest.approx(high, abs=5e-5)


def test_mcnemar_airway_example():
    """Bentur et al. (2009) in Fagerland et al. (2013): (1, 1, 7, 12), exact conditional p = 0.070 = 18/256."""
    pairs = Pairs(both=1, only_a=1, only_b=7, neither=12)
    assert mcnemar(pairs) == 18 / 256
    assert mcnemar(pairs, alternative="better") == 9 / 256
    assert mcnemar(pairs, alternative="worse") == 255 / 256


def test_mcnemar_edges():
    assert mcnemar(Pairs(10, 0, 0, 5)) == 1.0
    assert mcnemar(Pairs(10, 4, 4, 5)) == 1.0  # 2·P(X ≤ 4) exceeds one and is capped
    assert mcnemar(Pairs(0, 0, 10, 0)) == 2 / 1024
    assert 0.0 < mcnemar(Pairs(0, 0, 1000, 0)) < 1e-300
    with pytest.raises(ConfigError, match="two-sided"):
        mcnemar(Pairs(1, 1, 1, 1), alternative="greater")


@pytest.mark.parametrize(
    ("only_a", "only_b", "total", "level", "low", "high", "tolerance"),
    [
        (1, 7, 21, 0.95, 0.026, 0.517, 5e-4),  # Fagerland et al. (2014): airway example, Tango, sign turned
        (25, 28, 618, 0.90, -0.0148, 0.0247, 5e-5),  # R's PropCIs::scoreci.mp(25, 28, 618, 0.90)
        (0, 0, 44, 0.95, -0.0803, 0.0803, 5e-5),  # no discordant pair, by hand: ±z²/(n + z²) = ±3.8415/47.8415
    ],
)
def test_paired_difference_published(only_a, only_b, total, level, low, high, tolerance):
    found = paired_difference(Pairs(0, only_a, only_b, total - only_a - only_b), level=level)
    assert found.low == pytest.approx(low, abs=tolerance)
    assert found.high == pytest.approx(high, abs=tolerance)


def test_paired_difference_edges_and_symmetry():
    assert paired_difference(Pairs(0, 0, 10, 0)).high == 1.0
    assert paired_difference(Pairs(0, 10, 0, 0))[:2] == (-1.0, -1.0)
    forth, back = paired_difference(Pairs(3, 2, 9, 6)), paired_difference(Pairs(3, 9, 2, 6))
    assert forth.low == pytest.approx(-back.high) and forth.high == pytest.approx(-back.low)
    assert paired_difference(Pairs(0, 0, 0, 0))[1:] == (-1.0, 1.0)


def test_paired_difference_covers():
    """2000 simulated comparisons of 50 pairs: the truth lies inside about 95% of the time."""
    rng = random.Random(1)
    inside = 0
    for _ in range(2000):
        counts = [0, 0, 0, 0]
        for _ in range(50):
            u = rng.random()
            counts[0 if u < 0.5 else 1 if u < 0.6 else 2 if u < 0.9 else 3] += 1
        found = paired_difference(Pairs(*counts))
        inside += found.low <= 0.2 <= found.high
    assert 0.935 <= inside / 2000 <= 0.97


def test_pairs_are_counted():
    assert Pairs.of([True, True, False, False, False], [True, False, True, True, False]) == Pairs(1, 1, 2, 1)
    with pytest.raises(ValueError):
        Pairs.of([True], [True, False])


def test_holm_by_hand():
    """Sorted .005·4, .01·3, .03·2, then .04·1 raised to the one before."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_bootstrap():
    values = [float(i % 2) for i in range(400)]
    found = bootstrap([values], resamples=500)
    assert found.value == 0.5
    assert found.low == pytest.approx(wilson(200, 400).low, abs=0.015)  # the two must about agree
    assert found == bootstrap([values], resamples=500)  # seeded
    grouped = bootstrap([[1.0] * 50, [0.0] * 50, [1.0] * 50, [0.0] * 50], resamples=500)
    assert grouped.high - grouped.low > 0.7  # the spread between seeds counts, pooling would give 0.14
    with pytest.raises(ConfigError, match="no empty group"):
        bootstrap([[]])


def test_crossed_draws_count_shared_episodes():
    """Rows that agree in every column are one sample of the columns, not S of them."""
    column = [1.0, 0.0] * 50
    one, five = (pooled_rate([np.array([column] * n)]) for n in (1, 5))
    assert one.value == five.value == 0.5
    assert five.high - five.low == pytest.approx(one.high - one.low, abs=0.03)
    assert five.high - five.low == pytest.approx(2 * 1.96 * 0.05, abs=0.03)
    nested = bootstrap([column] * 5, resamples=500)
    assert nested.high - nested.low < 0.6 * (five.high - five.low)
    apart = pooled_rate([np.array([[1.0] * 50, [0.0] * 50, [1.0] * 50, [0.0] * 50])])
    assert apart.high - apart.low > 0.5
    assert apart == pooled_rate([np.array([[1.0] * 50, [0.0] * 50, [1.0] * 50, [0.0] * 50])])  # seeded
    with pytest.raises(ConfigError, match="crossed_draws"):
        pooled_rate([np.zeros((0, 3))])

"""evaluation/aggregates.py: values computed by hand, and intervals that cover as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from robopolicy.core.errors import ConfigError
from robopolicy.evaluation.aggregates import (
    improvement,
    iqm,
    pooled_difference,
    pooled_rate,
    seeds_rate,
    stratified_bootstrap,
    tasks_iqm,
    tasks_rate,
)
from robopolicy.evaluation.statistics import Pairs, paired_difference, unpaired_difference, wilson


def test_the_interquartile_mean_leaves_out_both_quarters() -> None:
    assert iqm([np.array([0.0, 1.0, 2.0, 9.0]), np.array([3.0, 4.0, 5.0, 100.0])]) == (2 + 3 + 4 + 5) / 4


def test_improvement_counts_pairs_and_ties_by_half() -> None:
    a, b = np.array([0.1, 0.5]), np.array([0.5, 0.6, 0.2])
    assert improvement([a], [b]) == pytest.approx((1 + 0.5 + 1 + 1 + 1 + 0) / 6)
    assert improvement([a, a], [b, a]) == pytest.approx((improvement([a], [b]) + 0.5) / 2)


def test_the_stratified_bootstrap_draws_within_tasks() -> None:
    apart = [np.array([0.0, 0.0]), np.array([1.0, 1.0])]
    found = stratified_bootstrap([apart], lambda scores: float(np.concatenate(scores).mean()))
    assert found == (0.5, 0.5, 0.5), "a bootstrap over all trainings at once would move"
    with pytest.raises(ConfigError, match="training seed"):
        stratified_bootstrap([[np.array([])]], iqm)


def test_all_successes_are_no_certainty() -> None:
    value, low, high = seeds_rate(np.ones((2, 50)))
    assert (value, high) == (1.0, 1.0) and low == pytest.approx(0.9287, abs=1e-3)  # Wilson's of 50 of 50


def test_the_interval_of_a_rate_covers_the_algorithms_mean() -> None:
    rng, hits = np.random.default_rng(0), 0
    for _ in range(30):
        level = np.clip(rng.normal(0.6, 0.08, size=(12, 1)), 0, 1)
        table = (rng.random((12, 100)) < level).astype(float)
        found = seeds_rate(table)
        hits += found.low <= 0.6 <= found.high
    assert hits >= 26


@pytest.mark.parametrize("paired", [True, False])
def test_without_a_single_difference_the_interval_is_no_point(paired: bool) -> None:
    same = [np.ones((3, 50)), np.ones((3, 50))]
    one = pooled_difference(same[:1], same[:1], paired=paired, level=0.95)
    two = pooled_difference(same, same, paired=paired, level=0.95)
    assert one.value == two.value == 0.0
    assert one.low < -0.02 and one.high > 0.02 and 0.5 * one.high < two.high < one.high
    almost = np.ones((3, 50))
    almost[1, 7] = 0.0
    found = pooled_difference([almost], same[:1], paired=paired, level=0.95)
    assert found.low < 0.0 < found.value < found.high
    rates = [np.full((3, 1), 0.5)]
    assert pooled_difference(rates, rates, paired=paired, level=0.95) == (0.0, 0.0, 0.0), "their episodes are not known"


def test_pairing_narrows_a_difference() -> None:
    rng = np.random.default_rng(1)
    hard = rng.random(200)
    a = np.array([(hard < 0.5 + s).astype(float) for s in (0.0, 0.1, -0.1)])
    b = np.array([(hard < 0.6 + s).astype(float) for s in (0.0, 0.1, -0.1)])
    paired, apart = (pooled_difference([a], [b], paired=how, level=0.95) for how in (True, False))
    assert paired.value == apart.value == pytest.approx(b.mean() - a.mean())
    assert paired.low > 0 and paired.high - paired.low < 0.6 * (apart.high - apart.low)
    assert pooled_rate([a, b]).value == pytest.approx((a.mean() + b.mean()) / 2)


@pytest.mark.parametrize("seeds", [1, 3, 10])
def test_more_training_seeds_make_no_more_episodes(seeds: int) -> None:
    """Identical trainings know no more than one: their E episodes are the same."""
    a, b = np.repeat([[1.0] * 6 + [0.0] * 4], seeds, axis=0), np.repeat([[1.0] * 7 + [0.0] * 3], seeds, axis=0)
    paired = pooled_difference([a], [b], paired=True, level=0.95)
    score = paired_difference(Pairs(6, 0, 1, 3))
    assert paired.low <= score.low + 1e-12 and paired.high >= score.high - 1e-12
    apart = pooled_difference([a], [b], paired=False, level=0.95)
    score = unpaired_difference(wilson(6, 10), wilson(7, 10))
    assert apart.low <= score.low + 1e-12 and apart.high >= score.high - 1e-12


def test_one_episode_is_an_outcome_and_no_rate() -> None:
    one = np.ones((3, 1))
    assert pooled_difference([one], [one], paired=True, level=0.95) == (0.0, *paired_difference(Pairs(1, 0, 0, 0))[1:])


def test_intervals_over_tasks_join_those_of_each() -> None:
    alike = [np.ones((3, 50))] * 4
    one = 1.0 - wilson(50, 50).low
    for found in (tasks_rate(alike), tasks_iqm(alike)):
        assert found == pytest.approx((1.0, 1.0 - one / 2, 1.0))
    assert tasks_rate(alike[:1]) == seeds_rate(alike[0])
    assert all(math.isnan(v) for v in tasks_iqm([np.ones((1, 50)), *alike])[1:]), "one training seed has no spread"


def test_rates_alone_have_the_interval_of_the_fewest_episodes() -> None:
    rates = np.full((3, 1), 0.9)
    assert seeds_rate(rates, episodes=20) == pytest.approx(wilson(18, 20))
    assert tasks_rate([rates], episodes=[20]) == pytest.approx(wilson(18, 20))

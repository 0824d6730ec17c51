"""Aggregate success over tasks and training seeds. Pure functions.

Agarwal, Schwarzer, Castro, Courville & Bellemare (2021), NeurIPS 34: few training seeds ask for intervals, and for an
interquartile mean (IQM) that one task cannot decide. Intervals are percentile bootstraps, stratified by task: training
seeds are resampled within each task.

Axes: S training seeds of a setting, which may differ from task to task; E episodes that all of them met.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np
from scipy.stats import trim_mean

from robopolicy.core.errors import ConfigError
from robopolicy.evaluation.statistics import (
    Interval,
    Pairs,
    crossed_draws,
    paired_difference,
    unpaired_difference,
    wilson,
)

_RESAMPLES = 10_000


def iqm(scores: Sequence[np.ndarray]) -> float:
    """Return the mean of the middle half of all `scores`, one array [S] for each task."""
    return float(trim_mean(np.concatenate(scores), 0.25))


def improvement(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> float:
    """Return the probability that a training of B ends above one of A, a tie counted half; the mean over tasks.

    Args:
        a, b: one array [S] for each task, in the same order of tasks.
    """
    return fmean(float((y[:, None] > x).mean() + 0.5 * (y[:, None] == x).mean()) for x, y in zip(a, b, strict=True))


def stratified_bootstrap(
    groups: Sequence[Sequence[np.ndarray]],
    statistic: Callable[..., float],
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap of `statistic(*groups)`; training seeds are drawn within each task of each group.

    Args:
        groups: for each argument of `statistic` one array [S] for each task.

    Raises:
        ConfigError: a task has no training seed.
    """
    if not groups or not all(len(scores) for group in groups for scores in group):
        raise ConfigError("stratified_bootstrap: every task needs at least one training seed")
    rng = np.random.default_rng(seed)
    draws = [
        statistic(*([scores[rng.integers(len(scores), size=len(scores))] for scores in group] for group in groups))
        for _ in range(resamples)
    ]
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2]).tolist()
    return Interval(statistic(*groups), low, high)


def seeds_rate(table: np.ndarray, *, level: float = 0.95) -> Interval:
    """Return the success of several training seeds on one task.

    The interval is the wider of a bootstrap over training seeds and episodes, which is a point where all outcomes are
    alike, and of Wilson's over the episodes.

    Args:
        table: outcomes [S E] on the same episodes.
    """
    pooled, episodes = pooled_rate([table], level=level), table.shape[1]
    score = wilson(round(pooled.value * episodes), episodes, level=level)
    return Interval(pooled.value, min(pooled.low, score.low), min(1.0, max(pooled.high, score.high)))


def pooled_rate(tables: Sequence[np.ndarray], *, level: float = 0.95) -> Interval:
    """Return the mean over tasks of success, with a bootstrap over training seeds and episodes.

    Args:
        tables: outcomes [S E] of each task, 0 to 1; [S 1] where only rates are known.
    """
    return _interval(
        [_draws(table, i) for i, table in enumerate(tables)], fmean(float(t.mean()) for t in tables), level
    )


def pooled_difference(a: Sequence[np.ndarray], b: Sequence[np.ndarray], *, paired: bool, level: float) -> Interval:
    """Return the difference B − A of `pooled_rate`.

    It is no narrower than the score interval of all outcomes as if they were independent (Tango's where `paired`, else
    Newcombe's): the bootstrap is a point where no outcome differs. Intervals of tasks join by the squares of their
    lengths.

    Args:
        a, b: as `pooled_rate`, in the same order of tasks.
        paired: row i of both is the same training seed, and the columns are the same episodes.
    """
    value = fmean(float(y.mean()) - float(x.mean()) for x, y in zip(a, b, strict=True))
    if paired:
        draws = [_draws(y - x, i) for i, (x, y) in enumerate(zip(a, b, strict=True))]
    else:
        draws = [_draws(y, 2 * i + 1) - _draws(x, 2 * i) for i, (x, y) in enumerate(zip(a, b, strict=True))]
    found = _interval(draws, value, level)
    if any(table.shape[1] == 1 for table in (*a, *b)):  # rates, whose episodes are not known
        return found
    scores = [_score_difference(x, y, paired, level) for x, y in zip(a, b, strict=True)]
    below, above = (math.hypot(*lengths) / len(scores) for lengths in
                    zip(*((s.value - s.low, s.high - s.value) for s in scores), strict=True))  # fmt: skip
    return Interval(value, max(-1.0, min(found.low, value - below)), min(1.0, max(found.high, value + above)))


def _score_difference(a: np.ndarray, b: np.ndarray, paired: bool, level: float) -> Interval:
    """Return the score interval of the outcomes [S E] of two settings on one task."""
    if paired:
        return paired_difference(Pairs.of(a.ravel() > 0.5, b.ravel() > 0.5), level=level)
    return unpaired_difference(*(wilson(int((x > 0.5).sum()), x.size, level=level) for x in (a, b)))


def _draws(table: np.ndarray, seed: int) -> np.ndarray:
    return crossed_draws(table, resamples=_RESAMPLES, seed=seed)


def _interval(draws: Sequence[np.ndarray], value: float, level: float) -> Interval:
    low, high = np.quantile(np.mean(draws, axis=0), [(1 - level) / 2, (1 + level) / 2]).tolist()
    return Interval(value, low, high)

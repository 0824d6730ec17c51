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
    from scipy.stats import trim_mean  # half a second of import, for reports over tasks alone

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


def seeds_rate(table: np.ndarray, *, episodes: int | None = None, level: float = 0.95) -> Interval:
    """Return the success of several training seeds on one task.

    The interval is the wider of a bootstrap over training seeds and episodes, which is a point where all outcomes are
    alike, and of Wilson's over the episodes.

    Args:
        table: outcomes [S E] on the same episodes; [S 1] where only rates are known.
        episodes: fewest of a training seed, where only rates are known; None: E.
    """
    return _widened(pooled_rate([table], level=level), _wilson_lengths(table, episodes, level))


def tasks_rate(
    tables: Sequence[np.ndarray], *, episodes: Sequence[int | None] | None = None, level: float = 0.95
) -> Interval:
    """Return the mean over tasks of `seeds_rate`; Wilson's intervals of tasks join by the squares of their lengths.

    Args:
        tables, episodes: of each task, as `seeds_rate`.
    """
    return _widened(pooled_rate(tables, level=level), _joined_lengths(tables, episodes, level))


def tasks_iqm(
    tables: Sequence[np.ndarray], *, episodes: Sequence[int | None] | None = None, level: float = 0.95
) -> Interval:
    """Return the interquartile mean over all trainings of all tasks.

    The interval is a bootstrap over training seeds within each task. It is no narrower than Wilson's intervals of the
    tasks, joined as in `tasks_rate`. Where a task has one training seed, the limits are NaN.

    Args:
        tables, episodes: of each task, as `seeds_rate`.
    """
    scores = [table.mean(axis=1) for table in tables]
    if min(map(len, scores)) < 2:
        return Interval(iqm(scores), math.nan, math.nan)
    return _widened(stratified_bootstrap([scores], iqm, level=level), _joined_lengths(tables, episodes, level))


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

    It is no narrower than the score interval of the episodes (Tango's where `paired`, else Newcombe's): the bootstrap
    is a point where no outcome differs. All training seeds meet the same E episodes, so each episode counts once, with
    the mean of its outcomes. Intervals of tasks join by the squares of their lengths.

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
    if not all(np.isin(table, (0.0, 1.0)).all() for table in (*a, *b)):  # rates, whose episodes are not known
        return found
    scores = [_score_difference(x, y, paired, level) for x, y in zip(a, b, strict=True)]
    return _widened(found, _joined([(s.value - s.low, s.high - s.value) for s in scores]), lowest=-1.0)


def _score_difference(a: np.ndarray, b: np.ndarray, paired: bool, level: float) -> Interval:
    """Return the score interval of two settings on one task: counts over S E outcomes stand for E episodes."""
    if not paired:
        return unpaired_difference(*(_wilson(table, None, level) for table in (a, b)))
    seeds, episodes = a.shape
    counts = Pairs.of(a.ravel() > 0.5, b.ravel() > 0.5)
    only_a, only_b = round(counts.only_a / seeds), round(counts.only_b / seeds)
    alike = max(0, episodes - only_a - only_b)  # Tango's interval does not read how they ended
    return paired_difference(Pairs(alike, only_a, only_b, 0), level=level)


def _wilson(table: np.ndarray, episodes: int | None, level: float) -> Interval:
    """Return Wilson's interval of the mean of `table` [S E] over E episodes, or over `episodes`."""
    count = table.shape[1] if episodes is None else episodes
    return wilson(round(float(table.mean()) * count), count, level=level)


def _wilson_lengths(table: np.ndarray, episodes: int | None, level: float) -> tuple[float, float]:
    """Return the lengths below and above the mean of `table`."""
    score, value = _wilson(table, episodes, level), float(table.mean())
    return max(0.0, value - score.low), max(0.0, score.high - value)


def _joined_lengths(
    tables: Sequence[np.ndarray], episodes: Sequence[int | None] | None, level: float
) -> tuple[float, float]:
    counts = episodes if episodes is not None else [None] * len(tables)
    return _joined([_wilson_lengths(table, n, level) for table, n in zip(tables, counts, strict=True)])


def _joined(lengths: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the lengths of a mean of independent values from the lengths of each."""
    below, above = (math.hypot(*side) / len(lengths) for side in zip(*lengths, strict=True))
    return below, above


def _widened(found: Interval, lengths: tuple[float, float], *, lowest: float = 0.0) -> Interval:
    """Return `found`, no narrower than `lengths` below and above its value, within `lowest` and 1."""
    below, above = lengths
    low = max(lowest, min(found.low, found.value - below))
    return Interval(found.value, low, min(1.0, max(found.high, found.value + above)))


def _draws(table: np.ndarray, seed: int) -> np.ndarray:
    return crossed_draws(table, resamples=_RESAMPLES, seed=seed)


def _interval(draws: Sequence[np.ndarray], value: float, level: float) -> Interval:
    low, high = np.quantile(np.mean(draws, axis=0), [(1 - level) / 2, (1 + level) / 2]).tolist()
    return Interval(value, low, high)

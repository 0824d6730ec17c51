"""Compute intervals and tests for success rates. Pure functions.

Methods, and reasons for them:
    one success rate        Wilson score interval: near nominal coverage even at 0/n and n/n, where Wald's collapses.
    two policies, paired    exact McNemar test, and Tango's score interval for the difference; both read the discordant
                            pairs only through their counts, so luck with the seeds cancels.
    two rates, unpaired     Newcombe's hybrid score interval for the difference.
    many tests              Holm's step-down correction.
    several training seeds  percentile bootstrap that resamples training seeds, and episodes that all of them share.
    anything else           percentile bootstrap, resampling training seeds before the episodes within them.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import NormalDist, fmean
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import bdtr

from robopolicy.core.errors import ConfigError

Alternative = Literal["two-sided", "better", "worse"]


class Interval(NamedTuple):
    """An estimate with its confidence limits."""

    value: float
    low: float
    high: float


class Pairs(NamedTuple):
    """Outcomes of policies A and B on the same seeds, counted."""

    both: int
    only_a: int
    only_b: int
    neither: int

    @property
    def total(self) -> int:
        return sum(self)

    @classmethod
    def of(cls, a: Iterable[bool], b: Iterable[bool]) -> Pairs:
        """Count `a` [E] and `b` [E], in the same order of seeds."""
        counts = Counter((bool(x), bool(y)) for x, y in zip(a, b, strict=True))
        return cls(*(counts[x, y] for x in (True, False) for y in (True, False)))


def wilson(successes: float, episodes: int, *, level: float = 0.95) -> Interval:
    """Score interval of a proportion: Wilson (1927), JASA 22; "method 3" of Newcombe (1998), Stat. Med. 17, 857–872.

    Without episodes: (nan, 0, 1).
    """
    if not 0 <= successes <= episodes:
        raise ConfigError(f"wilson: successes must lie between 0 and episodes={episodes}, found {successes}")
    if episodes == 0:
        return Interval(math.nan, 0.0, 1.0)
    z, n, p = _z(level), episodes, successes / episodes
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    # The ends are exact; rounding would otherwise leave 1e-17 there.
    return Interval(p, 0.0 if successes == 0 else centre - half, 1.0 if successes == episodes else centre + half)


def mcnemar(pairs: Pairs, *, alternative: Alternative = "two-sided") -> float:
    """p-value of the exact conditional McNemar test: discordant pairs are Binomial(only_a + only_b, ½) if A equals B.

    McNemar (1947), Psychometrika 12; the exact form: Fagerland, Lydersen & Laake (2013), BMC Med. Res. Meth. 13:91.
    The exact form is conservative: it never claims more than its level.

    alternative: "better" asks whether B succeeds more often than A, "worse" whether it succeeds less often.
    """
    a, b = pairs.only_a, pairs.only_b
    tails = {"better": a, "worse": b, "two-sided": min(a, b)}
    if alternative not in tails:
        raise ConfigError(f"mcnemar: alternative must be one of {', '.join(tails)}, found {alternative!r}")
    p = float(bdtr(tails[alternative], a + b, 0.5))
    return min(1.0, 2 * p) if alternative == "two-sided" else p


def paired_difference(pairs: Pairs, *, level: float = 0.95) -> Interval:
    """Tango's asymptotic score interval of p_B − p_A: Tango (1998), Stat. Med. 17, 891–908.

    Recommended for paired proportions by Fagerland, Lydersen & Laake (2014), Stat. Med. 33, 2850–2875; unlike Wald's
    it keeps its coverage in small samples and stays informative without a single discordant pair.
    """
    b, c, n = pairs.only_b, pairs.only_a, pairs.total
    if n == 0:
        return Interval(math.nan, -1.0, 1.0)
    value, z = (b - c) / n, _z(level)

    def score(difference: float) -> float:  # decreases from +∞ to −∞ over (−1, 1)
        quad_b = -b - c + (2 * n - b + c) * difference  # A q² + B q + C = 0 with A = 2n, Tango (1998), section 4
        quad_c = -c * difference * (1 - difference)
        q = (math.sqrt(max(0.0, quad_b * quad_b - 8 * n * quad_c)) - quad_b) / (4 * n)
        variance = n * (2 * q + difference * (1 - difference))
        error = b - c - n * difference
        return error / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, error)

    low = -1.0 if value == -1.0 else _bisect(lambda d: score(d) - z, -1.0, value)
    high = 1.0 if value == 1.0 else _bisect(lambda d: score(d) + z, value, 1.0)
    return Interval(value, low, high)


def unpaired_difference(a: Interval, b: Interval) -> Interval:
    """p_b − p_a of two independent rates: "method 10" of Newcombe (1998), Stat. Med. 17, 873–890.

    a, b: Wilson's intervals, of the level that the result is to have.
    """
    value = b.value - a.value
    low = value - math.hypot(b.value - b.low, a.high - a.value)
    return Interval(value, low, value + math.hypot(b.high - b.value, a.value - a.low))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values, in the order given: Holm (1979), Scand. J. Stat. 6. Compare each with the level itself."""
    order = np.argsort(p_values, kind="stable")
    adjusted = np.empty(len(order))
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, factors * np.asarray(p_values)[order]))
    return adjusted.tolist()


def bootstrap(
    groups: Sequence[Sequence[float]],
    *,
    statistic: Callable[[Sequence[float]], float] = fmean,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap of `statistic` over the pooled values: Efron & Tibshirani (1993), chapters 8 and 13.

    `groups`: one sequence per training seed. Groups are drawn first and values within them second, so the spread
    between seeds counts. With fewer than about ten groups it is too narrow: give the rows per seed as well.
    """
    if not groups or any(len(group) == 0 for group in groups):
        raise ConfigError("bootstrap: needs at least one group and no empty group")
    rng = random.Random(seed)
    draws = []
    for _ in range(resamples):
        chosen = rng.choices(groups, k=len(groups)) if len(groups) > 1 else groups
        draws.append(statistic([value for group in chosen for value in rng.choices(group, k=len(group))]))
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2]).tolist()
    return Interval(statistic([value for group in groups for value in group]), low, high)


def crossed_draws(values: np.ndarray, *, resamples: int, seed: int) -> np.ndarray:
    """Return the means [resamples] of `values` [S E] with rows and columns resampled: S training seeds, E episodes.

    Rows and columns are resampled independently, so training seeds and shared episodes both count: the pigeonhole
    bootstrap of Owen (2007), Ann. Appl. Stat. 1, 386–411, mildly conservative. With fewer than about ten rows its
    intervals are too narrow all the same: give the rows as well.
    """
    if values.ndim != 2 or not values.size:
        raise ConfigError(f"crossed_draws: expected values [S E] with S, E ≥ 1, found shape {list(values.shape)}")
    rng, (rows, columns) = np.random.default_rng(seed), values.shape
    weights = [rng.multinomial(n, np.full(n, 1 / n), size=resamples) / n for n in (rows, columns)]
    return ((weights[0] @ values) * weights[1]).sum(axis=1)


def _z(level: float) -> float:
    if not 0 < level < 1:
        raise ConfigError(f"level must lie between 0 and 1, found {level} (0.95 is usual)")
    return NormalDist().inv_cdf((1 + level) / 2)


def _bisect(function: Callable[[float], float], low: float, high: float) -> float:
    """Root of a decreasing function to double precision."""
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if function(middle) > 0 else (low, middle)
    return 0.5 * (low + high)

"""Do policies rank in imagination as they do in truth?"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from robopolicy.core.errors import ConfigError
from robopolicy.evaluation.statistics import Interval

FEWEST = 4  # policies whose order says anything


def ranks(values: Sequence[float]) -> list[float]:
    """1 for the smallest; equal values share the mean of their ranks."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found, i = [0.0] * len(values), 0
    while i < len(order):
        j = i
        while j + 1 < len(order) and values[order[j + 1]] == values[order[i]]:
            j += 1
        for k in order[i : j + 1]:
            found[k] = (i + j) / 2 + 1
        i = j + 1
    return found


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Rank correlation, ties shared; 0 where all of one side are equal: it orders nothing."""
    x, y = ranks(a), ranks(b)
    middle = (len(x) + 1) / 2
    top = math.fsum((p - middle) * (q - middle) for p, q in zip(x, y, strict=True))
    bottom = math.sqrt(math.fsum((p - middle) ** 2 for p in x) * math.fsum((q - middle) ** 2 for q in y))
    return top / bottom if bottom > 0 else 0.0


def rank_correlation(
    imagined: Sequence[float], true: Sequence[float], *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Interval:
    """Spearman of two success rates of the same P policies, with the percentile interval of a bootstrap over policies.

    Raises:
        ConfigError: unequal numbers of policies, or too few.
    """
    if len(imagined) != len(true) or len(true) < FEWEST:
        raise ConfigError(
            f"ranking: expected two rates of each of at least {FEWEST} policies, found {len(imagined)} and {len(true)}"
        )
    rng, pairs = random.Random(seed), list(zip(imagined, true, strict=True))
    drawn = sorted(spearman(*zip(*rng.choices(pairs, k=len(pairs)), strict=True)) for _ in range(resamples))
    tail = (1.0 - level) / 2.0
    low, high = (drawn[min(len(drawn) - 1, int(q * len(drawn)))] for q in (tail, 1.0 - tail))
    value = spearman(imagined, true)
    return Interval(value, min(low, value), max(high, value))

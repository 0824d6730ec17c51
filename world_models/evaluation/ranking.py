"""Compare the order of policies in imagination with their true order."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pandas as pd

from robopolicy.core.errors import ConfigError
from robopolicy.evaluation.statistics import Interval

FEWEST = 4  # policies of a meaningful order


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the rank correlation, with mean ranks for ties; 0 where all values of one side are equal."""
    x, y = (pd.Series(values).rank().tolist() for values in (a, b))
    middle = (len(x) + 1) / 2
    top = math.fsum((p - middle) * (q - middle) for p, q in zip(x, y, strict=True))
    bottom = math.sqrt(math.fsum((p - middle) ** 2 for p in x) * math.fsum((q - middle) ** 2 for q in y))
    return top / bottom if bottom > 0 else 0.0


def rank_correlation(
    imagined: Sequence[float], true: Sequence[float], *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Interval:
    """Return the rank correlation of two success rates of P policies, with a bootstrap interval over policies.

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

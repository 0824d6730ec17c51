"""Pool paired comparisons of several training seeds; one training is one sample of an algorithm."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from robopolicy.core.errors import ConfigError, DataError
from robopolicy.evaluation.aggregates import pooled_difference
from robopolicy.evaluation.compare import Comparison, compare, format_p
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.statistics import Interval
from robopolicy.utils.atomic import write_atomically

_LEVEL = 0.95
ENOUGH = 10  # training seeds; the interval of fewer is too narrow


@dataclass(frozen=True, repr=False)
class PooledComparison:
    """Algorithm B against algorithm A, one comparison for each training seed; `difference` is the mean B − A."""

    a: str
    b: str
    seeds: tuple[Comparison, ...]
    difference: Interval

    @property
    def rates(self) -> tuple[float, float]:
        """Mean success rates of A and B."""
        return fmean(c.rate_a.value for c in self.seeds), fmean(c.rate_b.value for c in self.seeds)

    @property
    def verdict(self) -> str:
        return verdict(self.difference, self.a, self.b, len(self.seeds))

    @property
    def caution(self) -> str:
        """Return the limit of the interval, or "" where there are enough training seeds."""
        few = len(self.seeds) < ENOUGH
        return f"Of fewer than {ENOUGH} training seeds this interval is too narrow: report each line too." * few

    def text(self) -> str:
        """Return one line for each training seed, the pooled difference and its verdict as plain text."""
        first, pairs = self.seeds[0], [f"{c.b} − {c.a}" for c in self.seeds]
        pooled = f"mean of {len(self.seeds)}"
        width = max(len(name) for name in (*pairs, pooled))
        columns = [max(8, len(name)) for name in (self.a, self.b)]
        several = "training seeds" if len(self.seeds) > 1 else "training seed"
        lines = [f"{first.env}: success_once of {len(self.seeds)} {several}, each on the same {first.pairs.total} "
                 f"episodes, {100 * _LEVEL:g}% intervals",
                 f"  {'':<{width}}  {self.a:>{columns[0]}}  {self.b:>{columns[1]}}  difference"]  # fmt: skip
        rows = [(name, c.rate_a.value, c.rate_b.value, c.difference, f"Tango, exact McNemar p = {format_p(c.p_value)}")
                for name, c in zip(pairs, self.seeds, strict=True)]  # fmt: skip
        rows.append((pooled, *self.rates, self.difference, "bootstrap over training seeds and episodes"))
        for name, *values, d, how in rows:
            rates = "  ".join(f"{100 * v:>{n - 1}.1f}%" for v, n in zip(values, columns, strict=True))
            lines.append(f"  {name:<{width}}  {rates}  {_points(d)}, {how}")
        return "\n".join([*lines, "", f"  {self.verdict}", *([f"  {self.caution}"] if self.caution else [])])

    __repr__ = text

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.text())}</pre>"

    def to_dict(self) -> dict[str, Any]:
        """JSON values; rates and differences as fractions."""
        method = "percentile bootstrap over training seeds and episodes (Owen, 2007), at least Tango's of the episodes"
        return {"a": self.a, "b": self.b, "rates": self.rates, "level": _LEVEL, "verdict": self.verdict,
                "difference": {**self.difference._asdict(), "method": method},
                "seeds": [c.to_dict() for c in self.seeds]}  # fmt: skip

    def save(self, path: Path | str) -> Path:
        return write_atomically(path, json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n")


def compare_pooled(
    a: Sequence[EpisodeTable],
    b: Sequence[EpisodeTable],
    *,
    pair_names: Sequence[tuple[str, str]] | None = None,
    names: tuple[str, str] | None = None,
) -> PooledComparison:
    """Compare algorithm B with algorithm A: training seed i of both, paired in order, on the same episodes.

    The interval is a percentile bootstrap that resamples training seeds and episodes (`pooled_difference`), since
    every training meets the same episodes.

    Args:
        a, b: rows of each training seed. pair_names: of the policies of each pair; None: "A 0", "B 0", …
        names: of the algorithms; None: the common beginning of `pair_names`, or "A" and "B".

    Raises:
        ConfigError: the lists are of different length, or empty.
        DataError: the rows are not of the same task, or not of the same episodes.
    """
    check_lengths(len(a), len(b))
    called = pair_names or [(f"A {i}", f"B {i}") for i in range(len(a))]
    found = tuple(compare(x, y, names=pair) for x, y, pair in zip(a, b, called, strict=True))
    if len({(c.env, c.digest) for c in found}) > 1 or len({frozenset(rows.seeds) for rows in a}) > 1:
        raise DataError(
            "compare: the pairs must be of the same task and episodes. Evaluate all with the same task, split and "
            "number of episodes."
        )
    outcomes = [dict(zip(rows.seeds, rows.successes(), strict=True)) for rows in (*a, *b)]
    table = np.array([[own[s] for s in a[0].seeds] for own in outcomes], dtype=np.float64)  # [2 S, E]
    difference = pooled_difference([table[: len(a)]], [table[len(a) :]], paired=True, level=_LEVEL)
    return PooledComparison(*(names or common_names(called)), found, difference)


def verdict(difference: Interval, a: str, b: str, seeds: int) -> str:
    """Say which algorithm is better; with too few training seeds only which was ahead.

    Args:
        difference: of B to A. seeds: training seeds of each.
    """
    if difference.low <= 0.0 <= difference.high:
        return "no difference shown: the interval holds 0"
    ahead = b if difference.value > 0 else a
    if seeds < ENOUGH:
        return f"{ahead} was ahead in these trainings: the interval does not hold 0"
    return f"{ahead} is better: the interval does not hold 0"


def check_lengths(a: int, b: int) -> None:
    """Raise ConfigError where two lists of training seeds cannot be paired."""
    if a != b or not a:
        raise ConfigError(
            f"a, b: expected two lists of equal length, found {a} and {b}. They are paired in order: training seed by "
            "training seed."
        )


def common_names(pairs: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Return the common beginning of the names of each side, without a seed's mark; "A" and "B" where there is none."""
    found = []
    for names in zip(*pairs, strict=True):
        same = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
        found.append(re.sub(r"[-_. ]+(s|seed)?[-_. ]?\d*$", "", "".join(letters[0] for letters in same)))
    a, b = found
    return (a, b) if a and b and a != b else ("A", "B")


def _points(d: Interval) -> str:
    return f"{100 * d.value:+.1f} points ({100 * d.low:+.1f} to {100 * d.high:+.1f})"

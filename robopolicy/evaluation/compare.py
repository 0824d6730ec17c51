"""Compare two policies on the same episodes: pairing removes the variance of the seeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from robopolicy.core.errors import DataError
from robopolicy.evaluation.episode_table import EpisodeTable, rates_html
from robopolicy.evaluation.statistics import Interval, Pairs, holm, mcnemar, paired_difference
from robopolicy.utils.atomic import write_atomically

_CRITERION = "success_once"
_LEVEL = 0.95


@dataclass(frozen=True)
class Comparison:
    """Policy B against policy A on the same seeds; `difference` is B − A."""

    a: str
    b: str
    env: str
    digest: str
    pairs: Pairs
    rate_a: Interval
    rate_b: Interval
    difference: Interval
    p_value: float  # two-sided exact McNemar
    diverged_a: int
    diverged_b: int

    @property
    def significant(self) -> bool:
        """Whether the policies differ, by the exact McNemar test at the 5% level."""
        return self.p_value <= 1 - _LEVEL

    @property
    def b_is_worse(self) -> bool:
        """Whether B is significantly worse than A."""
        return self.significant and self.difference.value < 0

    @property
    def verdict(self) -> str:
        if not self.significant:
            return f"no difference shown at the {100 * (1 - _LEVEL):.0f}% level"
        return f"{self.b if self.difference.value > 0 else self.a} is better"

    def text(self) -> str:
        """Return the paired table and its verdict as plain text."""
        a, b, d, width = self.a, self.b, self.difference, max(len(self.a), len(self.b), 1)
        both, only_a, only_b, neither = self.pairs
        cell = max(len(str(n)) for n in self.pairs) + 2
        lines = [f"{self.env}: {_CRITERION} on {self.pairs.total} paired episodes, {100 * _LEVEL:g}% intervals"]
        for name, rate, diverged in ((a, self.rate_a, self.diverged_a), (b, self.rate_b, self.diverged_b)):
            note = f"  ({diverged} diverged, counted as failures)" if diverged else ""
            lines.append(f"  {name:<{width}}  {100 * rate.value:5.1f}%  ({100 * rate.low:.1f}–{100 * rate.high:.1f}, "
                         f"Wilson){note}")  # fmt: skip
        lines += [
            f"  {b} − {a}: {100 * d.value:+.1f} points ({100 * d.low:+.1f} to {100 * d.high:+.1f}, Tango)",
            "",
            f"  {'':<{width + 9}}{b} succeeds   fails",
            f"  {a:<{width}} succeeds{both:>{cell + len(b)}}{only_a:>{cell + 9}}",
            f"  {'':<{width}} fails   {only_b:>{cell + len(b)}}{neither:>{cell + 9}}",
            "",
            f"  exact McNemar p = {format_p(self.p_value)}: {self.verdict}",
        ]
        return "\n".join(lines)

    __repr__ = text

    def _repr_html_(self) -> str:
        """Return both success rates with their intervals, the difference and the verdict, for a notebook."""
        d, n = self.difference, self.pairs.total
        rates = [(self.a, self.rate_a, n), (self.b, self.rate_b, n)]
        table = rates_html(rates, caption=f"{self.env}, paired episodes", level=_LEVEL)
        points = f"{100 * d.value:+.1f} points ({100 * d.low:+.1f} to {100 * d.high:+.1f}, Tango)"
        text = f"{self.b} − {self.a}: {points}; exact McNemar p = {format_p(self.p_value)}: {self.verdict}"
        return f"{table}<p>{escape(text)}</p>"

    def to_dict(self) -> dict[str, Any]:
        """JSON values; rates and differences as fractions."""
        fields = {k: v._asdict() if isinstance(v, Interval | Pairs) else v for k, v in vars(self).items()}
        fields["mcnemar_p"] = fields.pop("p_value")
        fields["difference"]["method"] = "Tango (1998) score interval"
        return {**fields, "criterion": _CRITERION, "level": _LEVEL, "episodes": self.pairs.total,
                "verdict": self.verdict}  # fmt: skip

    def save(self, path: Path | str) -> Path:
        return write_atomically(path, json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n")


def compare(a: EpisodeTable, b: EpisodeTable, *, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """Compare policy B with policy A, episode by episode.

    Raises:
        DataError: the rows are not of the same task (id and digest) or not of the same seeds.
    """
    env, digest = _same_task(a, b, names)
    outcome_b = dict(zip(b.seeds, b.successes(), strict=True))
    pairs = Pairs.of(a.successes(), [outcome_b[s] for s in a.seeds])
    return Comparison(
        a=names[0], b=names[1], env=env, digest=digest, pairs=pairs, rate_a=a.success_rate(), rate_b=b.success_rate(),
        difference=paired_difference(pairs), p_value=mcnemar(pairs), diverged_a=a.diverged, diverged_b=b.diverged,
    )  # fmt: skip


def worse_than_base(base: EpisodeTable, evaluations: Sequence[EpisodeTable]) -> list[tuple[float, float]]:
    """Test whether a policy was worse than its base at any evaluation of its training.

    Return, per evaluation, the difference to the base and the Holm-adjusted p-value of a one-sided exact McNemar
    test for "worse". None below 0.05: no evaluation was shown to be worse, at a family-wise 5%.
    """
    found = [compare(base, rows, names=("base", f"evaluation {i}")) for i, rows in enumerate(evaluations)]
    adjusted = holm([mcnemar(c.pairs, alternative="worse") for c in found])
    return [(c.difference.value, p) for c, p in zip(found, adjusted, strict=True)]


def format_p(p: float) -> str:
    """Format a p-value: `0.034`, `3e-07`, `< 1e-99`."""
    if p < 1e-99:
        return "< 1e-99"
    return f"{p:.0e}" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def _same_task(a: EpisodeTable, b: EpisodeTable, names: tuple[str, str]) -> tuple[str, str]:
    if not len(a) or not len(b):
        raise DataError(f"compare: {names[0]} has {len(a)} episodes and {names[1]} has {len(b)}; both need some")
    for column in ("env", "digest"):
        left, right = (sorted(set(rows.frame[column])) for rows in (a, b))
        if left != right or len(left) != 1:
            raise DataError(
                f"compare: {column} must be one and the same, {names[0]} has {left} and {names[1]} has {right}. "
                "Evaluate both checkpoints on the same task with the same parameters."
            )
    only_a, only_b = set(a.seeds) - set(b.seeds), set(b.seeds) - set(a.seeds)
    if only_a or only_b:
        raise DataError(
            f"compare: the seeds must be the same; {len(only_a)} of {len(a)} are in {names[0]} alone and "
            f"{len(only_b)} of {len(b)} in {names[1]} alone. Evaluate both with the same split and episode count."
        )
    return str(a.frame["env"].iloc[0]), str(a.frame["digest"].iloc[0])

"""Compare the success of each instruction before and after a refinement."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from robopolicy.core.errors import DataError
from robopolicy.evaluation.compare import compare, format_p
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.statistics import Interval, holm, mcnemar


@dataclass(frozen=True)
class Change:
    """One instruction: success before and after on the same episodes; `difference` is after − before."""

    task: str
    episodes: int
    before: Interval
    after: Interval
    difference: Interval
    p_worse: float  # one-sided exact McNemar test for "fell", Holm-adjusted over all instructions

    @property
    def fell(self) -> bool:
        """Shown to have fallen, at a family-wise 5%: more than noise."""
        return self.p_worse < 0.05


def forgetting(before: EpisodeTable, after: EpisodeTable) -> list[Change]:
    """Return the change of every instruction, the largest loss first.

    Raises:
        DataError: the rows are not of the same task and seeds, or an episode had another instruction.
    """
    whole = compare(before, after, names=("before", "after"))  # raises where they do not pair
    tasks_after = dict(zip(after.seeds, after.frame["task"], strict=True))
    other = [s for s, task in zip(before.seeds, before.frame["task"], strict=True) if tasks_after[s] != task]
    if other:
        raise DataError(
            f"forgetting: {len(other)} of {whole.pairs.total} episodes had another instruction before than after, the "
            f"first is that of seed {other[0]}. Evaluate both with the same wording."
        )
    pairs = []
    for task in sorted(set(before.frame["task"])):
        parts = (EpisodeTable(rows.frame[rows.frame["task"] == task]) for rows in (before, after))
        pairs.append((task, compare(*parts, names=("before", "after"))))
    adjusted = holm([mcnemar(c.pairs, alternative="worse") for _, c in pairs])
    found = [Change(task, c.pairs.total, c.rate_a, c.rate_b, c.difference, p)
             for (task, c), p in zip(pairs, adjusted, strict=True)]  # fmt: skip
    return sorted(found, key=lambda change: change.difference.value)


def table(changes: list[Change]) -> str:
    """Return a text line for each instruction."""
    lines = ["  before   after  change (95% interval)     p fell  episodes  instruction"]
    for c in changes:
        d = c.difference
        points = f"{100 * d.value:+6.1f} ({100 * d.low:+.1f} to {100 * d.high:+.1f})"
        lines.append(
            f"  {100 * c.before.value:5.1f}%  {100 * c.after.value:5.1f}%  {points:<24}{format_p(c.p_worse):>8}"
            f"{c.episodes:>10}  {c.task}{'  FELL' if c.fell else ''}"
        )
    return "\n".join(lines)


def frame(changes: list[Change]) -> pd.DataFrame:
    """Return the changes as a table to save; rates as fractions."""
    return pd.DataFrame(
        [
            {"task": c.task, "episodes": c.episodes, "before": c.before.value, "after": c.after.value,
             "difference": c.difference.value, "low": c.difference.low, "high": c.difference.high,
             "p_worse": c.p_worse, "fell": c.fell}
            for c in changes
        ]
    )  # fmt: skip

"""Choose the two evaluations that the page of a run compares, and pair their episodes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from robopolicy.core.errors import DataError
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.reporting.run_reader import Evaluation, Run

_BASE = "base"  # label of the rows that `compare` writes of the policy that was refined
_WEIGHTS = re.compile(r"(@\w+)\+.*")  # a policy's checksum, and how it was sampled


def distinct_evaluations(runs: Sequence[Run]) -> list[Evaluation]:
    """Return all evaluations, the run's name before those that would otherwise be called the same."""
    found = [(run, e) for run in runs for e in run.evaluations]
    names = [e.name for _, e in found]
    return [
        e if names.count(e.name) == 1 or e.name == run.name else replace(e, name=f"{run.name}/{e.name}")
        for run, e in found
    ]


def named_pair(evaluations: Sequence[Evaluation], names: tuple[str, str]) -> list[Evaluation]:
    """Return the two evaluations of these names.

    Raises:
        DataError: there is none of a name.
    """
    known = {e.name: e for e in evaluations}
    unknown = [n for n in names if n not in known]
    if unknown:
        raise DataError(f"report: no evaluation named {unknown[0]!r}; there are {sorted(known)}")
    return [known[n] for n in names]


def headline_pair(runs: Sequence[Run], evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Return the two evaluations to compare, or the only one, or none.

    The second is the run's own: episodes.csv of the last run. The first is labelled exactly "base", else it is of
    another policy: a labelled one, or another run's own. Without an own one, the labelled ones take part in their
    order. Test seeds take precedence over others, the newest checkpoint over the best.

    Args:
        evaluations: of all `runs`, in their order.
    """
    owned = [(run.path, e) for run, n in _compared(runs) for e in evaluations[n : n + len(run.evaluations)]]
    owned = [pair for pair in owned if pair[1].rows.split == "test"] or owned
    owned = [pair for pair in owned if not pair[1].aside] or owned
    if not owned:
        return []
    owner, last = next((pair for pair in reversed(owned) if not pair[1].label), owned[-1])
    if last.label:
        first = next((e for _, e in owned if e.label.split("-")[0] == _BASE), owned[0][1])
        others = [e for _, e in owned if e is not first and comparable(first.rows, e.rows)]
        return [first, others[-1]] if others else [last]
    bases = [e for whose, e in sorted(owned, key=lambda pair: pair[0] != owner) if e.label == _BASE]
    others = [e for _, e in owned if e is not last and (not e.label or not _same_policy(e.rows, last.rows))]
    references = [e for e in (*bases, *others) if comparable(e.rows, last.rows)]
    return [*references[:1], last]


def paired(pair: Sequence[Evaluation]) -> list[Evaluation]:
    """Return two evaluations with the episodes that both have."""
    common = set(pair[0].rows.seeds).intersection(*(e.rows.seeds for e in pair))
    if not common:
        return list(pair)
    return [replace(e, rows=EpisodeTable(e.rows.frame[e.rows.frame["seed"].isin(common)])) for e in pair]


def comparable(a: EpisodeTable, b: EpisodeTable) -> bool:
    """Return whether two tables share episodes, on one env with one set of parameters."""
    one = all(set(a.frame[c]) == set(b.frame[c]) and len(set(a.frame[c])) == 1 for c in ("env", "digest"))
    return one and not set(a.seeds).isdisjoint(b.seeds)


def _compared(runs: Sequence[Run]) -> list[tuple[Run, int]]:
    """Return the runs to choose from, and the index of the first evaluation of each.

    These are all of two runs; of more, a base and the run that refined it. The first and the last of more runs are no
    pair: they may be training seeds of two algorithms.
    """
    starts = accumulate((len(run.evaluations) for run in runs), initial=0)
    evaluated = [(run, n) for run, n in zip(runs, starts, strict=False) if run.evaluations]
    if len(evaluated) <= 2:
        return evaluated
    pairs = [[base, one] for one in evaluated for base in evaluated if one[0].base == base[0].path.resolve()]
    return pairs[0] if len(pairs) == 1 else []


def _same_policy(a: EpisodeTable, b: EpisodeTable) -> bool:
    """Return whether both are of the same weights, sampled in whichever way."""
    one, other = ({_WEIGHTS.sub(r"\1", policy) for policy in rows.frame["policy"]} for rows in (a, b))
    return one == other

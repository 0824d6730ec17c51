"""Say what training will make of a dataset: its successes, rewards, elements that vary little, and starts."""

from __future__ import annotations

import numpy as np

from robopolicy.core.rng import SPLIT_BITS, SPLITS
from robopolicy.core.types import STATE
from robopolicy.datasets.episodes import Episodes
from robopolicy.datasets.source import DatasetInfo
from robopolicy.datasets.tables import Columns, read_outcomes, read_table

SMALL = 0.05  # of the median deviation: the normaliser makes smaller ones no larger (policies/normalizer.py)
_ENDS = ("next.reward", "next.success", "next.done", "next.truncated")


def remarks(source: DatasetInfo, *, with_outcomes: bool) -> list[str]:
    """Return a line for each remark.

    Args:
        with_outcomes: False: it was said that every episode succeeds, so what is recorded does not count.

    Raises:
        DataError: tables that cannot be read, or a flag that is neither 0 nor 1.
    """
    state = source.names_there.get(STATE)
    ends = [key for key in _ENDS if key in source.columns and with_outcomes]
    if not (wanted := [*ends, *([state] if state else [])]):
        return []
    read, _ = read_table(source, None, wanted)
    found = _outcomes(read) if {"next.success", "next.reward"} & set(ends) else []
    return found + (_small(source, read, state) if state else [])


def _outcomes(read: Columns) -> list[str]:
    reward, _, success, known = read_outcomes(read, "recorded")
    first, last = read.starts[:-1].tolist(), read.starts[1:].tolist()
    won = sum(bool(success[a:b].any()) for a, b in zip(first, last, strict=True))
    rewards = f"rewards from {float(reward.min()):g} to {float(reward.max()):g}"
    if not known:
        return [f"{rewards}, but neither successes nor cuts are recorded: for imitation alone"]
    sparse = bool(((reward == 0.0) | ((reward == 1.0) & success)).all())
    scale = ". For reinforcement learning the env's rewards must be of the same kind, not 1 at a success alone"
    return [f"{won} of {len(first)} episodes succeeded, {rewards}{'' if sparse else scale}"]


def _small(source: DatasetInfo, read: Columns, state: str) -> list[str]:
    """Name elements of the state that vary so little beside the others that a policy hardly sees them."""
    column = source.columns[state]
    values = read(state, column.shape).astype(np.float64).reshape(read.table.num_rows, -1)
    deviation = values.std(0)
    varies = deviation > 1e-6 * deviation.max(initial=0.0)
    if not np.isfinite(deviation).all() or not varies.any():
        return []
    usual = float(np.median(deviation[varies]))
    names = column.names or ()
    if len(names) != len(deviation):
        names = tuple(f"element {i}" for i in range(len(deviation)))
    small = [f"{names[i]} ({deviation[i]:.2g})" for i in np.flatnonzero(varies & (deviation < SMALL * usual))]
    if not small:
        return []
    return [
        f"{STATE}: {', '.join(small[:8])}{', …' * (len(small) > 8)} vary by less than {100 * SMALL:g}% of the median "
        f"element ({usual:.2g}): a policy hardly sees them. Are they in another unit, as m beside mm? Then convert them"
    ]


def coarse(source: DatasetInfo) -> list[str]:
    """Return a line for each element of which float32, in which training reads, keeps less than half of the values.

    Raises:
        DataError: tables that cannot be read.
    """
    keys = [k for k in (*source.names_there.values(), "action") if k in source.columns and source.columns[k].is_number]
    wide = [k for k in keys if not np.can_cast(np.dtype(source.columns[k].dtype), np.float32)]
    if not wide:
        return []
    read, found = read_table(source, None, wide)[0], []
    for key in wide:
        column = source.columns[key]
        for i, values in enumerate(read(key, column.shape).reshape(read.table.num_rows, -1).T):
            there, kept = (len(np.unique(v)) for v in (values, values.astype(np.float32)))
            if 2 * kept < there:
                name = repr(column.names[i]) if column.names and len(column.names) == column.size else i
                found.append(
                    f"{key}: element {name} has {there} values in {column.dtype} and {kept} in float32, in which "
                    "training reads it. Subtract a constant, such as its first value, and record again"
                )
    return found


def evaluation_starts(episodes: Episodes, name: str) -> str:
    """Say that episodes of the dataset `name` begin where policies are evaluated, or return ""."""
    at = episodes.seeds >> SPLIT_BITS
    count = {"test": int((at == SPLITS["test"]).sum()), "validation": int((at == SPLITS["validation"]).sum())}
    found = [f"{n} of {episodes.num_episodes} episodes begin at {split} starts" for split, n in count.items() if n]
    if not found:
        return ""
    free = "validation" if count["test"] else "test"
    return f"{name}: {' and '.join(found)}, where evaluation would meet them again: there take split={free}"

"""Decide on a round of imagination and real rollouts: keep, drop, or stop."""

from __future__ import annotations

import math
from typing import Any

from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.statistics import Interval, unpaired_difference
from robopolicy.world_models.training.gate import LEVEL


def parted(imagined: Interval, true: Interval) -> bool:
    """Return whether the intervals do not overlap."""
    return imagined.low > true.high or imagined.high < true.low


def record_of(
    number: int,
    rows: EpisodeTable,
    evaluations: dict[str, Any],
    *,
    gate: list[dict[str, Any]],
    used: int,
    rival: Interval | None,
    left: int,
) -> dict[str, Any]:
    """Return the record of a round and its consequences.

    Args:
        rival: true success of the policy that it would replace, at the gate's level.
        left: rounds, this one included, that may end with a significant gap.
    """
    true, steps = rows.success_rate(level=LEVEL), int(rows.frame["length"].sum())
    imagined, after = Interval(*evaluations["imagined"]), Interval(*evaluations["imagined_refitted"])
    accepted = not gate or any(d["accepted"] for d in gate[1:])
    promised = imagined.low > true.high  # too much
    before = Interval(*(evaluations.get("before") or (0.0, 0.0, 0.0)))  # given where no gate has compared them
    worse = rival is not None and unpaired_difference(rival, true).high < 0.0  # surely: a later round has learned more
    apart = parted(imagined, true) and parted(after, true)
    stop = ""
    if not all(map(math.isfinite, imagined + after)):
        stop = "the model's numbers are not finite"
    elif apart and left <= 1:
        stop = (
            f"imagined and true success part beyond their intervals, {_said(after)} and {_said(true)}, and refitting "
            "the model did not mend it"
        )
    reason = f"imagined {_said(imagined)}, true {_said(true)} over {len(rows)} episodes and {steps} steps; "
    against = [
        ("the model promised too much", promised), (f"{_said(rival)} were true before" if rival else "", worse),
        (f"of the policy before the model expects {_said(before)}", imagined.high < before.low),
    ]  # fmt: skip
    objections = [why for why, found in against if found]
    kept = accepted and not objections
    reason += (
        "kept" if kept else f"taken back: {', '.join(objections)}" if objections else "nothing that the gate accepted"
    )
    reason += f"; the refitted model says {_said(after)}"
    if evaluations["faults"]:
        reason += f", and is not fit to learn in ({'; '.join(evaluations['faults'])})"
    return {
        "round": number, "episodes": len(rows), "real_steps": steps, "real_steps_total": used + steps,
        "imagined": list(imagined), "true": list(true), "gap": imagined.value - true.value,
        "imagined_refitted": list(after), "gap_refitted": after.value - true.value, "parted": parted(imagined, true),
        "apart": apart, "accepted": accepted, "kept": kept, "stop": stop,
        "reason": f"{reason}; stopped: {stop}" if stop else reason,
    }  # fmt: skip


def apart_in_a_row(records: list[dict[str, Any]]) -> int:
    """Return the number of newest rounds in a row with a significant gap after refitting."""
    return next((n for n, r in enumerate(reversed(records)) if not r.get("apart")), len(records))


def kept_last(records: list[dict[str, Any]]) -> Interval | None:
    """Return the true success of the round kept last."""
    return next((Interval(*r["true"]) for r in reversed(records) if r["kept"]), None)


def _said(interval: Interval) -> str:
    return f"{100 * interval.value:.0f}% ({100 * interval.low:.0f}–{100 * interval.high:.0f})"

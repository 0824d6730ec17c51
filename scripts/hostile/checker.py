"""Judges what an arm was told under attack: by its own differences, and by limits typed in from the maker's sheet.

Shares no code with the limits of the node that it judges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scripts.hostile.drivers import MS, Plan, between, spline
from scripts.hostile.log import STARTS, Log

Array = NDArray[np.float64]

GRACE = 0.5  # s: to notice that motion is no longer permitted, and for the stop itself
SIGN_OF_LIFE = 0.1  # s after which an enable has died
LATCHED = 0.2  # s of silence after which one that returns is no permission
MOVES, TURNED = 1e-4, 1e-4  # rad/s, rad: less is no motion
GRIP_MOVES, GRIP_JITTER = 1e-3, 0.006  # m: less is no motion; m that a late message may add to a step
RATE = 1000.0


@dataclass(frozen=True)
class Sheet:
    """What the maker permits, and how much of it the node uses by default."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    velocity: tuple[float, ...]
    acceleration: tuple[float, ...]
    jerk: tuple[float, ...]
    used: tuple[float, float, float] = (0.5, 0.5, 0.1)
    offset: tuple[float, ...] = ()  # of velocities that depend on the position, with the deceleration beside
    slowing: tuple[float, ...] = ()
    grip_speed: float = np.inf  # m/s, of the opening, and m that it may be told to be away from where it is
    squeeze: float = np.inf


PANDA = Sheet(
    low=(-2.8973, -1.7628, -2.8973, -3.0718, -2.8973, -0.0175, -2.8973),
    high=(2.8973, 1.7628, 2.8973, -0.0698, 2.8973, 3.7525, 2.8973),
    velocity=(2.175, 2.175, 2.175, 2.175, 2.61, 2.61, 2.61), acceleration=(15, 7.5, 10, 12.5, 15, 20, 20),
    jerk=(7500, 3750, 5000, 6250, 7500, 10000, 10000),
)  # fmt: skip
FR3 = Sheet(
    low=(-2.7437, -1.7837, -2.9007, -3.0421, -2.8065, 0.5445, -3.0159),
    high=(2.7437, 1.7837, 2.9007, -0.1518, 2.8065, 4.5169, 3.0159),
    velocity=(2.62, 2.62, 2.62, 2.62, 5.26, 4.18, 5.26), acceleration=(10,) * 7, jerk=(5000,) * 7,
    offset=(0.6599, 0.2517, 0.2, 0.3533, 0.5757, 0.4878, 0.4628), slowing=(6, 2.585, 3.5, 4, 17, 5.5, 17),
    grip_speed=0.1, squeeze=0.02,
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """What was found in one trial; each list says what, one entry each."""

    unasked: list[str]
    dry: list[str]
    limits: list[str]
    unnamed: list[str]
    stuck: list[str]

    @property
    def fine(self) -> bool:
        return not (self.unasked or self.dry or self.limits or self.unnamed or self.stuck)


# -- unasked motion -------------------------------------------------------------------------------------------------
def permitted(log: Log, at: Array) -> NDArray[np.bool_]:
    """Whether the arm might move at times `at` [m] s: it was asked to, the enable lives, and nothing forbids it.

    A FAULT, an enable of False and one that was silent take the permission away until the next reset.
    """
    ok = np.zeros(len(at), bool)
    starts = [c for c in log.calls if c.name in STARTS and c.ok]
    ends = [c.asked for c in log.calls if c.name in ("deactivate", "cleanup") and c.ok]
    for k, call in enumerate(starts):
        until = min([e for e in ends if e > call.asked] + [starts[k + 1].asked if k + 1 < len(starts) else np.inf])
        until = min([until, *_revoked(log, call.asked, call.answered)])
        ok |= (at >= call.asked) & (at < until)
    for begin, end, _ in log.forbidden:
        ok &= ~((at >= begin) & (at < end))
    return ok


def _revoked(log: Log, asked: float, answered: float) -> list[float]:
    """When the permission of a call at `asked` ended: the enable died, or the node reported a FAULT."""
    found = [t for t, r in log.reports if t > answered and r.get("mode") == "FAULT"][:1]
    true = [t for t, sign in log.enables if sign]
    found += [t for t, sign in log.enables if not sign and t > asked][:1]
    before = [t for t, _ in log.enables if t <= asked]
    if not before or not log.enables[len(before) - 1][1] or asked - before[-1] > SIGN_OF_LIFE:
        return [asked]  # it had none to begin with
    times = np.array([before[-1], *(t for t in true if t > asked), np.inf])
    gap = int(np.argmax(np.diff(times) > LATCHED))
    return [*found, times[gap] + SIGN_OF_LIFE]


def unasked(log: Log) -> list[str]:
    """Motions that the arm made, or was told to make, GRACE after the last moment at which it might."""
    at, q = log.path
    speed = np.zeros(len(q))
    speed[1:] = np.abs(np.diff(q, axis=0)).max(axis=1) * RATE
    turned = np.zeros(len(q))
    turned[1:] = np.abs(np.diff(q, axis=0)).max(axis=1)
    late = _since(at, permitted(log, at)) > GRACE
    found = [f"moved {a:.4f} rad from {b - log.began:.2f} s on" for b, a in _runs(at, late & (speed > MOVES), turned)]
    told_at = np.array([t for t, p in log.plans if len(p.q)])
    told = np.array([float(np.ptp(p.q, axis=0).max()) for _, p in log.plans if len(p.q)])
    if len(told):
        ok = permitted(log, at)
        last = np.interp(told_at, at, _since(at, ok), left=0.0, right=0.0)
        found += [
            f"told to move {a:.4f} rad from {b - log.began:.2f} s on"
            for b, a in _runs(told_at, (last > GRACE) & (told > 1e-3), told, total=False)
        ] if not found else []  # fmt: skip
    return found + _grips(log)


def _grips(log: Log) -> list[str]:
    """Changes of the gripper that nothing permits."""
    if not log.grips or not log.samples:
        return []
    at, _ = log.path
    since = _since(at, permitted(log, at))
    found, last = [], None
    for t, opening in log.grips:
        late = float(np.interp(t, at, since)) > GRACE
        if late and last is not None and abs(opening - last) > GRIP_MOVES:
            found.append(f"gripper told {last:.3f} → {opening:.3f} m at {t - log.began:.2f} s")
        last = opening
    return found


def _since(at: Array, ok: NDArray[np.bool_]) -> Array:
    """[m] s since the last moment at which it was `ok`; the beginning counts as one."""
    last = np.maximum.accumulate(np.where(ok, at, at[0] if len(at) else 0.0))
    return np.asarray(at - last)


def _runs(at: Array, bad: NDArray[np.bool_], amount: Array, *, total: bool = True) -> list[tuple[float, float]]:
    """Stretches of `bad`, a tenth of a second apart: when each begins, and how much it amounts to."""
    index = np.flatnonzero(bad)
    if not len(index):
        return []
    parts = np.split(index, np.flatnonzero(np.diff(at[index]) > 0.1) + 1)
    sums = [(float(at[p[0]]), float(amount[p].sum() if total else amount[p].max())) for p in parts]
    return [(b, a) for b, a in sums if a > TURNED]


# -- limits ---------------------------------------------------------------------------------------------------------
def over(q: Array, sheet: Sheet, *, dt: float = 1 / RATE) -> dict[str, int]:
    """How many of the samples [m 7] rad break each limit, by finite differences."""
    if not np.isfinite(q).all():
        return {"finite": int((~np.isfinite(q)).any(axis=1).sum())}
    low, high = np.array(sheet.low), np.array(sheet.high)
    found = {"position": int(((q < low - 1e-9) | (q > high + 1e-9)).sum())}
    d = q
    for order, (name, used) in enumerate(zip(("velocity", "acceleration", "jerk"), sheet.used, strict=True), 1):
        d = np.diff(d, axis=0)
        most = np.array(getattr(sheet, name)) * used * (1 + 1e-6)
        rounding = 64 * np.finfo(float).eps * np.abs(q[order:]) / dt**order
        found[name] = int((np.abs(d) / dt**order > most + rounding).sum())
    if sheet.offset:
        v, here = np.diff(q, axis=0) / dt, (q[1:] + q[:-1]) / 2
        up, down = (
            np.maximum(0, np.sqrt(np.maximum(0, 2 * np.array(sheet.slowing) * room)) - sheet.offset)
            for room in (high - here, here - low)
        )
        found["edge"] = int(((v > up + 1e-6) | (v < -down - 1e-6)).sum())
    return {k: v for k, v in found.items() if v}


def limits(log: Log, sheet: Sheet, *, splines: bool, dt: float = 0.004) -> list[str]:
    """Limits that what was played breaks, that a single plan breaks by itself to its end, and the gripper's speed.

    Args:
        splines: plans hold control points of a spline, one every `dt` s.
    """
    _, q = log.path
    found = [f"played: {n} × {name}" for name, n in over(q, sheet).items()]
    counted: dict[str, int] = {}
    for _, plan in log.plans:
        for name in alone(plan, sheet, splines=splines, dt=dt):
            counted[name] = counted.get(name, 0) + 1
    found += [f"{n} plans: {name}" for name, n in counted.items()]
    return found + _grip_limits(log, sheet)


def _grip_limits(log: Log, sheet: Sheet) -> list[str]:
    """Speed of what the gripper is told, and how far it is told to go through what it holds."""
    steps = zip(log.grips, log.grips[1:], strict=False)
    fast = [(a, b) for (s, a), (t, b) in steps if not abs(b - a) <= sheet.grip_speed * (t - s) + GRIP_JITTER]
    hard = [x for _, x in log.grips if not abs(x - log.opening) <= sheet.squeeze + GRIP_MOVES]
    found = [f"gripper: {len(fast)} × speed, first {fast[0][0]:.3f} → {fast[0][1]:.3f} m"] if fast else []
    return found + ([f"gripper: {len(hard)} × squeeze, first {hard[0]:.3f} m"] if hard else [])


def alone(plan: Plan, sheet: Sheet, *, splines: bool, dt: float) -> list[str]:
    """Limits that a plan breaks if nothing follows it; the arm stays where it ends."""
    if not len(plan.q):
        return []
    if not np.isfinite(plan.q).all():
        return ["finite"]
    if splines:
        c = np.concatenate([plan.q, np.repeat(plan.q[-1:], 3, axis=0)])
        samples = spline(c, round(dt * RATE))
    else:
        count = int(plan.due[-1] - plan.due[0]) // MS + 4
        samples = between(plan, plan.due[0] + MS * np.arange(count))
    return list(over(samples, sheet))


# -- dry runs, names, recovery --------------------------------------------------------------------------------------
def dry(log: Log) -> list[str]:
    """What came on command topics."""
    return [f"{topic} at {t - log.began:.2f} s" for t, topic in log.messages]


def unnamed(log: Log, names: Sequence[str], *, must: bool, known: Sequence[str]) -> list[str]:
    """Refusals and FAULTs under attack that do not name their cause.

    Args:
        names: what the attack may be called; `must`: it must be called so somewhere.
        known: what a refused call or a FAULT may name beside these, as this machine may be late meanwhile.
    """
    begin, end = log.attack
    calls = [c for c in log.calls if begin <= c.asked <= end and not c.ok]
    found = [f"{c.name}: {c.text!r}" for c in calls if not any(n in c.text for n in (*names, *known))]
    reports = [r for t, r in log.reports if begin <= t <= end + 0.3]
    faults = {_words(r) for r in reports if r.get("mode") == "FAULT"}
    found += [f"FAULT: {text!r}" for text in sorted(faults) if not any(n in text for n in (*names, *known))]
    everything = [c.text for c in calls] + [_words(r) + r.get("reasons", "") + r.get("counts", "") for r in reports]
    if must and names and not any(n in text for n in names for text in everything):
        found.append(f"nothing names {' or '.join(names)}")
    return found


def _words(report: dict[str, str]) -> str:
    return f"{report.get('message', '')} | {report.get('reasons_now', '')}"

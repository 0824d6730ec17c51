"""What an arm's driver makes of a JointTrajectory: read from its bytes, played by time. Shares no code with the node.

`SplineDriver` plays control points of a uniform cubic B-spline, one a tick, and takes only what goes on from what it
plays. `ControllerDriver` interpolates as ros2_control's joint_trajectory_controller does: linearly between positions,
by quintic splines where velocities and accelerations come with them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

KEEP, AHEAD = 8, 500  # ticks that are remembered; by which a trajectory may begin later than now
MS = 1_000_000  # ns
SEAM = 3  # control points that must agree where a trajectory follows another


@dataclass(frozen=True)
class Plan:
    """A trajectory. `due` [K] ns of the arm's clock; `q`, `v`, `a` [K n] by joints;
    `v` and `a` have no columns where the message has none."""

    due: NDArray[np.int64]  # seconds of today as floats are too coarse for differences
    q: Array
    v: Array
    a: Array


def read(data: bytes, joints: tuple[str, ...]) -> Plan:
    """A plan from little-endian CDR.

    Raises:
        ValueError: it is none, or of other joints.
    """
    try:
        return _read(data, joints)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"no JointTrajectory: {error}") from error


def _read(data: bytes, joints: tuple[str, ...]) -> Plan:
    body, at = memoryview(data)[4:], 0
    second, ns = struct.unpack_from("<iI", body, at)
    _, at = _text(body, 8)
    (count,), at = struct.unpack_from("<I", body, at), at + 4
    names = []
    for _ in range(count):
        name, at = _text(body, at)
        names.append(name)
    (count,), at = struct.unpack_from("<I", body, at), at + 4
    if count and sorted(names) != sorted(joints):
        raise ValueError(f"joints {names}")
    values, widths, due = np.zeros((count, 3, len(joints))), np.zeros((count, 4), np.int64), np.zeros(count, np.int64)
    k = 0
    while k < count:
        begin = at
        found, values[k], due[k], at = _point(body, at, len(joints))
        widths[k] = [w for w, _ in found]
        k += 1
        if begin % 8 == at % 8 and len(body) - at >= (count - k) * (at - begin):  # the rest are laid out alike
            kind = _layout(tuple((w, start - begin) for w, start in found), begin % 8, at - begin)
            rest = np.frombuffer(body, kind, count - k, at)
            for p, (w, _) in enumerate(found):
                if not (rest[f"n{p}"] == w).all():
                    raise ValueError("points of several forms")
                widths[k:, p] = w
                if w and p < 3:
                    values[k:, p] = rest[f"x{p}"]
            due[k:] = rest["s"].astype(np.int64) * 1_000_000_000 + rest["ns"]
            break
    order = [names.index(j) for j in joints] if count else slice(None)
    values = values[:, :, order]
    if count and not (widths[:, 0] == len(joints)).all():
        raise ValueError("a point without positions")
    full = [bool(count and widths[:, part].all()) for part in range(3)]
    v, a = (values[:, part, : len(joints) if full[part] else 0] for part in (1, 2))
    return Plan(second * 1_000_000_000 + ns + due, values[:, 0], v, a)


@cache
def _layout(parts: tuple[tuple[int, int], ...], begin: int, size: int) -> np.dtype[np.void]:
    """Of points that are `size` bytes long and begin at `begin` past a multiple of 8: of each part, how many numbers it
    has, and where it begins."""
    fields: dict[str, tuple[object, int]] = {}
    for p, (w, start) in enumerate(parts):
        fields[f"n{p}"] = "<u4", start
        if w:
            fields[f"x{p}"] = ("<f8", w), start + 4 + -(begin + start + 4) % 8
    fields |= {"s": ("<i4", size - 8), "ns": ("<u4", size - 4)}
    where = {
        "names": list(fields),
        "formats": [f for f, _ in fields.values()],
        "offsets": [o for _, o in fields.values()],
    }
    return np.dtype({**where, "itemsize": size})  # type: ignore[call-overload,no-any-return]


def _point(body: memoryview, at: int, size: int) -> tuple[list[tuple[int, int]], Array, int, int]:
    """One point: how many numbers its four parts have and where they begin, the first three, when it is due [ns], and
    where the next one begins."""
    found, values = [], np.zeros((3, size))
    for part in range(4):
        (n,) = struct.unpack_from("<I", body, at)
        found.append((n, at))
        at += 4
        if n:
            at += -at % 8
            if part < 3:
                if n != size:
                    raise ValueError(f"{n} numbers for {size} joints")
                values[part] = np.frombuffer(body, "<f8", n, at)
            at += 8 * n
    s, ns = struct.unpack_from("<iI", body, at)
    return found, values, s * 1_000_000_000 + ns, at + 8


def _text(body: memoryview, at: int) -> tuple[str, int]:
    at += -at % 4
    (size,) = struct.unpack_from("<I", body, at)
    end = at + 4 + size
    return bytes(body[at + 4 : end - 1]).decode(), end + -end % 4


def spline(c: Array, times: int) -> Array:
    """[(T − 3)·times n] samples of the uniform cubic B-spline of control points [T n], after its beginning."""
    u = np.arange(1, times + 1)[:, None, None] / times
    p0, p1, p2, p3 = c[:-3], c[1:-2], c[2:-1], c[3:]
    q = ((1 - u) ** 3 * p0 + (3 * u**3 - 6 * u**2 + 4) * p1 + (-3 * u**3 + 3 * u**2 + 3 * u + 1) * p2 + u**3 * p3) / 6
    return np.asarray(q.transpose(1, 0, 2).reshape(-1, c.shape[1]))


def between(plan: Plan, at: NDArray[np.int64]) -> Array:
    """[m n] rad of `plan` at times [m] ns, none before its first point; after the last it stays there."""
    last = len(plan.due) - 1
    i = np.clip(np.searchsorted(plan.due, at, side="right") - 1, 0, max(last - 1, 0))
    j = np.minimum(i + 1, last)
    span = np.maximum(plan.due[j] - plan.due[i], 1)[:, None] * 1e-9
    t = np.clip((at - plan.due[i])[:, None] * 1e-9, 0.0, span)
    p0, p1 = plan.q[i], plan.q[j]
    if not plan.v.size:
        return np.asarray(p0 + (p1 - p0) * t / span)
    v0, v1 = plan.v[i], plan.v[j]
    if not plan.a.size:
        d = p1 - p0 - v0 * span
        c2, c3 = (3 * d - (v1 - v0) * span) / span**2, ((v1 - v0) * span - 2 * d) / span**3
        return np.asarray(p0 + v0 * t + c2 * t**2 + c3 * t**3)
    a0, a1 = plan.a[i], plan.a[j]
    d, dv, da = p1 - p0 - v0 * span - a0 * span**2 / 2, v1 - v0 - a0 * span, a1 - a0
    c3 = (20 * d - 8 * dv * span + da * span**2) / (2 * span**3)
    c4 = (-30 * d + 14 * dv * span - 2 * da * span**2) / (2 * span**4)
    c5 = (12 * d - 6 * dv * span + da * span**2) / (2 * span**5)
    return np.asarray(p0 + v0 * t + a0 * t**2 / 2 + c3 * t**3 + c4 * t**4 + c5 * t**5)


class SplineDriver:
    """At rest at `q` [n] rad; `tick` is played next."""

    def __init__(self, q: Array, tick: int, dt_ns: int) -> None:
        self.tick, self.dt_ns, self.plan, self.first = tick, dt_ns, np.array(q)[None], tick
        self.past = [np.array(q)] * KEEP

    def at(self, tick: int) -> Array:
        if tick < self.tick:
            return np.asarray(self.past[max(tick - self.tick, -KEEP)])
        return np.asarray(self.plan[min(max(tick - self.first, 0), len(self.plan) - 1)])

    def offer(self, plan: Plan, shift: int) -> str:
        """Take a plan whose times are `shift` ns ahead of ours; why not, or ""."""
        points = plan.q
        if not np.isfinite(points).all():
            return "not finite"
        first = round(int(plan.due[0] - shift) / self.dt_ns)
        if first + len(points) <= self.tick - SEAM:
            return "past"
        if first > self.tick + AHEAD:
            return "ahead"
        seam = max(first, self.tick - SEAM)
        if any(not np.array_equal(points[min(t - first, len(points) - 1)], self.at(t)) for t in range(seam, seam + 3)):
            return "seam"
        waits = [self.at(t) for t in range(self.tick, first)]
        rest = points[max(0, self.tick - first) :]
        self.plan, self.first = np.array([*waits, *(rest if len(rest) else points[-1:])]), self.tick
        return ""

    def play(self) -> tuple[Array, Array]:
        """Samples [m n] rad of this tick at 1 kHz, and its control point [n]."""
        c = self.at(self.tick)
        samples = spline(np.array([*self.past[-3:], c]), self.dt_ns // MS)
        self.past = [*self.past[1:], c]
        self.tick += 1
        return samples, c


class ControllerDriver:
    """The same for a trajectory controller, which takes whatever comes, from where it is on."""

    def __init__(self, q: Array, tick: int, dt_ns: int) -> None:
        self.tick, self.dt_ns, n = tick, dt_ns, len(q)
        self.plan = Plan(np.array([tick * dt_ns]), np.array(q)[None], np.zeros((1, 0)), np.zeros((1, 0)))
        self.q, self.v, self.a = np.array(q), np.zeros(n), np.zeros(n)

    def offer(self, plan: Plan, shift: int) -> str:
        now = self.tick * self.dt_ns
        due = plan.due - shift
        if due[-1] < now:
            return "past"
        if due[0] > now:  # from the state in which it is towards the first point
            due = np.concatenate([[now], due])
            q = np.concatenate([self.q[None], plan.q])
            v, a = (np.concatenate([z[None], p]) if p.size else p for z, p in ((self.v, plan.v), (self.a, plan.a)))
            plan = Plan(due, q, v, a)
        else:
            plan = Plan(due, plan.q, plan.v, plan.a)
        self.plan = plan
        return ""

    def play(self) -> tuple[Array, Array]:
        times = self.dt_ns // MS
        samples = between(self.plan, self.tick * self.dt_ns + MS * np.arange(1, times + 1))
        path = np.concatenate([self.q[None], samples])
        before, self.q = self.v, samples[-1]
        self.v = (path[-1] - path[-2]) * 1000.0
        self.a = (self.v - before) / (self.dt_ns * 1e-9)
        self.tick += 1
        return samples, self.q

"""Actions of chunks by the time at which they are due, and the delay of their planning.

A chunk has absolute times: action k of a chunk planned from an observation at time t is due at t + k·dt, and reaches
its end at t + (k + 1)·dt. Late actions are not executed; where the loop waits, planned actions wait too.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from robopolicy.core.errors import SpecError
from robopolicy.core.specs import PolicySpec
from robopolicy.real.safety.array_ops import Array


@dataclass(frozen=True)
class Planned:
    """One action on its way."""

    due: float  # s, steady clock
    action: Array  # [Da]


def check_latency(spec: PolicySpec, latency: float, early: float = 0.0) -> None:
    """Check that a policy can bridge `latency` s between an observation and the first use of its plan.

    Args:
        early: s before a control step at which a plan is asked for; with 0, one that comes later waits for the next.

    Raises:
        SpecError: it cannot; says how much it can.
    """
    most = spec.n_action_steps * spec.dt + min(early, 0.5 * spec.dt)
    if not 0.0 <= latency <= most + 1e-9:
        raise SpecError(
            f"latency: {1000 * latency:.0f} ms; the policy commands {spec.n_action_steps} steps of {spec.dt} s at a "
            f"time and can bridge up to {1000 * most:.0f} ms. Plan faster, or train with longer chunks."
        )


class Ahead(NamedTuple):
    """Actions that are executed while a plan is made, for planners that continue them."""

    actions: Array  # [L Da], the first at the control step that is planned from
    delay: int  # control steps that planning is expected to take, at most L


class Delays:
    """Forecast of the planning delay, in control steps: the longest of the last few (RTC, algorithm 1).

    Args:
        dt: s a control step. first: forecast before anything was measured. most: it is never more than that; a chunk
            that takes longer is refused by the buffer.
        window: so many are remembered.
    """

    def __init__(self, dt: float, *, first: int, most: int, window: int = 10) -> None:
        self.dt, self.first, self.most = dt, first, most
        self.recent = deque([first], maxlen=window)

    def start(self) -> None:
        """Begin an episode, independent of those before."""
        self.recent = deque([self.first], maxlen=self.recent.maxlen)

    def measured(self, seconds: float) -> None:
        """Note that a chunk came so many s after its observation. Counts late actions, as ChunkBuffer does."""
        self.recent.append(max(0, math.ceil(seconds / self.dt - 0.5)))

    @property
    def steps(self) -> int:
        return min(max(self.recent), self.most)


class ChunkBuffer:
    """Actions by the time at which they are due.

    Args:
        spec: of the policy; its dt and action shape.
        length: actions of a chunk; None: n_action_steps.
        blend: control steps over which an old chunk gives way to a new one at their seam; 0 switches at once.
        max_delay: s between an observation and the first use of its plan; beyond it the chunk is
            refused, since the policy was never trained on such. Delays count in whole control steps, the unit in
            which actions are used: a tick late is not a step late.
        shift: control steps from the one that a plan is requested for to its first action.
    """

    def __init__(
        self, spec: PolicySpec, *, length: int | None = None, blend: int = 2, max_delay: float | None = None,
        shift: int = 0,
    ) -> None:  # fmt: skip
        self.spec, self.blend = spec, blend
        self.length = spec.n_action_steps if length is None else length
        self.max_delay = spec.n_action_steps * spec.dt if max_delay is None else max_delay
        self.shift = shift * spec.dt  # s
        self.plan: list[Planned] = []
        self.late = self.refused = 0

    def clear(self) -> None:
        self.plan = []

    def add(self, chunk: Array, observed: float, now: float, first: float | None = None) -> int:
        """Take a chunk [length Da] planned from an observation at `observed`; returns how many of its actions are late.

        Args:
            first: s, when the control step begins that the observation was made for, which its first action is due at;
                None: that is when it was made.

        Raises:
            SpecError: wrong shape, NaN, or a delay that the policy was not trained for. The
                buffer stays as it was.
        """
        spec, gripper = self.spec, self.spec.action.gripper
        if chunk.shape != (self.length, spec.action.dim):
            raise SpecError(f"chunk: expected shape {(self.length, spec.action.dim)}, found {chunk.shape}")
        if not np.isfinite(chunk).all():
            k, d = np.argwhere(~np.isfinite(chunk))[0]
            raise SpecError(f"chunk: {spec.action.names[d]!r} of step {k} is {chunk[k, d]}")
        delay = now - observed
        if not 0.0 <= delay < self.max_delay + 0.5 * spec.dt:
            self.refused += 1
            raise SpecError(
                f"chunk: comes {delay:.3f} s after its observation, the policy can use up to {self.max_delay:.3f} s"
            )
        begin = (observed if first is None else first) + self.shift
        new = [Planned(begin + k * spec.dt, chunk[k]) for k in range(self.length)]
        on_time = [p for p in new if p.due >= now - 0.5 * spec.dt]
        late = len(new) - len(on_time)
        self.late += late
        old = {round((p.due - begin) / spec.dt): p.action for p in self.plan}
        merged = []
        for k, p in enumerate(on_time):
            before, action = old.get(k + late), p.action
            if before is not None and k < self.blend:
                weight = (k + 1) / (self.blend + 1)
                action = (1 - weight) * before + weight * p.action
                if gripper is not None:
                    action[gripper] = p.action[gripper]  # gripper commands are never blended
            merged.append(Planned(p.due, action))
        under_way = [p for p in self.plan if p.due < begin - 0.5 * spec.dt]  # until the new chunk begins
        self.plan = under_way + merged
        return late

    def pop(self, now: float) -> Array | None:
        """Return the action [Da] due at `now`, None without one. Past actions are dropped, never executed late."""
        half = 0.5 * self.spec.dt
        while self.plan and self.plan[0].due < now - half:
            self.plan.pop(0)
            self.late += 1
        if self.plan and self.plan[0].due <= now + half:
            return self.plan.pop(0).action
        return None

    def postpone(self, seconds: float) -> None:
        """Delay the planned actions by `seconds`."""
        self.plan = [Planned(p.due + seconds, p.action) for p in self.plan]

    def ahead(self, now: float, delay: int) -> Ahead | None:
        """Return the actions due from `now` on, None without any; `delay` of them are executed before the next plan."""
        actions = [p.action for p in self.plan if p.due >= now - 0.5 * self.spec.dt]
        return Ahead(np.array(actions), min(delay, len(actions))) if actions else None

    def between(self, begin: float, end: float) -> list[Array]:
        """Return the actions [Da] due from `begin` s until before `end` s."""
        half = 0.5 * self.spec.dt
        return [p.action for p in self.plan if begin - half <= p.due < end - half]

    def __len__(self) -> int:
        return len(self.plan)

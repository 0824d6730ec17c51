"""Forecast the arm's state to the moment at which a plan's first action begins.

A plan is requested before its first action begins, from a state that is older still. The motion in between is already
decided: by the joint targets of the reference, and by the planned actions that are under way. So the measured state is
moved on by the way that the reference goes meanwhile, and the policy sees what it would see without a delay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np

from robopolicy.real.control.chunk_buffer import ChunkBuffer
from robopolicy.real.control.joints import ActionDecoder
from robopolicy.real.control.observation_history import Forecast
from robopolicy.real.control.robots import State
from robopolicy.real.control.trajectory_spline import follow
from robopolicy.real.safety import SafetyChain
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.teleoperation.teleoperator import Driver

SHORT = 0.02  # of a control step, over which velocities of the reference are taken


@dataclass(frozen=True, eq=False, kw_only=True)
class ForecastState(State):
    """A state of the arm that is yet to come; features and pictures are those of `measured`."""

    measured: State
    ahead: float  # s from the one to the other


@dataclass(frozen=True)
class Reference:
    """The reference's motion under way.

    Attributes:
        points: [K ≥ 4, n] rad, control points of a uniform cubic spline, oldest first.
        begin: s, when the segment of the first four points begins.
        period: s a segment.
    """

    points: Array
    begin: float
    period: float

    def at(self, time: float) -> Array:
        """Return [n] rad at `time` s.

        Beyond its ends the spline goes on for a segment as if one more step of the same size followed, as `follow`
        does, or came before: a state may be older than the control step that `points` begin with.
        """
        u = (time - self.begin) / self.period
        if u < 0.0:
            before = 2 * self.points[:1] - self.points[1:2]
            return follow(np.concatenate([before, self.points[:3]]), max(u + 1.0, 0.0))
        k = min(int(u), len(self.points) - 4)
        return follow(self.points[k : k + 4], u - k)

    def velocity(self, time: float) -> Array:
        """Return [n] rad/s at `time` s, or a segment before the first one begins if that is later."""
        h = SHORT * self.period
        at = max(time, self.begin - self.period + h)
        return (self.at(at + h) - self.at(at - h)) / (2 * h)


def forecast(state: State, points: Array, goals: Sequence[Array], *, begin: float, period: float, seen: float,
             until: float) -> State:  # fmt: skip
    """Move a measured state on by the reference's way from `seen` to `until` s.

    Args:
        state: of the arm at `seen` s of the reference.
        points: [4 n] rad, of the reference's segment that began at `begin` s.
        goals: [n] rad each, its further control points: those of the actions under way.

    Returns:
        `state` itself where there is nothing to forecast.
    """
    if until <= seen + 1e-9:
        return state
    way = Reference(np.concatenate([points, *(g[None] for g in goals)]), begin, period)
    return ForecastState(
        **vars(replace(state, q=state.q + way.at(until) - way.at(seen),
                       qd=state.qd + way.velocity(until) - way.velocity(seen))),
        measured=state, ahead=until - seen,
    )  # fmt: skip


class Motion(Protocol):
    """The motion of a control loop that is under way."""

    points: Array  # [4 n] rad, of the reference's segment that ends where the control step begins
    driver: Driver
    chain: SafetyChain


class StateForecaster:
    """Forecast the state that a plan begins from, for a control loop.

    Args:
        decoder: turns actions into joint targets.
        buffer: actions under way, and how much later than requested a plan begins.
        behind: s by which a measured state is older than the command that is decided on.
        tick: s between commands; a state without a delay is so much older.
    """

    def __init__(self, decoder: ActionDecoder, buffer: ChunkBuffer, *, behind: float, tick: float) -> None:
        self.decoder, self.buffer, self.behind, self.tick = decoder, buffer, behind, tick

    def to_plan(self, motion: Motion, due: float) -> Forecast:
        """Return the forecast of a state of `motion` to the begin of a plan requested for `due` s."""
        return partial(self._to_plan, motion, due)

    @contextmanager
    def _to_plan(self, motion: Motion, due: float, at: float, state: State) -> Iterator[State]:
        """Yield the state; within, the commanded pose is that of the plan's begin too. `at`: s, when it was noted."""
        end = due + self.buffer.shift
        actions = self.buffer.between(due, end) if motion.driver == "policy" else []
        with self.decoder.looking_ahead(actions, state.q, motion.chain.profile) as goals:
            yield forecast(
                state, motion.points, goals, begin=due - self.buffer.spec.dt, period=self.buffer.spec.dt,
                seen=at - self.behind, until=end - self.tick,
            )  # fmt: skip

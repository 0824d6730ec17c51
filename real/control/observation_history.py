"""The newest observations of a policy, with the arm's state of when the pictures were taken, or as it will be."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from robopolicy.core.types import Obs
from robopolicy.real.control.robots import State

Observe = Callable[[State], Obs]  # single frames [1 …]
Forecast = Callable[[float, State], AbstractContextManager[State]]  # of a state that was noted at so many s
WAITED_FOR, OLDEST = 0.2, 2.0  # control steps: so long a state is waited for, and so old may be the one in its place


class ObservationHistory:
    """Keep the newest `history` frames; episodes begin with copies of the first.

    Args:
        observe: makes a frame of a state of the arm and of the newest features and pictures.
        age: s by which pictures are older than the arm's state: it is shown as it was then.
    """

    def __init__(self, observe: Observe, *, history: int = 1, age: float = 0.0) -> None:
        self.observe, self.age = observe, age
        self.frames: deque[Obs] = deque(maxlen=history)
        self.newest: Obs = {}  # the newest frame as it was measured
        self.states: deque[tuple[float, State]] = deque()  # s of a tick and its state, the oldest as old as a picture

    def start(self) -> None:
        """Begin an episode with an empty history."""
        self.frames.clear()
        self.states.clear()

    def note(self, at: float, state: State) -> None:
        """Store the arm's state in the tick at `at` s."""
        self.states.append((at, state))
        while len(self.states) > 1 and self.states[1][0] <= at - self.age + 1e-6:
            self.states.popleft()

    def older(self, at: float, due: float, period: float) -> State | None:
        """Return an older state for the control step at `due` s, which none has come for by the tick at `at` s.

        None while one is waited for, and where the newest is too old. `period`: s a control step.
        """
        if at < due + WAITED_FOR * period - 1e-6 or not self.states:
            return None
        since, state = self.states[-1]
        return state if since >= at - OLDEST * period - 1e-6 else None

    def capture(self, forecast: Forecast | None = None) -> None:
        """Take a frame, of the measured state or of its `forecast`."""
        at, state = self.states[0]
        frame = self.newest = self.observe(state)
        if forecast is not None:
            with forecast(at, state) as later:
                frame = frame if later is state else self.observe(later)
        self.frames.extend([frame] * max(1, (self.frames.maxlen or 1) - len(self.frames)))

    @property
    def stacked(self) -> Obs:
        """Stack the frames of each feature as [1 To …]."""
        return {k: torch.stack([f[k] for f in self.frames], dim=1) for k in self.frames[-1]}

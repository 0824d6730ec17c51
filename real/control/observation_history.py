"""The newest observations of a policy, with the arm's state of when the pictures were taken, or as it will be."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from robopolicy.core.types import Obs
from robopolicy.real.control.robots import State

Observe = Callable[[State], Obs]  # single frames [1 …]
Forecast = Callable[[State], AbstractContextManager[State]]


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

    def capture(self, forecast: Forecast | None = None) -> None:
        """Take a frame, of the measured state or of its `forecast`."""
        state = self.states[0][1]
        frame = self.newest = self.observe(state)
        if forecast is not None:
            with forecast(state) as later:
                frame = frame if later is state else self.observe(later)
        self.frames.extend([frame] * max(1, (self.frames.maxlen or 1) - len(self.frames)))

    @property
    def stacked(self) -> Obs:
        """Stack the frames of each feature as [1 To …]."""
        return {k: torch.stack([f[k] for f in self.frames], dim=1) for k in self.frames[-1]}

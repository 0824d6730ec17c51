"""Energy tank: the arm may give its surroundings only as much energy as is left in the tank.

X
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from real.safety.limits import Rows
from real.safety.motion import HISTORY
from real.safety.path import Array, Bool, Here, Path


@dataclass(eq=False)
class EnergyTank:
    """Of one arm.

    Args:
        capacity: J; full at the start.
        stiffness: N·m/rad, of contacts in joint space, at most. The torque seen now may grow by so much on the way to
            a stop.
    """

    capacity: float
    stiffness: float = 1000.0
    name: str = "energy"
    energy: float = field(init=False)  # J

    def __post_init__(self) -> None:
        self.energy = self.capacity
        self._q: Array | None = None
        self._torque: Array | None = None

    def update(self, q: Array, torque: Array) -> None:
        """Account for the motion to measured `q` [n] under external `torque` [n] N·m, which pushes the arm."""
        if self._q is not None and self._torque is not None:
            received = 0.5 * (torque + self._torque) @ (q - self._q)
            self.energy = min(self.capacity, self.energy + float(received))
        self._q, self._torque = q.copy(), torque.copy()

    def holds(self, path: Path) -> Bool:
        if self._torque is None:
            return np.ones(len(path.c), dtype=bool)
        move = path.c[:, HISTORY:] - (path.c[:, HISTORY - 1 : HISTORY] if self._q is None else self._q)
        given = -move @ self._torque + 0.5 * self.stiffness * np.square(move).sum(axis=2)
        return (given <= self.energy).all(axis=1) if self._touching() else np.ones(len(path.c), dtype=bool)

    def rows(self, here: Here) -> Rows | None:
        if self._torque is None or not self._touching():
            return None
        return Rows(*here.brake(self._torque[None], np.array([0.9 * self.energy])))

    def _touching(self) -> bool:
        return self._torque is not None and float(np.abs(self._torque).max()) > 1e-3

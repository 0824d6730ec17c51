"""Energy tank: the arm may give its surroundings only as much energy as is left in the tank.

A passive arm takes at least as much from its surroundings as it gives. A tank lets it give a budget first (Zanella et
al., arXiv 2301.12759, wrap learned policies so): E' = τᵀq̇ for external torques τ that push the arm, never above the
capacity. Here it is a limit like the others: a command passes only if the tank would not run dry on the way to the end
of its stop. Torques on that way are unknown, but bounded: by those of now, plus the stiffness of contacts times the way
gone. Contact may begin anywhere on it, so that the bound holds in free space too, where it limits speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from real.safety.limits import Rows
from real.safety.motion import HISTORY
from real.safety.path import Array, Here, Path


@dataclass(eq=False)
class EnergyTank:
    """Of one arm.

    Args:
        capacity: J; full at the start.
        stiffness: N·m/rad, of contacts in joint space, at most: torques grow by no more per radian of way.
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
        """Account for the motion to measured `q` [n] rad under external `torque` [n] N·m, which pushes the arm.

        By the trapezoidal rule: exact for springs, and too high a debit in the tick in which contact begins.
        """
        if self._q is not None and self._torque is not None:
            received = 0.5 * (torque + self._torque) @ (q - self._q)
            self.energy = min(self.capacity, self.energy + float(received))
        self._q, self._torque = q.copy(), torque.copy()

    def state_dict(self) -> dict[str, Array | float | None]:
        """What is in it, and the last state that was accounted for."""
        return {"energy": self.energy, "q": self._q, "torque": self._torque}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        q, torque = (None if state[k] is None else np.array(state[k], dtype=np.float64) for k in ("q", "torque"))
        self.energy, self._q, self._torque = float(state["energy"]), q, torque

    def margin(self, path: Path) -> Array:
        """[N] J left at the worst point on the way, whatever it touches."""
        move = path.c[:, HISTORY:] - (path.c[:, HISTORY - 1 : HISTORY] if self._q is None else self._q)
        given = 0.5 * self.stiffness * np.square(move).sum(axis=2)
        if self._torque is not None:
            given = given - move @ self._torque
        return self.energy - given.max(axis=1)

    def rows(self, here: Here) -> Rows | None:
        """Along the present motion: so fast that torque and a contact from now on cost no more than there is."""
        size = float(np.linalg.norm(here.v))
        if self._torque is None or size < 1e-6:
            return None
        way, time = here.v / size, float(here.dt + 0.5 * here.stop_time.max())
        push = max(0.0, float(-self._torque @ way))  # N·m, against the motion
        # ½·k·x² + push·x ≤ energy for the way x = speed·time
        reach = (np.sqrt(push**2 + 2 * self.stiffness * max(self.energy, 0.0)) - push) / max(self.stiffness, 1e-9)
        return Rows(way[None], np.array([0.8 * reach / time]))

"""Energy tank: the arm may give its surroundings only as much energy as is left in the tank.

A passive arm takes at least as much from its surroundings as it gives. A tank lets it give a budget first (Zanella et
al., arXiv 2301.12759, wrap learned policies so): E' = τᵀq̇ for external torques τ that push the arm, never above the
capacity. Here it is a limit like the others: a command passes only if the tank would not run dry on the way to the end
of its stop. Torques on that way are unknown, but bounded: by those of now, plus the stiffness of contacts times the way
gone. Contact may begin anywhere on it, so that the bound holds in free space too, where it limits speed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numba import njit

from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.errors import SafetyError
from robopolicy.real.safety.motion import HISTORY
from robopolicy.real.safety.path import Here, Inequalities, Path
from robopolicy.real.safety.settings import Settings


class EnergyTank:
    """Bound the energy that one arm can give away.

    Args:
        capacity: J; full at the start.
        stiffness: N·m/rad, of contacts in joint space, at most: torques grow by no more per radian of way.
    """

    name = "energy"

    def __init__(self, capacity: float, stiffness: float = 1000.0) -> None:
        self.capacity, self.stiffness, self.energy = capacity, stiffness, capacity
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

    def rest(self) -> None:
        """Forget where the arm was: it may have been moved meanwhile, by something that the tank did not pay for."""
        self._q = self._torque = None

    def state_dict(self) -> dict[str, Array | float | None]:
        """Return the energy, and the last state that was accounted for."""
        return {"energy": self.energy, "q": self._q, "torque": self._torque}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`."""
        q, torque = (None if state[k] is None else np.array(state[k], dtype=np.float64) for k in ("q", "torque"))
        self.energy, self._q, self._torque = float(state["energy"]), q, torque

    def margin(self, path: Path) -> Array:
        """Return [N] J left at the worst point on the way, whatever it touches."""
        start = path.c[0, HISTORY - 1] if self._q is None else self._q
        if len(path.c) != 1:
            raise SafetyError(f"energy: a tank is of one arm, found a path of {len(path.c)}")
        out, torque = np.empty(len(path.c)), np.zeros(len(start)) if self._torque is None else self._torque
        _left(path.c, start, torque, self.energy, self.stiffness, out)
        return out

    def rows(self, here: Here) -> Inequalities | None:
        """Along the present motion: so fast that torque and a contact from now on cost no more than there is."""
        g, h = here.room(1)
        torque = np.zeros(len(here.v)) if self._torque is None else self._torque
        fast = _pace(here.v, here.stop_time, here.dt, torque, self.energy, self.stiffness, g, h)
        return Inequalities(g, h) if fast and self._torque is not None else None


@njit(cache=True, nogil=True)
def _left(c: Array, start: Array, torque: Array, energy: float, stiffness: float, out: Array) -> None:
    for arm in range(len(out)):
        out[arm] = np.inf
        for k in range(HISTORY, c.shape[1]):
            square = work = 0.0
            for i in range(len(start)):
                move = c[arm, k, i] - start[i]
                square += move * move
                work += move * torque[i]
            left = energy - (0.5 * stiffness * square - work)
            if not left >= out[arm] and out[arm] == out[arm]:  # NaN stays
                out[arm] = left


@njit(cache=True, nogil=True)
def _pace(
    v: Array, stop_time: Array, dt: float, torque: Array, energy: float, stiffness: float, g: Array, h: Array
) -> bool:
    square = push = longest = 0.0
    for i in range(len(v)):
        square += v[i] * v[i]
        push -= torque[i] * v[i]
        longest = max(longest, stop_time[i])
    size = math.sqrt(square)
    if size < 1e-6:
        return False
    push = max(0.0, push / size)  # N·m, against the motion
    # ½·k·x² + push·x ≤ energy for the way x = speed·time
    reach = (math.sqrt(push**2 + 2 * stiffness * max(energy, 0.0)) - push) / max(stiffness, 1e-9)
    for i in range(len(v)):
        g[0, i] = v[i] / size
    h[0] = 0.8 * reach / (dt + 0.5 * longest)
    return True


def tank_for(settings: Settings, tank: EnergyTank | None) -> EnergyTank | None:
    """Build the tank of `settings`, or adapt the `tank` in use; None for settings without energy."""
    if settings.energy is None:
        return None
    if tank is None:
        return EnergyTank(settings.energy, settings.contact_stiffness)
    tank.capacity, tank.energy = settings.energy, min(settings.energy, tank.energy)
    tank.stiffness = settings.contact_stiffness
    return tank

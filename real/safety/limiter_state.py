"""State of a command limiter: history and stored stop, how a tick changes both, and the check of a saved state."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from robopolicy.real.safety.array_ops import Array, Bool, Ints, within
from robopolicy.real.safety.errors import SafetyError
from robopolicy.real.safety.joint_space import EPSILON
from robopolicy.real.safety.profile import JointBounds

LONGEST_STOP = 1_000_000  # control points


class Past(NamedTuple):
    """State after some tick, from which the next commands start."""

    c: Array  # [N HISTORY n]
    stop: Array  # [N S n]
    at: Ints  # [N] next sample of the stop

    def ahead(self, ticks: int) -> Array:
        """Return the point [n] rad that the only arm plays `ticks` ≥ 1 ticks later if no command comes."""
        return np.asarray(self.stop[0, min(int(self.at[0]) + ticks - 1, self.stop.shape[1] - 1)])


def check_state(state: dict[str, Array], history: tuple[int, ...], limits: int) -> None:
    """Check the shapes and numbers of a saved state, which may come from a stranger's recording or checkpoint.

    Compiled loops do not check the ends of arrays.

    Args:
        history: shape [N H n] of the limiter's history.
        limits: number of its limits.

    Raises:
        SafetyError: a part of the state does not fit; named.
    """
    arms, _, n = history
    stop = state["stop"]
    shapes = {"last": (arms, n), "at": (arms,), "active": (arms,), "search": (2,)}
    wrong = [k for k, shape in shapes.items() if np.shape(state[k]) != shape]
    if wrong or stop.ndim != 3 or stop.shape[::2] != (arms, n) or not 1 <= stop.shape[1] <= LONGEST_STOP:
        raise SafetyError(f"limiter: the saved state of {', '.join(wrong) or 'stop'} is not of these {arms} arms")
    if not all(within(np.ravel(np.asarray(state[k], dtype=np.float64)), 1e6) for k in ("c", "last", "stop")):
        raise SafetyError("limiter: the saved state holds joint angles that are none")
    at, search = np.asarray(state["at"]), np.asarray(state["search"])
    first = int(search[1])
    if not ((at >= 0) & (at < stop.shape[1])).all() or not 0 <= first < limits:
        raise SafetyError(f"limiter: the saved state counts beyond its stop or limits: {at.tolist()}, {first}")


@njit(cache=True, nogil=True)
def advance(c: Array, stop: Array, at: Ints, command: Array, going: Bool, new_c: Array, new_at: Ints) -> None:
    """Advance the history and the next samples of the stops by `command`; arms that are `going` have new stops."""
    for arm in range(len(going)):
        new_c[arm, :-1] = c[arm, 1:]
        new_c[arm, -1] = command[arm]
        new_at[arm] = 0 if going[arm] else min(at[arm] + 1, stop.shape[1] - 1)


@njit(cache=True, nogil=True)
def settle(going: Bool, command: Array, braking: Array, wanted: Array, changed: Bool) -> None:
    """Command the stop of arms that are not `going`. `changed`: the command is not the wanted one."""
    for arm in range(len(going)):
        changed[arm] = not going[arm]
        for i in range(command.shape[1]):
            if not going[arm]:
                command[arm, i] = braking[arm, i]
            elif command[arm, i] != wanted[arm, i]:
                changed[arm] = True


@njit(cache=True, nogil=True)
def inside(c: Array, command: Array, bounds: JointBounds, dt: float, fine: Bool) -> None:
    """Comparisons that a NaN fails."""
    low, high, velocity, acceleration, jerk = bounds
    last = c.shape[1] - 1
    for arm in range(command.shape[0]):
        fine[arm] = True
        for i in range(command.shape[1]):
            q, q1, q2, q3 = command[arm, i], c[arm, last, i], c[arm, last - 1, i], c[arm, last - 2, i]
            rounding = 16 * EPSILON * max(abs(q1), 1.0)
            slack = 1 + 1e-8
            if not (
                low[i] <= q <= high[i]
                and abs(q - q1) <= velocity[i] * dt * slack + rounding
                and abs(q - 2 * q1 + q2) <= acceleration[i] * dt**2 * slack + rounding
                and abs(q - 3 * q1 + 3 * q2 - q3) <= jerk[i] * dt**3 * slack + rounding
            ):
                fine[arm] = False

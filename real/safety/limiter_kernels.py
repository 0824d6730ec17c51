"""Compiled loops of the command limiter, over N arms."""

from __future__ import annotations

from numba import njit

from robopolicy.real.safety.array_ops import Array, Bool, Ints
from robopolicy.real.safety.joint_space import EPSILON
from robopolicy.real.safety.profile import JointBounds


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

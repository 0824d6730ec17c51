"""State of a command limiter: history and stored stop, and the check of a saved state."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from robopolicy.real.safety.array_ops import Array, Ints, within
from robopolicy.real.safety.errors import SafetyError

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

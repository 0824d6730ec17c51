"""Upsampling of positions by a driver, and whether the maker's limits still hold after it.

Differences of control points bound a B-spline through them (real/safety/motion.py). A driver that interpolates
in another way multiplies them; the factor follows from its interpolation and its rate.
"""

from __future__ import annotations

import numpy as np

from robopolicy.real.control.robots import RATES
from robopolicy.real.ros2.wiring import Wiring
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.profile import Profile

NOT_CLAIMED = (
    "claim: the limits hold for the positions that are sent, one in each of the driver's cycles, from the first on. "
    "Not claimed: the step from where the driver holds the arm to the first, and two that come within one cycle. "
    "Take trajectories where the driver understands them"
)


def worst(wiring: Wiring, profile: Profile) -> dict[str, Array]:
    """Velocity, acceleration and jerk [n] at the driver's rate, as multiples of the maker's limits, at most.

    Trajectories are played as the certified spline: their factors are 1.
    """
    out = wiring.output
    v, a, j = profile.velocity, profile.acceleration, profile.jerk
    times = round(out.driver_hz * wiring.tick_s) if out.type == "positions" else 1
    if times > 1 and out.upsampling == "linear":  # a change of speed in one cycle
        a, j = times * a, times * a * out.driver_hz
    elif times > 1 and out.upsampling == "none":  # a whole tick's way in one cycle, then none
        v, a, j = times * v, times * v * out.driver_hz, 2 * times * v * out.driver_hz**2
    return {name: value / profile.maker[name] for name, value in zip(RATES, (v, a, j), strict=True)}


def broken_claims(wiring: Wiring, profile: Profile) -> list[str]:
    """List the maker's limits that the driver would break under commands within ours, one sentence each."""
    out, found = wiring.output, []
    for name, ratio in worst(wiring, profile).items():
        if not (ratio <= 1.0 + 1e-9).all():
            k = int(np.argmax(ratio))
            found.append(
                f"topics.trajectory: upsampling {out.upsampling!r} from {1 / wiring.tick_s:g} to {out.driver_hz:g} Hz "
                f"makes up to {ratio[k]:.2g} times the maker's {name} limit of {profile.joints[k]!r}. Use type "
                f"trajectory or action, ticks at the driver's rate (tick_s: {1 / out.driver_hz:g}), or lower settings"
            )
    return found

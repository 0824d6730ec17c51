"""The same limits in training: a hook between IK and physics for N simulated arms at the control rate."""

from __future__ import annotations

from typing import Any

import numpy as np

from robopolicy.real.control.arm_kinematics import kinematics_of
from robopolicy.real.control.trajectory_spline import shape
from robopolicy.real.safety import CommandLimiter, Profile
from robopolicy.real.safety.array_ops import Array, Bool, Ints
from robopolicy.sim.kinematics import forward


def without(task: dict[str, Any]) -> dict[str, Any]:
    """Drop the filter of training from a task's config: an arm has the safety chain in its place."""
    return {k: v for k, v in task.items() if k != "joint_filter"}


class SafetyFilter:
    """A `joint_filter` for `sim.SimEnv`: joint targets [N n] → permitted joint targets [N n].

    Targets are first paced as the arm's control loop paces them (real/control/trajectory_spline.py), which is
    what a fast policy meets there at most steps, then filtered. One control step is one tick, so limits on acceleration
    and jerk are those of the control rate: coarser than on the arm, and never looser. Targets that fail are blended
    with the stop, without a quadratic programme, so that arms do not depend on one another and stay fast.

    `intervened` [N]: of the last commands, those that the limits changed, beyond the pace.

    Args:
        profile: limits.
        dt: s per control step.
    """

    def __init__(self, profile: Profile, *, dt: float) -> None:
        self.profile, self.dt, self.arm = profile, dt, kinematics_of(profile)
        self.limiter: CommandLimiter | None = None
        self.intervened: Bool = np.zeros(0, dtype=bool)

    def reset(self, rows: Ints, q: Array) -> None:
        """Episodes begin in `rows` [M], at rest at `q` [M n]. Of the first call `rows` are all N arms."""
        if self.limiter is None:
            self.limiter = CommandLimiter(self.profile, len(rows), dt=self.dt, projection=None)
        self.limiter.start(q, rows)

    def __call__(self, wanted: Array) -> Array:
        if self.limiter is None:
            self.reset(np.arange(len(wanted)), wanted)
        assert self.limiter is not None
        paced = self.paced(wanted)
        allowed = self.limiter.filter(paced).command
        self.intervened = (allowed != paced).any(axis=1)
        return allowed

    def paced(self, wanted: Array) -> Array:
        """Pace `wanted` [N n] as the control loop would, from the last commands."""
        assert self.limiter is not None
        last = self.limiter.c[:, -1]
        step, limited = shape(
            wanted - last, last - self.limiter.c[:, -2], forward(last, self.arm).jac[:, :, :3], self.profile, self.dt
        )
        return np.where(limited[:, None], np.clip(last + step, self.profile.low, self.profile.high), wanted)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next targets depend on, for `SimEnv.state_dict`."""
        return {} if self.limiter is None else dict(self.limiter.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the filter that gave `state`, under the same limits."""
        if not state:
            self.limiter = None
            return
        if self.limiter is None:
            self.limiter = CommandLimiter(self.profile, len(state["c"]), dt=self.dt, projection=None)
        self.limiter.load_state_dict(state)

"""From policy actions to joint targets, by the code that the simulator uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from robopolicy.core.errors import SpecError
from robopolicy.real.control.trajectory_spline import shape
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.profile import Profile
from robopolicy.sim.control import Controller
from robopolicy.sim.kinematics import Frame, forward, yaw_of


class Target(NamedTuple):
    """Where to be at the end of a control step."""

    q: Array  # [n] rad
    opening: float  # m
    limited: bool  # slower than the action asked for


class Commanded(NamedTuple):
    """Commanded pose of the arm, in the coordinates of the policy's actions."""

    q: Array  # [n] rad
    pos: Array  # [3] m, of the tool
    yaw: float  # rad
    grip: float  # −1 closed … 1 open


class ActionDecoder:
    """Turns one action into a joint target and a gripper opening, with the simulator's controller for one arm.

    Raises:
        SpecError: the controller has a joint filter, as in training: here the loop paces and the safety chain filters.
    """

    def __init__(self, controller: Controller, *, stroke: float, dt: float) -> None:
        if controller.joint_filter is not None:
            raise SpecError(
                "joint_filter: expected an env without one, found one: on an arm the safety chain takes its place. "
                "Build the env without"
            )
        self.controller, self.stroke, self.dt = controller, stroke, dt
        self.last_step: Array = np.zeros(controller.q.shape[1])  # [n] rad, of the joint targets
        self.low, self.high = np.array(controller.spec.low), np.array(controller.spec.high)

    def start(self, q: Array, opening: float) -> None:
        """Start from measured joints `q` [n] rad and `opening` m."""
        qpos = np.concatenate([q, [opening / 2, opening / 2]])[None]
        frame = forward(q[None], self.controller.arm)
        self.controller.reset(np.array([0]), qpos, frame)
        self.controller.follow(frame)
        self.last_step = np.zeros(len(q))

    @property
    def commanded(self) -> Commanded:
        c = self.controller
        return Commanded(c.q[0].copy(), c.pos[0].copy(), float(c.yaw[0]), float(c.grip[0]))

    @contextmanager
    def looking_ahead(self, actions: Sequence[Array], q: Array, profile: Profile) -> Iterator[list[Array]]:
        """Decode `actions` [Da], and take it back at the end: yields the joint target [n] rad of each.

        Within, the commanded pose is the one after them. `q` [n] rad: where the arm is measured.
        """
        c, step = self.controller, self.last_step
        kept = {k: getattr(c, k).copy() for k in ("q", "pos", "yaw", "grip", "redirected", "intervened")}
        frame = c.frame
        try:
            yield [self.decode(action, q, profile).q for action in actions]
        finally:
            self.last_step, c.frame = step, frame
            for key, value in kept.items():
                setattr(c, key, value)

    def decode(self, action: Array, q: Array, profile: Profile) -> Target:
        """Decode `action` [Da] with the arm measured at `q` [n] rad, at a pace that `profile` permits.

        Where the pace is slower than asked for, the commanded pose follows the real joint targets, so that the policy
        observes the true pose and no error winds up.
        """
        c, clamped = self.controller, np.clip(action, self.low, self.high)
        frame: Frame = forward(q[None], c.arm)
        before, jac = c.q[0].copy(), forward(c.q, c.arm).jac[0, :, :3]
        ctrl = c.command(clamped[None], frame.pos, yaw_of(frame))
        return self._go(ctrl[0, : len(q)].copy(), before, jac, float(ctrl[0, -1] * 2), profile)

    def retrace(self, to: Commanded, profile: Profile) -> Target:
        """Decode a target at an earlier commanded pose: the same joints, not only the same pose."""
        c = self.controller
        c.grip = np.array([to.grip])
        jac = forward(c.q, c.arm).jac[0, :, :3]
        target = self._go(to.q.copy(), c.q[0].copy(), jac, (to.grip + 1) * self.stroke, profile)
        sent = forward(c.q, c.arm)
        c.pos, c.yaw = sent.pos.copy(), yaw_of(sent)
        return target

    def _go(self, wanted: Array, before: Array, jac: Array, opening: float, profile: Profile) -> Target:
        c = self.controller
        self.last_step, slowed = shape(wanted - before, self.last_step, jac, profile, self.dt)
        limited = bool(slowed)
        goal = np.clip(before + self.last_step, profile.low, profile.high) if limited else wanted
        c.q, c.redirected = goal[None].copy(), np.array([limited])
        c.follow(forward(c.q, c.arm))
        return Target(goal, opening, limited)

"""Domain randomisation: off by default, keyed by the episode seed, part of the spec's digest."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from robopolicy.core.errors import ConfigError

Array = NDArray[np.float64]
Range = tuple[float, float]
_LATEST = 1000  # control steps
_IMMOVABLE = 1e6  # kg or kg m², armature of what no arm moves (planar_fixture)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Randomization:
    """Ranges of the variation between episodes. Scales multiply the nominal value; (1, 1) leaves it alone.

    Args:
        mass: scale of the masses and inertias of everything but the arm.
        friction: scale of all sliding friction coefficients.
        damping: scale of joint damping and of the servos' velocity gains.
        sensor_noise: standard deviation added to every entry of `observation.state`, in its own SI unit.
        latency: (fewest, most) control steps by which an action is late; drawn per episode. Two whole numbers: whole
            steps. Else parts of a step too: the arm then goes on with the earlier action for the first part of a step.
    """

    mass: Range = (1.0, 1.0)
    friction: Range = (1.0, 1.0)
    damping: Range = (1.0, 1.0)
    sensor_noise: float = 0.0
    latency: tuple[int | float, int | float] = (0, 0)

    def __post_init__(self) -> None:
        for key in ("mass", "friction", "damping"):
            low, high = getattr(self, key)
            if not 0 < low <= high < math.inf:
                raise ConfigError(f"randomization.{key}: expected 0 < low ≤ high, both finite, found ({low}, {high})")
        if not 0 <= self.latency[0] <= self.latency[1] <= _LATEST:
            raise ConfigError(f"randomization.latency: expected 0 ≤ low ≤ high ≤ {_LATEST} steps, found {self.latency}")
        if not 0 <= self.sensor_noise < math.inf:
            raise ConfigError(f"randomization.sensor_noise: expected a finite number ≥ 0, found {self.sensor_noise}")

    @property
    def physical(self) -> bool:
        """Return whether envs need models of their own."""
        return any(getattr(self, k) != (1.0, 1.0) for k in ("mass", "friction", "damping"))

    @property
    def whole_steps(self) -> bool:
        """Return whether actions are late by whole control steps."""
        return all(isinstance(steps, int) for steps in self.latency)

    @property
    def most_steps(self) -> int:
        """Return the control steps, rounded up, by which an action may be late."""
        return math.ceil(self.latency[1])

    @property
    def ranges(self) -> Mapping[str, Range]:
        """Extra uniform numbers per episode; none where nothing varies, so that nominal episodes stay the same."""
        ranges: dict[str, Range] = {}
        for key in ("mass", "friction", "damping"):
            if getattr(self, key) != (1.0, 1.0):
                ranges[f"randomize_{key}"] = getattr(self, key)
        if self.latency[1]:
            ranges["randomize_latency"] = (self.latency[0], self.latency[1] + self.whole_steps)
        return ranges

    def late(self, actions: Array, steps: Array, gripper: int | None) -> Array:
        """Return the action [N Da] that reaches each arm now, of the last ones [N K Da], newest first.

        Args:
            steps: [N] control steps by which actions are late. gripper: its element of an action.
        """
        rows, most = np.arange(len(actions)), actions.shape[1] - 1
        steps = np.minimum(steps, most)
        newer = steps.astype(np.int64)
        if self.whole_steps:
            return np.asarray(actions[rows, newer])
        # Targets go along a ramp in a control step: after one that begins late, the arm is at a mixture.
        part = (steps - newer)[:, None]
        found: Array = (1 - part) * actions[rows, newer] + part * actions[rows, np.minimum(newer + 1, most)]
        if gripper is not None:  # gripper commands are never blended
            found[:, gripper] = actions[rows, np.rint(steps).astype(np.int64), gripper]
        return found


class ModelBank:
    """N copies of a model whose physical parameters are set per episode; warns where `ranges` have nothing to scale."""

    def __init__(self, model: mujoco.MjModel, num_envs: int, ranges: Randomization) -> None:
        self.nominal = model
        self.models = [copy.copy(model) for _ in range(num_envs)]
        self._data = mujoco.MjData(model)
        arm = {i for i in range(model.nbody) if _in_arm(model, i)}
        self._loose = np.array([i not in arm for i in range(model.nbody)])
        moves = [i for i in np.flatnonzero(self._loose) if model.body_dofnum[i]]
        light = any(model.dof_armature[model.body_dofadr[i]] < _IMMOVABLE for i in moves)
        if ranges.mass != (1.0, 1.0) and not light:
            _log.warning("randomization.mass: nothing but the arm moves in this scene, so it changes nothing")

    def set(self, row: int, draw: Mapping[str, NDArray[np.float64]], k: int) -> None:
        """Give env `row` the parameters of the k-th drawn episode."""
        m, nominal = self.models[row], self.nominal
        mass = draw["randomize_mass"][k] if "randomize_mass" in draw else 1.0
        m.body_mass[self._loose] = nominal.body_mass[self._loose] * mass
        m.body_inertia[self._loose] = nominal.body_inertia[self._loose] * mass
        if "randomize_friction" in draw:
            m.geom_friction[:, 0] = nominal.geom_friction[:, 0] * draw["randomize_friction"][k]
        if "randomize_damping" in draw:
            scale = draw["randomize_damping"][k]
            m.dof_damping[:] = nominal.dof_damping * scale
            arm = slice(m.nu - 2)  # the fingers come last
            m.actuator_biasprm[arm, 2] = nominal.actuator_biasprm[arm, 2] * scale
        mujoco.mj_setConst(m, self._data)
        m.stat.meaninertia = nominal.stat.meaninertia  # a task fixes it: solver tolerances are relative to it


def _in_arm(model: mujoco.MjModel, body: int) -> bool:
    while body:
        if model.body(body).name == "base":
            return True
        body = int(model.body_parentid[body])
    return False

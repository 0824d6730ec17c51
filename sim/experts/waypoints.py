"""Scripted experts: waypoint machines over phases, vectorised over N, with tunable zero-mean noise.

An expert sees the observation and its own phase state, nothing else. Its errors are keyed by the episode seed and
its own step counter, so a demonstration is a function of the seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robopolicy.core.errors import ConfigError
from robopolicy.core.rng import keyed_normal, keyed_uniform
from robopolicy.core.types import STATE, EnvSpec, Obs
from robopolicy.sim.tasks.base import Task

Array = NDArray[np.float64]
Phase = NDArray[np.int64]  # [N]
Groups = Mapping[str, Array]  # the observation by name
Targets = tuple[Array, Array, Array]  # position of the TCP [N 3] m, yaw [N] rad, gripper [N] in [-1, 1]
_STREAM = 7001  # expert noise; env resets and policies use other streams


class Unpacks(Protocol):
    """Reader of `observation.state` by name, such as a StateLayout."""

    def unpack(self, state: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]: ...


class Expert:
    """Base class: subclasses say, per phase, where to go and when the phase is over.

    Args:
        expert_noise: 0 is the best this script can do. At x, each episode has a target offset of x · `offset`
            (normal, per axis, m and rad), each step a noise of x · `noise` (normal, in fractions of the action
            limits), and each phase ends up to x · `hurry` steps early or late (uniform), all zero-mean.
    """

    phases: ClassVar[int]
    offset: ClassVar[tuple[float, float, float, float]] = (0.02, 0.02, 0.01, 0.3)  # m m m rad: x y z yaw
    noise: ClassVar[float] = 0.5
    hurry: ClassVar[float] = 3.0
    gain: ClassVar[float] = 0.7  # fraction of the remaining way taken per step

    def __init__(self, task: Task, spec: EnvSpec, layout: Unpacks, num_envs: int, *, expert_noise: float = 0.0) -> None:
        if not 0.0 <= expert_noise <= 1.0:
            raise ConfigError(f"expert_noise must be in [0, 1], found {expert_noise}")
        if spec.action.rotation != "yaw":
            raise ConfigError(f"{spec.id}: experts drive control='delta_pose', found rotation {spec.action.rotation!r}")
        self.task, self.spec, self.layout, self.num_envs = task, spec, layout, num_envs
        self.expert_noise = expert_noise
        self.high = np.array(spec.action.high)
        self.phase = np.zeros(num_envs, dtype=np.int64)
        self.clock = np.zeros(num_envs, dtype=np.int64)  # steps spent in this phase
        self.step = np.zeros(num_envs, dtype=np.int64)
        self.seed = torch.zeros(num_envs, dtype=torch.int64)
        self.bias: Array = np.zeros((num_envs, 4))  # this episode's target offset: x y z [m], yaw [rad]
        self._delay = np.zeros((num_envs, self.phases))  # steps, added to each phase's waiting time

    def reset(self, mask: Tensor | None, *, episode_seed: Tensor) -> None:
        """Begin new episodes where `mask` [N] is true (None: everywhere); `episode_seed` [N] as the env has it."""
        rows = np.arange(self.num_envs) if mask is None else mask.numpy().nonzero()[0]
        if not len(rows):
            return
        self.phase[rows] = self.clock[rows] = self.step[rows] = 0
        index = torch.from_numpy(rows)
        self.seed[index] = episode_seed[index]
        seed = self.seed[index]
        zero = torch.zeros_like(seed)
        normal = keyed_normal(seed, zero, (4,), stream=_STREAM).double().numpy()
        late = keyed_uniform(seed, zero, (self.phases,), stream=_STREAM + 1).double().numpy()
        self.bias[rows] = normal * np.array(self.offset) * self.expert_noise
        self._delay[rows] = (2 * late - 1) * self.hurry * self.expert_noise

    def plan(self, f: Groups, phase: Phase) -> Targets:
        """Targets at the present `phase` [N]: TCP position [N 3] m, yaw [N] rad, gripper [N] in [-1, 1].

        `f`: the observation by name (`f["tcp"]` [N 3] …), as `StateLayout.unpack` gives it. Use `self.bias` [N 4] to
        let expert noise shift the grasp.
        """
        raise NotImplementedError

    def done(self, f: Groups, phase: Phase, gap: Array, turn: Array, clock: Array) -> NDArray[np.bool_]:
        """Return whether [N] the phase is over; the last one never ends.

        `gap` [N] m and `turn` [N] rad to the target; `clock` [N] steps in the phase, less the episode's random delay.
        """
        return np.zeros(self.num_envs, dtype=bool)

    def retry(self, f: Groups, phase: Phase) -> NDArray[np.bool_] | None:
        """Return whether [N] to begin again at phase 0. None: never."""
        return None

    def act(self, obs: Obs) -> Tensor:
        """Return [N 5] action within the limits."""
        f = {k: v.astype(np.float64) for k, v in self.layout.unpack(obs[STATE].numpy()).items()}
        lost = self.retry(f, self.phase)
        if lost is not None and lost.any():
            self.phase[lost] = self.clock[lost] = 0
        delay = np.take_along_axis(self._delay, self.phase[:, None], axis=1)[:, 0]
        pos, yaw, grip = self.plan(f, self.phase)
        gap, turn = np.sqrt(((pos - f["tcp"]) ** 2).sum(axis=1)), np.abs(yaw - f["yaw"])
        over = self.done(f, self.phase, gap, turn, self.clock - delay) & (self.phase < self.phases - 1)
        if over.any():  # the next phase acts at once, so no step is wasted
            self.phase += over
            self.clock[over] = 0
            pos, yaw, grip = self.plan(f, self.phase)
        # The action is relative to the commanded pose: measured pose plus lag.
        action = np.empty((self.num_envs, 5))
        action[:, :3] = self.gain * (pos - f["tcp"] - f["lag"][:, :3])
        action[:, 3] = self.gain * (yaw - f["yaw"] - f["lag"][:, 3])
        action[:, 4] = grip
        if self.expert_noise:
            step = torch.from_numpy(self.step)
            noise = keyed_normal(self.seed, step, (4,), stream=_STREAM + 2).double().numpy()
            clipped = np.clip(action[:, :4], -self.high[:4], self.high[:4])
            action[:, :4] = clipped + noise * (self.noise * self.expert_noise) * self.high[:4]
        self.clock += 1
        self.step += 1
        return torch.from_numpy(np.clip(action, -self.high, self.high).astype(np.float32))

"""Perturb an env for robustness tests: action latency, sensor noise, friction and mass."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from robopolicy.config.instantiate import build
from robopolicy.config.registry import resolve
from robopolicy.config.schema import Natural, NonNegative, Positive, signature
from robopolicy.core.errors import ConfigError
from robopolicy.core.rng import keyed_normal
from robopolicy.core.types import STATE, EnvSpec, Obs, Step, VecEnv
from robopolicy.envs.wrappers import Wrapper, request_images

NOMINAL = {"latency": 0, "friction": 1.0, "mass": 1.0, "sensor_noise": 0.0}
UNITS = {
    "latency": "control steps by which an action is late",
    "friction": "sliding friction, as a multiple of the task's own",
    "mass": "mass of everything but the arm, as a multiple of the task's own",
    "sensor_noise": "standard deviation added to every entry of observation.state, in its own unit",
}
ANYWHERE = ("latency", "sensor_noise")  # conditions that a wrapper adds to any env
_STREAM = 9501


@dataclass(frozen=True)
class Grid:
    """Values of each condition, which is varied alone; (): skip the condition. See UNITS.

    Args:
        latency: control steps by which an action is late.
        friction: multiples of the task's own.
        mass: multiples of everything's own but the arm's.
        sensor_noise: standard deviation of the noise on every entry of observation.state, in its unit.
    """

    latency: tuple[Natural, ...] = (0, 1, 2, 3, 4)
    friction: tuple[Positive, ...] = (0.25, 0.5, 1.0, 1.5, 2.0)
    mass: tuple[Positive, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)
    sensor_noise: tuple[NonNegative, ...] = (0.0, 0.002, 0.005, 0.01, 0.02)

    def points(self) -> list[tuple[str, float]]:
        """List all pairs of condition and value, in order."""
        return [(what, value) for what in NOMINAL for value in getattr(self, what)]


class Perturbed(Wrapper):
    """Delays actions by `latency` steps and adds Gaussian noise to `observation.state`.

    Until the first action of an episode arrives, the env gets zero deltas and the first gripper command. Noise is keyed
    by (episode seed, step), so an episode stays a function of its seed.

    Raises:
        ConfigError: latency with absolute actions, which have no zero motion; sensor noise without a state.
    """

    def __init__(self, env: VecEnv, *, latency: int = 0, sensor_noise: float = 0.0) -> None:
        super().__init__(env)
        check_anywhere(env.spec, latency=latency, sensor_noise=sensor_noise)
        self.latency, self.sensor_noise = latency, sensor_noise
        text = f"{env.spec.digest} latency={latency} sensor_noise={sensor_noise!r}"
        self.spec: EnvSpec = replace(env.spec, digest=hashlib.sha256(text.encode()).hexdigest()[:16], resumable=False)
        self.late = torch.zeros(env.num_envs, latency, env.spec.action.dim, device=env.device)  # newest first
        self.time = torch.zeros(env.num_envs, dtype=torch.int64, device=env.device)

    def request_images(self, rows: Tensor) -> None:
        """See Selective."""
        request_images(self.env, rows)

    def reset(self, seeds: Tensor | None = None) -> Obs:
        obs = self.env.reset(seeds)
        self.time = torch.zeros_like(self.time)
        return self._noisy(obs, self.episode_seed, self.time)

    def step(self, action: Tensor) -> Step:
        seed, first, gripper = self.episode_seed.clone(), self.time == 0, self.spec.action.gripper
        applied = action
        if self.latency:
            still = torch.zeros_like(action)
            if gripper is not None:
                still[:, gripper] = action[:, gripper]
            self.late = torch.where(first[:, None, None], still[:, None], self.late)
            applied = self.late[:, -1]
            self.late = torch.cat([action[:, None].to(self.late), self.late[:, :-1]], dim=1)
        step = self.env.step(applied)
        later, ended = self.time + step.steps, step.ended
        self.time = torch.where(ended, 0, later)
        next_obs = self._noisy(step.next_obs, seed, later)
        obs = next_obs
        if bool(ended.any()):
            obs = self._noisy(step.obs, self.episode_seed, self.time)
        return step._replace(obs=obs, next_obs=next_obs)

    def state_dict(self) -> dict[str, Any]:
        raise ConfigError(f"{self.spec.id}: a perturbed env is there to evaluate in, not to train in")

    def _noisy(self, obs: Obs, seed: Tensor, time: Tensor) -> Obs:
        if not self.sensor_noise:
            return obs
        noise = keyed_normal(seed, time, tuple(obs[STATE].shape[1:]), stream=_STREAM)
        return {**obs, STATE: obs[STATE] + self.sensor_noise * noise}


def check_anywhere(spec: EnvSpec, *, latency: float = 0, sensor_noise: float = 0.0) -> None:
    """Raise ConfigError unless an env of this `spec` allows both conditions."""
    if latency and spec.action.reference == "absolute":
        raise ConfigError(
            f"grid.latency: {spec.id} has absolute actions, so nothing says 'stand still' until the first one arrives. "
            "Leave it out: grid.latency=[]"
        )
    if sensor_noise and STATE not in spec.observation:
        raise ConfigError(f"grid.sensor_noise: {spec.id} has no {STATE}. Leave it out: grid.sensor_noise=[]")


def supported_conditions(task: dict[str, Any]) -> set[str]:
    """Return the conditions that the task's constructor accepts, or `randomization`, which covers all of them.

    `friction` and `mass` are multiples, 1 by default.
    """
    return {"randomization", *NOMINAL} & signature(resolve(task, "task"), task).known.keys()


def check_grid(task: dict[str, Any], spec: EnvSpec, grid: Grid) -> None:
    """Raise ConfigError where the grid varies a condition that the task does not support."""
    if task.get("physics") == "warp" and any(value != 1.0 for value in (*grid.friction, *grid.mass)):
        raise ConfigError(
            "grid.friction, grid.mass: task.physics=warp has one model for all envs. Leave them out: grid.friction=[] "
            "grid.mass=[]"
        )
    if "randomization" in (own := supported_conditions(task)):
        return
    for what in [w for w in NOMINAL if w not in {*ANYWHERE, *own} and getattr(grid, w)]:
        raise ConfigError(
            f"grid.{what}: only tasks that take task.randomization or task.{what} change it, and {spec.id} takes "
            f"neither. {' and '.join(ANYWHERE)} can be changed of any; leave out the rest: grid.friction=[] "
            "grid.mass=[]"
        )
    check_anywhere(spec, latency=max(grid.latency, default=0), sensor_noise=max(grid.sensor_noise, default=0.0))


def changes(task: dict[str, Any], what: str, value: float) -> bool:
    """Return whether a condition at `value` is another than the task's own."""
    own = (task.get("randomization") or {}).get(what, task.get(what, 0) if what in ANYWHERE else None)
    alike: tuple[Any, ...] = (None, NOMINAL[what], [NOMINAL[what]] * 2, (NOMINAL[what],) * 2)
    return value != NOMINAL[what] or own not in alike


def perturbed(task: dict[str, Any], what: str, value: float, *, num_envs: int) -> VecEnv:
    """Build the task's env with one condition changed; equal episode seeds leave everything else equal."""
    how: dict[str, Any] = {"num_envs": num_envs, "seed": 0}
    if not changes(task, what, value):
        return build(task, "task", **how)
    own: set[str] = supported_conditions(task)
    change: dict[str, Any] = {what: value}
    if "randomization" in own:
        change = {what: value if what == "sensor_noise" else [value, value]}
        return build({**task, "randomization": {**(task.get("randomization") or {}), **change}}, "task", **how)
    if what in own:
        given = value if what in ANYWHERE else value * float(task.get(what, 1.0))
        return build({**task, what: given}, "task", **how)
    return Perturbed(build(task, "task", **how), **change)

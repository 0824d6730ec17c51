"""Meta-World v3 (Yu et al. 2019; McLean et al. 2025): fifty tasks of one arm, with goals in the observation.

Protocol: the goal-observable variant of a task; every episode draws object and goal from the task's own ranges with its
episode seed; success is the task's own flag, at any step, and ends the episode; reward is that success. `horizon` 200
of the benchmark's 500 steps (its scripted experts mostly need fewer), at 80 steps a second.
"""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from robopolicy.errors import ConfigError, closest
from robopolicy.noise import keyed_normal
from robopolicy.types import STATE, ActionSpec, Obs
from sim.gym_adapter import GymVecEnv

try:
    import metaworld.policies
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE as TASKS
except ImportError as error:
    raise ConfigError(f"task=metaworld needs Meta-World ({error}): ./scripts/setup.sh suites") from error

_STREAM = 7011  # expert noise
_OFFSET, _NOISE = 0.3, 0.5  # of an expert at imperfection 1, in fractions of the action limits
ACTION = ActionSpec(
    names=("dx", "dy", "dz", "gripper"), units=("1",) * 4, low=(-1.0,) * 4, high=(1.0,) * 4, frame="world",
    tcp="mocap", rotation="none", reference="commanded", gripper=3, gripper_meaning="effort: -1 opens, +1 closes",
)  # fmt: skip


def task_names() -> list[str]:
    """What `make` takes: "reach-v3" …"""
    return sorted(name.removesuffix("-goal-observable") for name in TASKS)


class MetaWorldEnv(gymnasium.Env):
    """One task, in which an episode is a function of its seed."""

    metadata = {"render_modes": [], "render_fps": 80}  # noqa: RUF012  as Gymnasium has it

    def __init__(self, name: str) -> None:
        self.inner = TASKS[f"{name}-goal-observable"](seed=0)
        self.inner._freeze_rand_vec, self.inner.seeded_rand_vec = False, True
        size = self.inner.observation_space.shape
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, size, np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.inner.seed(seed)
        obs, _ = self.inner.reset()
        return obs.astype(np.float32), {"success": False}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, _, _, _, info = self.inner.step(action)
        success = bool(info["success"])
        return obs.astype(np.float32), float(success), success, False, {"success": success}

    def close(self) -> None:
        self.inner.close()


class ScriptedExpert:
    """Meta-World's own scripted policy of the task.

    Args:
        imperfection: at x, every episode has a constant error and every step a noise of its own (both normal, per
            dimension), of x · 0.3 and x · 0.5 of the action limits.
    """

    def __init__(self, name: str, num_envs: int, *, imperfection: float = 0.0) -> None:
        self.policies = [metaworld.policies.ENV_POLICY_MAP[name]() for _ in range(num_envs)]
        self.make, self.imperfection = metaworld.policies.ENV_POLICY_MAP[name], imperfection
        self.seed = torch.zeros(num_envs, dtype=torch.int64)
        self.steps = torch.zeros(num_envs, dtype=torch.int64)

    def reset(self, mask: Tensor | None, *, episode_seed: Tensor) -> None:
        """Begin new episodes where `mask` [N] is true (None: everywhere)."""
        rows = torch.ones(len(self.seed), dtype=torch.bool) if mask is None else mask
        self.seed, self.steps = torch.where(rows, episode_seed, self.seed), torch.where(rows, 0, self.steps)
        for i in rows.nonzero()[:, 0].tolist():
            self.policies[i] = self.make()

    def act(self, obs: Obs) -> Tensor:
        """[N 4] from `observation.state` [N 39]."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Constant")  # its gains saturate the action, as they are meant to
            states = obs[STATE].double().numpy()
            action = np.stack([p.get_action(s) for p, s in zip(self.policies, states, strict=True)])
        found = torch.from_numpy(action).float().clamp(-1.0, 1.0)
        self.steps += 1
        zero = torch.zeros_like(self.seed)
        offset = keyed_normal(self.seed, zero, (4,), stream=_STREAM)
        noise = keyed_normal(self.seed, self.steps, (4,), stream=_STREAM)
        return (found + self.imperfection * (_OFFSET * offset + _NOISE * noise)).clamp(-1.0, 1.0)


class MetaWorldVecEnv(GymVecEnv):
    """N copies of one task."""

    def __init__(self, name: str, env: gymnasium.vector.VectorEnv, **how: Any) -> None:
        super().__init__(env, **how)
        self.name = name

    def make_expert(self, *, imperfection: float = 0.0) -> ScriptedExpert:
        """The benchmark's scripted policy of this task."""
        return ScriptedExpert(self.name, self.num_envs, imperfection=imperfection)


def make(name: str, num_envs: int, seed: int = 0, *, horizon: int = 200, processes: bool = False) -> MetaWorldVecEnv:
    """A task of Meta-World as a VecEnv.

    Args:
        name: one of `task_names()`.
        seed: names the stream of training episodes.
        horizon: steps to truncation, at most the benchmark's 500.
        processes: step every env in a process of its own.

    Raises:
        ConfigError: no such task, or a horizon that it does not have.
    """
    if name not in task_names():
        raise ConfigError(f"task.name={name!r}: Meta-World has no such task. {closest(name, task_names())}")
    if not 1 <= horizon <= 500:
        raise ConfigError(f"task.horizon: expected 1 to 500 steps, found {horizon}")
    ident = f"metaworld/{name}"
    if ident not in gymnasium.registry:
        gymnasium.register(ident, entry_point=MetaWorldEnv, kwargs={"name": name})
    envs = gymnasium.make_vec(
        ident, num_envs, vectorization_mode="async" if processes else "sync", max_episode_steps=horizon,
        vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED},
    )  # fmt: skip
    return MetaWorldVecEnv(name, envs, seed=seed, instructions=name.removesuffix("-v3").replace("-", " "),
                           horizon=horizon, action=ACTION)  # fmt: skip

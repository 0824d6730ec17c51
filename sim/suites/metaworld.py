"""Meta-World v3 (Yu et al. 2019; McLean et al. 2025): fifty tasks of one arm, with goals in the observation.

Protocol: the goal-observable variant of a task; every episode draws object and goal from the task's own ranges with its
episode seed; success is the task's own flag, at any step, and ends the episode; reward is that success. `horizon` 200
of the benchmark's 500 steps (its scripted experts mostly need fewer), at 80 steps a second.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from robopolicy.errors import ConfigError, closest
from robopolicy.types import STATE, ActionSpec, Obs
from sim.gym_adapter import GymVecEnv
from sim.suites.experts import ScriptedExpert
from sim.suites.versions import needs
from sim.suites.workers import vector_env

with needs("metaworld"):
    import metaworld.policies
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE as TASKS

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


class MetaWorldExpert(ScriptedExpert):
    """Meta-World's own scripted policy of the task."""

    def __init__(self, name: str, action: ActionSpec, num_envs: int, *, imperfection: float = 0.0) -> None:
        super().__init__(action, num_envs, imperfection=imperfection)
        self.make = metaworld.policies.ENV_POLICY_MAP[name]
        self.policies = [self.make() for _ in range(num_envs)]

    def begin(self, rows: Tensor) -> None:
        for i in rows.nonzero()[:, 0].tolist():
            self.policies[i] = self.make()

    def plan(self, obs: Obs) -> Tensor:
        """[N 4] from `observation.state` [N 39]."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Constant")  # its gains saturate the action, as they are meant to
            states = obs[STATE].double().numpy()
            action = np.stack([p.get_action(s) for p, s in zip(self.policies, states, strict=True)])
        return torch.from_numpy(action)


class MetaWorldVecEnv(GymVecEnv):
    """N copies of one task."""

    def __init__(self, name: str, env: gymnasium.vector.VectorEnv, **how: Any) -> None:
        super().__init__(env, **how)
        self.name = name

    def make_expert(self, *, imperfection: float = 0.0) -> MetaWorldExpert:
        """The benchmark's scripted policy of this task."""
        return MetaWorldExpert(self.name, self.spec.action, self.num_envs, imperfection=imperfection)


def make(name: str, num_envs: int, seed: int = 0, *, horizon: int = 200, processes: int = 0) -> MetaWorldVecEnv:
    """A task of Meta-World as a VecEnv.

    Args:
        name: one of `task_names()`.
        seed: names the stream of training episodes.
        horizon: steps to truncation, at most the benchmark's 500.
        processes: 0: all envs in this process; else so many workers.

    Raises:
        ConfigError: no such task, or a horizon that it does not have.
    """
    if name not in task_names():
        raise ConfigError(f"task.name={name!r}: Meta-World has no such task. {closest(name, task_names())}")
    if not 1 <= horizon <= 500:
        raise ConfigError(f"task.horizon: expected 1 to 500 steps, found {horizon}")
    one = functools.partial(MetaWorldEnv, name)
    envs = vector_env(one, f"metaworld/{name}", num_envs, horizon=horizon, processes=processes, name=name)
    return MetaWorldVecEnv(name, envs, seed=seed, instructions=name.removesuffix("-v3").replace("-", " "),
                           horizon=horizon, action=ACTION)  # fmt: skip

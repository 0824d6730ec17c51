"""Meta-World v3 (Yu et al. 2019; McLean et al. 2025): fifty tasks of one arm, with goals in the observation.

Protocol: the goal-observable variant of a task; every episode draws object and goal from the task's own ranges with its
episode seed; success is the task's own flag, at any step, and ends the episode; reward is that success. `horizon` 200
of the benchmark's 500 steps (its scripted experts mostly need fewer), at 80 steps a second.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any, Unpack

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from robopolicy.config.schema import Natural
from robopolicy.core.types import STATE, ActionSpec, Obs
from robopolicy.sim.experts.suites import ScriptedExpert
from robopolicy.sim.gymnasium.film import RGB
from robopolicy.sim.suites.base import ExpertVecEnv, MujocoSuiteEnv, check_task, needs, steps_of, unit_action
from robopolicy.sim.suites.vector_env import FarmOptions, vector_env

with needs("metaworld"):
    import metaworld.policies
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE as TASKS

ACTION = unit_action(
    "dx", "dy", "dz", "gripper", frame="world", tcp="mocap", rotation="none", reference="commanded",
    gripper_meaning="effort: -1 opens, +1 closes",
)  # fmt: skip


def task_names() -> list[str]:
    """Names that `make` takes: "reach-v3" …"""
    return sorted(name.removesuffix("-goal-observable") for name in TASKS)


class MetaWorldEnv(MujocoSuiteEnv):
    """One task."""

    metadata = {"render_modes": [RGB], "render_fps": 80}  # noqa: RUF012  as Gymnasium has it
    camera = "corner3"

    def __init__(self, name: str, relative: bool, second: bool = False) -> None:
        task: Any = TASKS[f"{name}-goal-observable"]  # takes a seed, unlike its base class
        self.inner = task(seed=0)
        self.inner._freeze_rand_vec, self.inner.seeded_rand_vec = False, True
        self.relative, self.second = relative, second
        size = (len(element_names(relative, second)),)
        self.observation_space = Box(-np.inf, np.inf, size, np.float32)
        self.action_space = Box(-1.0, 1.0, (4,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.inner.seed(seed)
        obs, _ = self.inner.reset()
        return self._seen(obs), {"success": False}

    def act(self, action: Any) -> tuple[Any, Any]:
        obs, _, _, _, info = self.inner.step(action)
        return self._seen(obs), info["success"]

    def physics(self) -> tuple[Any, Any]:
        return self.inner.model, self.inner.data

    def _seen(self, obs: Any) -> Any:
        now, before, goal = obs[:18], obs[18:36], obs[36:39]
        hand, thing, other = now[:3], now[4:7], now[11:14]
        if self.relative:
            obs = np.concatenate([obs, thing - hand, goal - thing, hand - before[:3], thing - before[4:7]])
        if self.second:
            obs = np.concatenate([obs, other - hand, other - thing, other - before[11:14]])
        return obs.astype(np.float32)


def element_names(relative: bool, second: bool = False) -> list[str]:
    """Return the names: hand_x …, gripper, object_x …, object_q0 …, other_…, before_hand_x …, goal_x …

    Behind them what `relative` adds: hand_to_object_x …, object_to_goal_x …, hand_step_x …, object_step_x …; then what
    `second` adds: hand_to_other_x …, object_to_other_x …, other_step_x …
    """
    places = [f"{thing}_{end}" for thing in ("object", "other") for end in ("x", "y", "z", "q0", "q1", "q2", "q3")]
    now = ["hand_x", "hand_y", "hand_z", "gripper", *places]
    more = [
        *(("hand_to_object", "object_to_goal", "hand_step", "object_step") if relative else ()),
        *(("hand_to_other", "object_to_other", "other_step") if second else ()),
    ]
    return [*now, *(f"before_{name}" for name in now), *(f"{what}_{end}" for what in ("goal", *more) for end in "xyz")]


class MetaWorldExpert(ScriptedExpert):
    """Meta-World's own scripted policy of the task."""

    def __init__(self, name: str, action: ActionSpec, num_envs: int, *, expert_noise: float = 0.0) -> None:
        super().__init__(action, num_envs, expert_noise=expert_noise)
        policies: Any = metaworld.policies.ENV_POLICY_MAP  # to mypy, of the abstract base class
        self.make = policies[name]
        self.policies = [self.make() for _ in range(num_envs)]

    def begin(self, rows: Tensor) -> None:
        for i in rows.nonzero()[:, 0].tolist():
            self.policies[i] = self.make()

    def plan(self, obs: Obs) -> Tensor:
        """Return [N 4] from `observation.state` [N 39 …]."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Constant")  # its gains saturate the action, as they are meant to
            states = obs[STATE][:, :39].double().numpy()
            action = np.stack([p.get_action(s) for p, s in zip(self.policies, states, strict=True)])
        return torch.from_numpy(action)


def make(
    name: str, num_envs: int, seed: int = 0, *, horizon: int = 200, relative: bool = False, second: bool = False,
    processes: Natural = 0,
    **workers: Unpack[FarmOptions],
) -> ExpertVecEnv:  # fmt: skip
    """Build a task of Meta-World as a VecEnv.

    Args:
        name: one of `task_names()`.
        seed: names the stream of training episodes.
        horizon: steps to truncation, at most the benchmark's 500.
        relative: behind the benchmark's 39 numbers 12 more that follow from them: the object from the hand, the goal
            from the object, and how far hand and object moved in the last step.
        second: behind these 9 more of the second object, which is 0 where a task has one alone: from the hand, from the
            object, and how far it moved in the last step.
        processes: 0: all envs in this process; else so many workers.
        workers: how these run, see FarmOptions.

    Raises:
        ConfigError: no such task, or a horizon that it does not have.
    """
    check_task(name, task_names(), "Meta-World", key="metaworld")
    horizon = steps_of(horizon, None, 500)
    one = functools.partial(MetaWorldEnv, name, relative, second)
    facts: dict[str, Any] = {k: True for k, v in (("relative", relative), ("second", second)) if v}
    envs = vector_env(
        one, f"metaworld/{name}", num_envs, horizon=horizon, processes=processes, **workers, name=name, **facts
    )
    return ExpertVecEnv(
        envs, expert=functools.partial(MetaWorldExpert, name), seed=seed, horizon=horizon, action=ACTION,
        instructions=name.removesuffix("-v3").replace("-", " "), names=element_names(relative, second),
    )  # fmt: skip

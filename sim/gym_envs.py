"""Present native tasks as Gymnasium environments: "robopolicy.sim.gym_envs:robopolicy/Pick-v0".

Importing this module registers them, and Gymnasium imports what stands before the colon of an id. `robopolicy/Pick-v0`
alone is known only after the import: Gymnasium 1.0 and later look for no plugins.

Observations: a Box (`observation.state`), or a Dict of it and the pictures where cameras are asked for. Actions:
physical units. Vector envs reset ended episodes in the same step, with `info["final_obs"]`.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from robopolicy import sim
from robopolicy.core.errors import ConfigError
from robopolicy.core.types import STATE, TASK, Obs
from robopolicy.sim.env import SimEnv

_NAMESPACE = "robopolicy"


def gym_id(task: str) -> str:
    """Return the Gymnasium id: "peg-easy" -> "robopolicy/PegEasy-v0"."""
    return f"{_NAMESPACE}/{''.join(part.capitalize() for part in task.replace('_', '-').split('-'))}-v0"


def register() -> None:
    """Make every native task known to Gymnasium. Safe to call twice."""
    for task in sim.task_names():
        if gym_id(task) not in gymnasium.registry:
            gymnasium.register(
                id=gym_id(task),
                entry_point="robopolicy.sim.gym_envs:GymEnv",
                vector_entry_point="robopolicy.sim.gym_envs:GymVectorEnv",
                kwargs={"task": task},
            )


def spaces(env: SimEnv) -> tuple[gymnasium.Space, gymnasium.spaces.Box]:
    """Single observation and action space of `env`."""
    boxes: dict[str, gymnasium.Space] = {}
    for key, feature in env.spec.observation.items():
        if key == TASK:
            continue
        low, high = (0, 255) if feature.dtype == "uint8" else (-np.inf, np.inf)
        boxes[key] = gymnasium.spaces.Box(low, high, feature.shape, np.dtype(feature.dtype))
    action = env.spec.action
    box = gymnasium.spaces.Box(np.array(action.low, np.float32), np.array(action.high, np.float32), dtype=np.float32)
    return (boxes[STATE] if len(boxes) == 1 else gymnasium.spaces.Dict(boxes)), box


def _emit(obs: Obs) -> Any:
    arrays = {k: v.numpy() for k, v in obs.items() if k != TASK}
    return arrays[STATE] if len(arrays) == 1 else arrays


class GymVectorEnv(VectorEnv):
    """`SimEnv` behind Gymnasium's vector interface. Keyword arguments go to `sim.make`."""

    metadata = {"render_modes": ["rgb_array"], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012  as Gymnasium

    def __init__(self, num_envs: int = 1, *, task: str, render_mode: str | None = None, **kw: Any) -> None:
        self.env = sim.make(task, num_envs, **kw)
        self.num_envs, self.render_mode = num_envs, render_mode
        self.metadata = self.metadata | {"render_fps": round(1 / self.env.dt)}
        self.single_observation_space, self.single_action_space = spaces(self.env)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start new episodes everywhere.

        Args:
            seed: an int names the stream of all episodes from here on; a list [N] gives the first episodes' own seeds.

        Raises:
            ConfigError: a list that is not one whole number for each env, or a mask: ended envs reset by themselves.
        """
        if options and "reset_mask" in options:
            raise ConfigError("reset_mask: expected none in autoreset mode SAME_STEP: ended envs reset by themselves")
        seeds = None
        if isinstance(seed, numbers.Integral):
            self.env.reseed(int(seed))
        elif seed is not None:
            given: list[Any] = list(seed)  # type: ignore[arg-type]
            if len(given) != self.num_envs or not all(isinstance(s, numbers.Integral) for s in given):
                raise ConfigError(f"seed: expected one whole number for each of {self.num_envs} envs, found {given}")
            seeds = torch.tensor([int(s) for s in given])
        return _emit(self.env.reset(seeds)), {"episode_seed": self.env.episode_seed.numpy()}

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        step = self.env.step(torch.as_tensor(np.asarray(actions, dtype=np.float32)))
        ended = step.ended.numpy()
        info: dict[str, Any] = {
            "success": step.success.numpy(),
            "_success": np.ones(self.num_envs, dtype=bool),
            "episode_seed": self.env.episode_seed.numpy(),
        }
        if ended.any():
            final = np.full(self.num_envs, None, dtype=object)
            for i in ended.nonzero()[0]:
                final[i] = _emit({k: v[i] for k, v in step.next_obs.items()})
            info |= {"final_obs": final, "_final_obs": ended}
            info |= {"final_info": {"success": info["success"], "_success": ended}, "_final_info": ended}
        reward = step.reward.double().numpy()
        return _emit(step.obs), reward, step.terminated.numpy(), step.truncated.numpy(), info

    def render(self) -> tuple[np.ndarray, ...] | None:
        if self.render_mode != "rgb_array":
            return None
        return tuple(self.env.render(i).permute(1, 2, 0).numpy() for i in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        self.env.close()


class GymEnv(gymnasium.Env):
    """One episode at a time, for libraries that want `gymnasium.make`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012  as Gymnasium

    def __init__(self, *, task: str, render_mode: str | None = None, **kw: Any) -> None:
        self.env = sim.make(task, 1, **kw)
        self.render_mode = render_mode
        self.metadata = self.metadata | {"render_fps": round(1 / self.env.dt)}
        self.observation_space, self.action_space = spaces(self.env)
        self._fresh = False  # the env has already begun the next episode by itself

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.env.reseed(seed)
            self._fresh = False
        obs = self.env.observe() if self._fresh else self.env.reset()
        self._fresh = False
        return _emit({k: v[0] for k, v in obs.items()}), {"episode_seed": int(self.env.episode_seed[0])}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        step = self.env.step(torch.as_tensor(np.asarray(action, dtype=np.float32))[None])
        self._fresh = bool(step.ended[0])
        return (
            _emit({k: v[0] for k, v in step.next_obs.items()}),
            float(step.reward[0]),
            bool(step.terminated[0]),
            bool(step.truncated[0]),
            {"success": bool(step.success[0])},
        )

    def render(self) -> np.ndarray | None:
        if self.render_mode != "rgb_array":
            return None
        return self.env.render(0, final=self._fresh).permute(1, 2, 0).numpy()

    def close(self) -> None:
        self.env.close()


register()

__all__ = ["GymEnv", "GymVectorEnv", "gym_id", "register"]

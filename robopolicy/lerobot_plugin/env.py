"""Our tasks as an env type of LeRobot: any option of the config group `task`, all N episodes in one batched env."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.envs.configs import EnvConfig
from numpy.typing import NDArray

from robopolicy.config.compose import task_node
from robopolicy.config.instantiate import build, open_arguments
from robopolicy.core.errors import ConfigError
from robopolicy.core.types import ENV_STATE, IMAGES, STATE, TASK, EnvSpec, Obs, VecEnv, close

_log = logging.getLogger(__name__)
_NAMES = {STATE: "agent_pos", ENV_STATE: "environment_state"}  # ours → what LeRobot's commands take from an env


@EnvConfig.register_subclass("robopolicy")
@dataclass
class RobopolicyEnv(EnvConfig):
    """`--env.type=robopolicy --env.task=pick`.

    Args:
        task: an option of our config group `task`.
        cameras, image_size: pictures that join the observation, and their height and width.
        options: further keys of the task, e.g. --env.options='{"horizon": 120}'.
    """

    task: str = "pick"
    cameras: list[str] = field(default_factory=list)
    image_size: int = 96
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        env = self.make(1)
        spec = env.spec
        close(env)
        self.fps = round(1.0 / spec.dt)
        self.features = {"action": PolicyFeature(FeatureType.ACTION, (spec.action.dim,))}
        self.features_map = {"action": "action"}
        for name, (key, kind, shape) in _entries(spec).items():
            self.features[name] = PolicyFeature(kind, shape)
            self.features_map[name] = key

    def make(self, num_envs: int) -> VecEnv:
        """Raises ConfigError: no such task, or an option that it does not take."""
        node, pictures = task_node(self.task), dict[str, Any]()
        if self.cameras:  # suites take a side
            side = {"size": self.image_size} if "size" in open_arguments(node, "task") else {}
            pictures = {"cameras": self.cameras, **(side or {"image_size": [self.image_size] * 2})}
        return build({**node, **pictures, **self.options}, "task", "env", num_envs=num_envs, seed=0)

    @property
    def gym_kwargs(self) -> dict[str, Any]:
        return {}

    def create_envs(self, n_envs: int, use_async_envs: bool = False) -> dict[str, dict[int, Any]]:
        """One batched env; it needs no processes of its own."""
        return {self.type: {0: LeRobotVectorEnv(self.make(n_envs))}}


def _entries(spec: EnvSpec) -> dict[str, tuple[str, FeatureType, tuple[int, ...]]]:
    """What LeRobot's commands find in an observation: its name there, the policy's key, kind and shape.

    Without pictures the state is there twice, as in our datasets.
    """
    found: dict[str, tuple[str, FeatureType, tuple[int, ...]]] = {}
    for key, feature in spec.observation.items():
        if key.startswith(IMAGES):
            _, h, w = feature.shape
            found[f"pixels/{key.removeprefix(IMAGES)}"] = (key, FeatureType.VISUAL, (h, w, 3))
        elif key != TASK:
            kind = FeatureType.ENV if key == ENV_STATE else FeatureType.STATE
            found[_NAMES.get(key, key.removeprefix("observation."))] = (key, kind, tuple(feature.shape))
    if STATE in spec.observation and not any(k.startswith("pixels/") for k in found):
        found.setdefault(_NAMES[ENV_STATE], (ENV_STATE, FeatureType.ENV, tuple(spec.observation[STATE].shape)))
    return found


class LeRobotVectorEnv(VectorEnv):
    """A VecEnv as `lerobot-eval` and `lerobot-train` drive one: seeds are episode seeds, pictures are [N h w 3].

    LeRobot steps every env until the last one of the batch has ended, and its sums reach one step too far: after its
    episode an env earns nothing until `reset`.
    """

    def __init__(self, env: VecEnv) -> None:
        self.env, self.num_envs = env, env.num_envs
        self.metadata = {
            "render_modes": ["rgb_array"],
            "autoreset_mode": AutoresetMode.SAME_STEP,
            "render_fps": round(1.0 / env.spec.dt),
        }
        action = env.spec.action
        self.single_action_space = gymnasium.spaces.Box(
            np.array(action.low, np.float32), np.array(action.high, np.float32), dtype=np.float32
        )
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._obs: Obs = {}
        self._over = np.zeros(self.num_envs, dtype=bool)

    def reset(
        self, *, seed: int | np.integer[Any] | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """`seed`: one for each env; an int is that of the first, the others follow it."""
        if isinstance(seed, int | np.integer):
            seed = range(int(seed), int(seed) + self.num_envs)
        self._over[:] = False
        self._obs = self.env.reset(None if seed is None else torch.tensor(list(seed), dtype=torch.int64))
        return self._emit(self._obs), {}

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[dict[str, Any], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        step = self.env.step(torch.as_tensor(np.asarray(actions, dtype=np.float32)))
        self._obs = step.obs
        ended, success = step.ended.numpy(), step.success.numpy() & ~self._over
        info: dict[str, Any] = {"is_success": success}
        if ended.any():
            info |= {"final_info": {"is_success": success & ended}, "_final_info": ended}
        reward = np.where(self._over, 0.0, step.reward.double().numpy())
        self._over |= ended
        return self._emit(step.obs), reward, step.terminated.numpy(), step.truncated.numpy(), info

    def call(self, name: str, *args: Any, **kwargs: Any) -> Sequence[Any]:
        """What LeRobot asks every env of a batch for.

        Raises:
            AttributeError: anything else.
        """
        spec = self.env.spec
        if name == "_max_episode_steps":
            return (spec.horizon,) * self.num_envs
        if name in ("task", "task_description"):
            index = self._obs.get(TASK)
            return tuple(spec.tasks[0 if index is None else int(index[i])] for i in range(self.num_envs))
        if name == "render":
            return _Pictures(self.env)
        raise AttributeError(f"{spec.id}: LeRobot asks for {name!r}, which our tasks do not have")

    def get_attr(self, name: str) -> Sequence[Any]:
        return self.call(name)

    def close_extras(self, **kwargs: Any) -> None:
        close(self.env)

    def _emit(self, obs: Obs) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, (key, kind, _) in _entries(self.env.spec).items():
            value = obs[key if key in obs else STATE].numpy()
            if kind is FeatureType.VISUAL:
                found.setdefault("pixels", {})[name.removeprefix("pixels/")] = value.transpose(0, 2, 3, 1)
            else:
                found[name] = value
        return found


class _Pictures(Sequence[NDArray[np.uint8]]):
    """A picture [h w 3] of each env, taken when it is asked for: LeRobot films the first few of a batch alone."""

    def __init__(self, env: VecEnv) -> None:
        self.env = env

    def __len__(self) -> int:
        return self.env.num_envs

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        try:
            return self.env.render(index).permute(1, 2, 0).numpy()  # type: ignore[attr-defined]
        except (AttributeError, ConfigError) as error:  # LeRobot films every evaluation: that must not end it
            _log.warning("no films, their frames are black: %s", error)
            return np.zeros((240, 320, 3), dtype=np.uint8)

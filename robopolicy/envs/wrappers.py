"""Stand between a policy and an env: the observation history, the base's action."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from robopolicy.core.protocols import lost_episodes
from robopolicy.core.types import BASE_ACTION, Feature, Obs, Selective, Stateful, Step, VecEnv, close
from robopolicy.envs.chunk_executor import ChunkExecutor
from robopolicy.policies.base import Policy


class Wrapper:
    """Forwards to the inner env, `state_dict` included, but not `request_images` of Selective.

    A wrapper that reads no images of its own forwards that one by the function `request_images`. Where
    `spec.resumable` is False, reset the env after `load_state_dict`: its episodes are lost.
    """

    def __init__(self, env: VecEnv) -> None:
        self.env, self.spec = env, env.spec
        self.num_envs, self.device = env.num_envs, env.device

    @property
    def episode_seed(self) -> Tensor:
        return self.env.episode_seed

    @property
    def lost_episodes(self) -> int:
        return lost_episodes(self.env)

    def render(self, index: int, **kwargs: Any) -> Tensor:
        return self.env.render(index, **kwargs)  # type: ignore[attr-defined]

    def state_dict(self) -> dict[str, Any]:
        return {"env": self.env.state_dict() if isinstance(self.env, Stateful) else {}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if isinstance(self.env, Stateful):
            self.env.load_state_dict(state["env"])

    def close(self) -> None:
        close(self.env)


def request_images(env: VecEnv, rows: Tensor) -> None:
    """Request images of the envs in `rows` [N] bool at the next step; no effect where `env` is not Selective."""
    if isinstance(env, Selective):
        env.request_images(rows)


class HistoryEnv(Wrapper):
    """Stacks the last `length` frames: every key becomes [N To ...]; an episode's first frame is repeated."""

    def __init__(self, env: VecEnv, length: int) -> None:
        super().__init__(env)
        self.spec = replace(env.spec, history=length)
        self.length = length
        self.frames: Obs = {}

    def reset(self, seeds: Tensor | None = None) -> Obs:
        self.frames = {k: self._repeat(v) for k, v in self.env.reset(seeds).items()}
        return self.frames

    def step(self, action: Tensor) -> Step:
        step = self.env.step(action)
        next_obs = {k: torch.cat([old[:, 1:], step.next_obs[k][:, None]], dim=1) for k, old in self.frames.items()}
        obs, ended = next_obs, step.ended
        if bool(ended.any()):
            obs = {k: v.clone() for k, v in next_obs.items()}
            for key, value in obs.items():
                value[ended] = self._repeat(step.obs[key][ended])
        self.frames = obs
        return step._replace(obs=obs, next_obs=next_obs)

    def request_images(self, rows: Tensor) -> None:
        """See Selective. With a history, every image is read later and must be rendered now."""
        if self.length == 1:
            request_images(self.env, rows)

    def _repeat(self, frame: Tensor) -> Tensor:
        return frame[:, None].repeat_interleave(self.length, dim=1)

    def state_dict(self) -> dict[str, Any]:
        return {"env": super().state_dict()["env"], "frames": {k: v.clone() for k, v in self.frames.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.frames = dict(state["frames"])


class BaseActionEnv(Wrapper):
    """Adds the frozen base policy's next action to the observation: `base_action` [N Da].

    At an episode's end the base action of `next_obs` comes from the *old* queue. Then queue and history are reset, and
    the base plans on `obs`. Otherwise the base acts once per step.
    """

    def __init__(self, env: VecEnv, base: Policy) -> None:
        super().__init__(env)
        feature = Feature((env.spec.action.dim,), names=env.spec.action.names)
        self.spec = replace(env.spec, observation={**env.spec.observation, BASE_ACTION: feature})
        self.executor = ChunkExecutor(base.eval(), env.num_envs, device=env.device)

    def reset(self, seeds: Tensor | None = None) -> Obs:
        obs = self.env.reset(seeds)
        self.executor.reset()
        return {**obs, BASE_ACTION: self.executor.next_action(obs, self.env.episode_seed)}

    def step(self, action: Tensor) -> Step:
        seed = self.env.episode_seed.clone()
        step = self.env.step(action)
        following = self.executor.next_action(step.next_obs, seed)
        next_obs = {**step.next_obs, BASE_ACTION: following}
        obs, ended = next_obs, step.ended
        if bool(ended.any()):
            self.executor.reset(ended)
            first = self.executor.next_action(step.obs, self.env.episode_seed, mask=ended)
            obs = {**step.obs, BASE_ACTION: torch.where(ended[:, None], first, following)}
        return step._replace(obs=obs, next_obs=next_obs)

    def request_images(self, rows: Tensor) -> None:
        """See Selective; the base reads images where it will plan."""
        request_images(self.env, rows | self.executor.needs_images)

    def state_dict(self) -> dict[str, Any]:
        return {"env": super().state_dict()["env"], "executor": self.executor.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.executor.load_state_dict(state["executor"])

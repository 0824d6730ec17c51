"""How an off-policy algorithm acts: its chunks, or single actions, through the executor that everything runs on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from robopolicy.core.types import BASE_ACTION, IMAGES, Feature, Metrics, Obs, Step, VecEnv
from robopolicy.envs.wrappers import request_images
from robopolicy.policies.base import Policy
from robopolicy.policies.chunk_executor import ChunkExecutor


class OffPolicy(Protocol):
    """An algorithm that learns from a replay. Its policy's `read` says what the replay keeps of an observation."""

    policy: Any

    def explore(self, obs: Obs, *, warmup: bool) -> Tensor:
        """Actions [B Da], or chunks [B H Da] of which Ta steps are played, in physical units, for frames [B ...]."""
        ...

    def update(self, batch: Any, *, learned_steps: int | None) -> Metrics:
        """Learn from what the replay samples; learned_steps: env steps since learning began, None before."""
        ...

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class OffPolicyCollector:
    """Plays what the algorithm explores with. Each env plans anew when its chunk is used up or its episode has ended;
    an action is a chunk of one."""

    def __init__(self, algo: OffPolicy, env: VecEnv) -> None:
        self.planner, self.env = _Planner(algo), env
        self.executor = ChunkExecutor(self.planner, env.num_envs, device=env.device)
        reads_images = any(key.startswith(IMAGES) for key in algo.policy.spec.observation)
        self.every_image = torch.full(
            (env.num_envs,), reads_images, device=env.device
        )  # [N] replays keep every frame, or none

    def next_action(self, frame: Obs, *, warmup: bool) -> Tensor:
        """[N Da] for frames [N ...], as the policy's `read` makes them."""
        self.planner.see(frame, warmup=warmup)
        stacked = {k: v if k == BASE_ACTION else v[:, None] for k, v in frame.items()}
        return self.executor.next_action(stacked, self.env.episode_seed)

    def step(self, action: Tensor) -> Step:
        """Of the env; it takes the pictures that are read."""
        request_images(self.env, self.every_image)
        return self.env.step(action)

    def next_frame(self, step: Step, following: Obs) -> Obs:
        """What the policy reads to act on next [N ...]; `following` is what it read of the true successors. Where an
        episode ended another one began, and that alone is read: encoding pictures takes longer than the rest."""
        if not bool(step.ended.any()):
            return following
        first = self.planner.algo.policy.replay_features({k: v[step.ended] for k, v in step.obs.items()})
        frame = {k: v.clone() for k, v in following.items()}
        for key, value in first.items():
            frame[key][step.ended] = value
        return frame


class _Planner(Policy):
    """The exploring algorithm as an executor knows policies; it draws its own noise."""

    def __init__(self, algo: OffPolicy) -> None:
        super().__init__()
        self.spec, self.algo, self.warmup = replace(algo.policy.spec, n_obs_steps=1, observation={}), algo, True

    def see(self, frame: Obs, *, warmup: bool) -> None:
        self.warmup = warmup
        if not self.spec.observation:
            self.spec = replace(self.spec, observation={k: Feature(tuple(v.shape[1:])) for k, v in frame.items()})

    def act(self, obs: Obs, *, noise: Tensor | None = None, deterministic: bool = False) -> Tensor:
        frame = {k: v if k == BASE_ACTION else v[:, 0] for k, v in obs.items()}
        chunk = self.algo.explore(frame, warmup=self.warmup)
        return chunk if chunk.ndim == 3 else chunk[:, None]

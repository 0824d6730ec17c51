"""Demonstrate with a trained policy plus noise, as data for world models and offline learners.

`robopolicy demos expert._target_=policy expert.checkpoint=…`
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robopolicy.config.schema import Count, Fraction
from robopolicy.core.rng import keyed_normal, keyed_uniform
from robopolicy.core.specs import PolicySpec, meant
from robopolicy.core.types import BASE_ACTION, EnvSpec, Obs, VecEnv
from robopolicy.envs.chunk_executor import ChunkExecutor
from robopolicy.policies.base import with_bases
from robopolicy.policies.find import find_policy, policy_digest
from robopolicy.policies.finetuning import resampled
from robopolicy.runs.checkpointer import load_policy

_STREAM = 9401  # level of an episode, noise of a step, noise of a block: this and the next two


class PolicyExpert:
    """Act as `checkpoint` does, plus noise in half widths of the action's limits.

    Each episode has its own noise level, uniform between 0 and `expert_noise`, so that the data covers the policy's
    behaviour and its surroundings. Half of the variance changes every step, half every `block` steps. The noise is
    keyed by (episode seed, step), as the policy's own.

    A policy that refines another runs with it, as in evaluation. `sampling`: changes of its sampler, see `finetuned`.

    `recorded_as`: the env's spec, as recordings write it. An env that does not say what its actions mean, or what the
    instruction is, takes both from the policy. So the policy can learn from its own episodes.

    Raises:
        SpecError: the policy does not fit the env.
    """

    def __init__(
        self,
        env: VecEnv,
        checkpoint: Path,
        *,
        sampling: dict[str, Any] | None = None,
        expert_noise: Fraction = 0.0,
        block: Count = 8,
        gripper: Fraction = 1.0,
    ) -> None:
        folder = find_policy(checkpoint)
        self.policy, self.policy_digest = load_policy(folder, env=env.spec), policy_digest(folder)
        if sampling:
            self.policy = resampled(self.policy, sampling, "expert.sampling")
        self.expert_noise, self.block = expert_noise, block
        self.recorded_as = _said_by(self.policy.spec, env.spec)
        action, n = self.recorded_as.action, env.num_envs
        self.half = (torch.tensor(action.high) - torch.tensor(action.low)) / 2
        if action.gripper is not None:
            self.half[action.gripper] *= gripper
        chain = with_bases(self.policy)
        self.executors = [ChunkExecutor(policy, n, device=env.device) for policy in reversed(chain)]
        self.length = max(policy.spec.n_obs_steps for policy in chain)
        self.keys = [key for key in env.spec.observation if any(key in policy.spec.observation for policy in chain)]
        self.frames: Obs = {}
        self.clock = torch.zeros(n, dtype=torch.int64)
        self.seed = torch.zeros(n, dtype=torch.int64)
        self.begins = torch.ones(n, dtype=torch.bool)

    def reset(self, mask: Tensor | None, *, episode_seed: Tensor) -> None:
        """Begin new episodes where `mask` [N] bool is true (None: everywhere)."""
        mask = torch.ones_like(self.begins) if mask is None else mask.cpu()
        for executor in self.executors:
            executor.reset(mask)
        self.seed, self.begins = episode_seed.cpu().clone(), self.begins | mask
        self.clock[mask] = 0

    def act(self, obs: Obs) -> Tensor:
        """Return [N Da] for single frames `obs`."""
        for key in self.keys:
            frame = obs[key][:, None]
            repeated = frame.repeat_interleave(self.length, dim=1)
            if key not in self.frames:
                self.frames[key] = repeated
            pushed = torch.cat([self.frames[key][:, 1:], frame], dim=1)
            begins = self.begins.view(-1, *[1] * (frame.ndim - 1))
            self.frames[key] = torch.where(begins, repeated, pushed)
        self.begins = torch.zeros_like(self.begins)
        frames = dict(self.frames)
        for executor in self.executors:
            frames[BASE_ACTION] = action = executor.next_action(frames, self.seed)
        noise = self._noise(action.shape[1])
        self.clock += 1
        return action + noise

    def _noise(self, dim: int) -> Tensor:
        level = self.expert_noise * keyed_uniform(self.seed, self.seed * 0, (1,), stream=_STREAM)
        quick = keyed_normal(self.seed, self.clock, (dim,), stream=_STREAM + 1)
        slow = keyed_normal(self.seed, self.clock // self.block, (dim,), stream=_STREAM + 2)
        return level * (quick + slow) / 2**0.5 * self.half


def _said_by(policy: PolicySpec, env: EnvSpec) -> EnvSpec:
    """Return an env's spec with the policy's meaning of actions, and its instruction, where the env has none."""
    nameless = env.tasks == (env.id,) and len(policy.tasks) == 1
    return replace(env, action=meant(env.action, policy.action), tasks=policy.tasks if nameless else env.tasks)

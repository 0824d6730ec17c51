"""Episodes of an expert, for the tests of suites."""

from __future__ import annotations

from typing import Any

import torch


def success(env: Any, seeds: torch.Tensor, *, expert_noise: float = 0.0) -> int:
    """How many of the episodes `seeds` its expert brings to success."""
    expert = env.make_expert(expert_noise=expert_noise)
    obs = env.reset(seeds)
    expert.reset(None, episode_seed=env.episode_seed)
    todo, count = set(seeds.tolist()), 0
    while todo:
        now = env.episode_seed.tolist()
        step = env.step(expert.act(obs))
        for i in step.ended.nonzero()[:, 0].tolist():
            count += now[i] in todo and bool(step.success[i])
            todo.discard(now[i])
        expert.reset(step.ended, episode_seed=env.episode_seed)
        obs = step.obs
    return count

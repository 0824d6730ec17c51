"""Relabel stored frames: with the base policy's actions, and with replay features."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from robopolicy.core.types import BASE_ACTION, TASK, Obs
from robopolicy.datasets.compatibility import number_tasks
from robopolicy.datasets.episodes import Episodes
from robopolicy.envs.chunk_executor import ChunkExecutor
from robopolicy.policies.base import Policy, use_tasks, with_bases

CHUNK = 512  # frames that are encoded at a time


@torch.no_grad()
def base_actions(episodes: Episodes, base: Policy) -> Tensor:
    """Compute the base's next action at every frame, through its own chunk queue, as BaseActionEnv does online.

    Each episode is an env of the executor; its noise is keyed by the episode's seed.

    Returns:
        [F Da] physical units.
    """
    underneath = {} if base.base is None else {BASE_ACTION: base_actions(episodes, base.base)}
    count, lengths = episodes.num_episodes, episodes.lengths
    executor = ChunkExecutor(base.eval(), count)
    result = torch.empty_like(episodes.action)
    for t in range(int(lengths.max())):
        running = t < lengths
        frames = episodes.starts[:-1] + torch.minimum(torch.full_like(lengths, t), lengths - 1)
        obs = episodes.history(frames, base.spec.n_obs_steps) | {k: v[frames] for k, v in underneath.items()}
        action = executor.next_action(obs, episodes.seeds, mask=running)
        result[frames[running]] = action[running]
    return result


@torch.no_grad()
def read_frames(episodes: Episodes, policy: Policy) -> Obs:
    """Compute the policy's replay features [F ...] of each stored frame, with `base_actions` where it has a base.

    A policy that reads instructions reads those of the dataset. On a base, `task_index` is renumbered: what is stored
    is read again beside online frames, which count in the env's tasks.

    Raises:
        SpecError: the policy knows an instruction of the dataset neither by its words nor by its number.
    """
    if policy.base is not None:
        reader = next((p for p in with_bases(policy) if TASK in p.spec.observation), policy)
        episodes = number_tasks(episodes, reader.spec)
    beside, parts = {} if policy.base is None else {BASE_ACTION: base_actions(episodes, policy.base)}, list[Obs]()
    with nullcontext() if policy.base is not None else use_tasks(policy, episodes.tasks):
        for frames in torch.arange(episodes.num_frames).split(CHUNK):
            obs = episodes.history(frames, policy.spec.n_obs_steps) | {k: v[frames] for k, v in beside.items()}
            parts.append(policy.replay_features(obs))
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}

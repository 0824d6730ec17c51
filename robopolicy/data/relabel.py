"""Base actions for stored frames: what the frozen policy would have done there."""

from __future__ import annotations

import torch
from torch import Tensor

from robopolicy.data.episodes import Episodes
from robopolicy.execute import ChunkExecutor
from robopolicy.policies.base import Policy
from robopolicy.types import BASE_ACTION


@torch.no_grad()
def base_actions(episodes: Episodes, base: Policy) -> Tensor:
    """[F Da] the base's next action at every frame, replayed through its own chunk queue.

    Each episode is an env of the executor, reset where it begins, its noise keyed by the episode's seed: exactly
    what BaseActionEnv adds online.
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

"""Compute retrieval keys of observations, and choose the episodes that a training frame may retrieve from."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from robopolicy.core.types import STATE, Obs
from robopolicy.datasets.retrieval import Memory
from robopolicy.networks.prefix import Prefix


def retrieval_key(encoder: Prefix, frame: Obs, *, columns: Tensor, thumbnail: int) -> Tensor:
    """Compute keys [F E] of normalised single frames [F ...].

    Args:
        columns: elements of `observation.state` in the key.
        thumbnail: side of a downscaled image, or the number of pooled tokens of a frozen vision tower.
    """
    parts = [frame[k][:, columns] if k == STATE else frame[k].flatten(1) for k in encoder.floats]
    for k, name in enumerate(encoder.cameras):
        if encoder.frozen:
            tokens = encoder.vision[k](frame[name]).transpose(1, 2)  # [F width n]
            parts.append(F.adaptive_avg_pool1d(tokens, thumbnail).flatten(1))
        else:
            parts.append(F.adaptive_avg_pool2d(frame[name], thumbnail).flatten(1))
    return torch.cat(parts, dim=1)


def other_episodes(memory: Memory, task: Tensor, episode: Tensor, *, count: int) -> Tensor:
    """Choose at random, for each episode, `count` others of its instruction in memory.

    Args:
        task: [F] int64 instruction of each frame, as an index into the memory's.
        episode: [F] int64 seed of each frame's episode.

    Returns:
        [F len(memory)] bool: the episodes of the memory that each frame may retrieve from; none of the same seed.
    """
    first = memory.task[memory.table[:, 0]]
    generator = torch.Generator().manual_seed(0)
    allowed = torch.zeros(len(task), len(memory), dtype=torch.bool, device=task.device)
    for number in episode.unique().tolist():
        mine = episode == number
        others = torch.isin(first, task[mine].unique()) & (memory.seed != number)
        score = torch.rand(len(memory), generator=generator).to(task.device).masked_fill(~others, 2.0)
        allowed[mine] = others & (score.argsort().argsort() < count)
    return allowed

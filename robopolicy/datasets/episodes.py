"""Hold episodes in memory for training, independent of the file format."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from robopolicy.core.rng import keyed_uniform
from robopolicy.core.types import ActionSpec, Feature, Obs

_STREAM = 9511  # of the choice of held-out episodes


@dataclass(frozen=True)
class Episodes:
    """E whole episodes as flat tensors over F frames, in order; episode e is frames starts[e]:starts[e+1].

    Frame t holds the observation *before* action t, as LeRobotDataset does; the frame after an episode's last
    action is not stored.
    """

    obs: Obs  # [F ...] single frames, images uint8
    action: Tensor  # [F Da] physical units
    reward: Tensor  # [F] float32, of action t (LeRobot: next.reward)
    terminated: Tensor  # [F] bool: the task ended with action t; see tables.read_outcomes
    success: Tensor  # [F] bool: success condition held after action t (next.success)
    starts: Tensor  # [E+1] int64
    seeds: Tensor  # [E] int64: episode seeds, or the episode index where the source has none
    observation: dict[str, Feature]
    action_spec: ActionSpec
    dt: float  # seconds per frame
    tasks: tuple[str, ...]
    driver: Tensor | None = None  # [F] int64 driver, index into tables.DRIVERS; None: not recorded
    outcomes: bool = True  # False: the source had neither rewards nor successes, those above are zeros

    @property
    def num_frames(self) -> int:
        return int(self.action.shape[0])

    @property
    def num_episodes(self) -> int:
        return int(self.starts.shape[0]) - 1

    @property
    def lengths(self) -> Tensor:
        """Return [E] int64 frames per episode."""
        return self.starts[1:] - self.starts[:-1]

    @property
    def episode_of(self) -> Tensor:
        """Return [F] int64, the episode that each frame belongs to."""
        return torch.repeat_interleave(torch.arange(self.num_episodes), self.lengths)

    def history(self, frames: Tensor, length: int) -> Obs:
        """Observation windows [B To ...] that end at `frames` [B], the first frame repeated at an episode's start."""
        first = self.starts[self.episode_of[frames]]
        index = frames[:, None] + torch.arange(1 - length, 1)
        index = torch.maximum(index, first[:, None])
        return {key: value[index] for key, value in self.obs.items()}

    def chunk(self, frames: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Action chunks [B H Da] that start at `frames` [B], the last action repeated past an episode's end.

        Returns the chunks and `action_is_pad` [B H] bool, True where an action was repeated.
        """
        last = self.starts[1:][self.episode_of[frames]] - 1
        index = frames[:, None] + torch.arange(length)
        pad = index > last[:, None]
        return self.action[torch.minimum(index, last[:, None])], pad


def take(episodes: Episodes, mask: Tensor) -> Episodes:
    """Return the episodes of `mask` [E] bool."""
    frames, lengths = torch.repeat_interleave(mask, episodes.lengths), episodes.lengths[mask]
    names = ("action", "reward", "terminated", "success")
    columns: dict[str, Any] = {k: getattr(episodes, k)[frames] for k in names}
    return replace(
        episodes,
        **columns,
        obs={k: v[frames] for k, v in episodes.obs.items()},
        starts=torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]),
        seeds=episodes.seeds[mask],
        driver=None if episodes.driver is None else episodes.driver[frames],
    )


def held_out(episodes: Episodes, fraction: float) -> Tensor:
    """Choose about `fraction` of the episodes [E] bool, by their seeds: learning leaves these out, judging reads them.

    A function of the seed: equal starts never lie on both sides, in whichever dataset they occur.
    """
    return keyed_uniform(episodes.seeds, torch.zeros_like(episodes.seeds), (1,), stream=_STREAM)[:, 0] < fraction


def succeeded(episodes: Episodes) -> Tensor:
    """Return which episodes [E] bool succeeded at any of their frames."""
    found = torch.zeros(episodes.num_episodes, dtype=torch.bool)
    found[episodes.episode_of[episodes.success]] = True
    return found


def concatenate(parts: list[Episodes]) -> Episodes:
    """Episodes of several datasets of the same features and tasks in a row.

    Who drove is known only where all say so, and outcomes only where all have them.
    """
    first = parts[0]
    lengths = torch.cat([p.lengths for p in parts])
    drivers = [p.driver for p in parts if p.driver is not None]
    names = ("action", "reward", "terminated", "success", "seeds")
    columns: dict[str, Any] = {k: torch.cat([getattr(p, k) for p in parts]) for k in names}
    return replace(
        first,
        **columns,
        obs={k: torch.cat([p.obs[k] for p in parts]) for k in first.observation if k in first.obs},
        starts=torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]),
        driver=torch.cat(drivers) if len(drivers) == len(parts) else None,
        outcomes=all(p.outcomes for p in parts),
    )

"""An expert that moves slowly, as a cautious operator does."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from robopolicy.core.errors import ConfigError
from robopolicy.core.types import ActionSpec, Obs


class Acts(Protocol):
    """An expert: reset and act, as of a Demonstrator."""

    expert_noise: float

    def reset(self, mask: Tensor | None, *, episode_seed: Tensor) -> None: ...

    def act(self, obs: Obs) -> Tensor: ...


class SlowExpert:
    """Do what `expert` does, with motion of at most `speed` times the limits of `action`; the gripper stays as it is.

    Its noise is bounded with it. An expert that counts steps gives a phase up as early as at full speed.

    Raises:
        ConfigError: speed is not in (0, 1]; the actions are absolute, where a smaller one is another place.
    """

    def __init__(self, expert: Acts, action: ActionSpec, speed: float) -> None:
        if not 0.0 < speed <= 1.0:
            raise ConfigError(f"expert.speed: must be in (0, 1], found {speed}")
        if action.reference == "absolute":
            raise ConfigError("expert.speed: the task has absolute actions, which are places. Leave it out.")
        self.expert, self.speed, self.expert_noise = expert, speed, expert.expert_noise
        share = torch.full((action.dim,), speed)
        if action.gripper is not None:
            share[action.gripper] = 1.0
        self.low, self.high = torch.tensor(action.low) * share, torch.tensor(action.high) * share

    def reset(self, mask: Tensor | None, *, episode_seed: Tensor) -> None:
        """See Demonstrator."""
        self.expert.reset(mask, episode_seed=episode_seed)

    def act(self, obs: Obs) -> Tensor:
        """Return [N Da] action, within its share of the limits."""
        return self.expert.act(obs).clamp(self.low, self.high)

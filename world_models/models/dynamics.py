"""Interface of learned dynamics: encode, step, decode and a loss. The caller gives the random numbers.

Everything that differs between an ensemble on states, a recurrent latent model and a transformer lies behind it;
success, trust and the imagined env know no more than this.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from robopolicy.core.types import STATE, TASK, EnvSpec, Feature, Metrics, Obs
from robopolicy.datasets.episodes import Episodes
from robopolicy.world_models.models.state_transform import StateTransform


class Imagined(NamedTuple):
    """One imagined step of B states."""

    latent: Tensor  # [B C]
    uncertainty: Tensor  # [B] disagreement of the members; `World.bound` is its calibrated limit


@dataclass(frozen=True)
class History:
    """B windows of S consecutive frames and their actions, from which latents are encoded."""

    obs: Obs  # [B S ...]
    action: Tensor  # [B S Da] taken at each frame; the last one leads out of the window
    fresh: Tensor  # [B S] bool: the history begins with this frame; always true for the first one of a window

    @classmethod
    def before(cls, episodes: Episodes, frames: Tensor, length: int) -> Self:
        """Return the histories of `frames` [B], S = `length`, with the frames last.

        An episode's first frame is repeated where it has none before it, and all of these are fresh.
        """
        first = episodes.starts[episodes.episode_of[frames]][:, None]
        index = torch.maximum(frames[:, None] + torch.arange(1 - length, 1), first)
        obs = {k: v[index] for k, v in episodes.obs.items() if k in episodes.observation}
        return cls(obs, episodes.action[index], index == first)

    @classmethod
    def along(cls, obs: Obs, action: Tensor, length: int) -> Self:
        """Return the histories of every frame of one episode [T ...], like `before`."""
        index = (torch.arange(len(action))[:, None] + torch.arange(1 - length, 1)).clamp_min(0)
        return cls({k: v[index] for k, v in obs.items()}, action[index], index == 0)

    @classmethod
    def first(cls, obs: Obs, action_dim: int, length: int = 1) -> Self:
        """Return histories of first frames [B ...], repeated to the length of a window."""
        repeated = {k: v[:, None].expand(-1, length, *v.shape[1:]) for k, v in obs.items()}
        rows = len(next(iter(obs.values())))
        return cls(repeated, torch.zeros(rows, length, action_dim), torch.ones(rows, length, dtype=torch.bool))

    @classmethod
    def join(cls, parts: list[Self]) -> Self:
        """Concatenate several histories."""
        obs = {k: torch.cat([p.obs[k] for p in parts]) for k in parts[0].obs}
        return cls(obs, torch.cat([p.action for p in parts]), torch.cat([p.fresh for p in parts]))

    def take(self, rows: Tensor) -> Self:
        """Return the histories of `rows` [M]."""
        return type(self)({k: v[rows] for k, v in self.obs.items()}, self.action[rows], self.fresh[rows])

    def to(self, device: torch.device | str) -> Self:
        obs = {k: v.to(device) for k, v in self.obs.items()}
        return type(self)(obs, self.action.to(device), self.fresh.to(device))

    def __len__(self) -> int:
        return len(self.action)


class Dynamics(nn.Module):
    """p(next latent | latent, action), stepped one primitive action at a time.

    `latent_dim` C · `feature_dim`: size of `features` · `unroll`: steps of a training sequence · `unroll_key`: the
    option that makes it shorter · `heads`: members that each want sequences of their own · `memory`: frames that a
    latent is worth making from.
    """

    spec: EnvSpec
    latent_dim: int
    feature_dim: int
    unroll: int
    unroll_key: str = "unroll"
    heads: int = 1
    memory: int = 1

    @classmethod
    def reads(cls, offered: Mapping[str, Feature]) -> dict[str, Feature]:
        """Return the offered features that are modelled."""
        return {k: f for k, f in offered.items() if k in (STATE, TASK)}

    def fit(self, episodes: Episodes) -> None:
        """Take the units of the data, before anything is trained."""

    def widen(self, episodes: Episodes) -> None:
        """Go on with further data: believe what it shows, in the units that the weights know."""

    @abstractmethod
    def encode(self, history: History) -> Tensor:
        """Latents [B S C] of all frames of a history."""

    @abstractmethod
    def decode(self, latent: Tensor, keys: Collection[str]) -> Obs:
        """Single frames [B ...] of latents [B C]; only what is asked for is made."""

    @abstractmethod
    def features(self, latent: Tensor) -> Tensor:
        """Return normalised features [... feature_dim] of latents [... C], as inputs of classifiers."""

    @abstractmethod
    def step(self, latent: Tensor, action: Tensor, *, episode: Tensor, draw: Tensor | None) -> Imagined:
        """Return the next latent.

        Args:
            latent: [B C]. action: [B Da] physical units, within limits.
            episode: [B] uniform number that stays the same for an episode (which member dreams it).
            draw: [B] uniform number of this step; None: the likeliest outcome.
        """

    @abstractmethod
    def loss(self, batch: dict[str, Any]) -> tuple[Tensor, Metrics]:
        """Loss of sequences {key: [E B L+1 ...], "action": [E B L Da], "valid": [E B L] bool}."""

    def outside(self, latent: Tensor) -> Tensor:
        """Return whether [B] a latent is far from the data."""
        return torch.zeros(len(latent), dtype=torch.bool, device=latent.device)

    def mixed(self, latent: Tensor, other: Tensor, swap: Tensor) -> Tensor:
        """Latents [... C] with the numbers of `other` where `swap` [... C] bool says so, each consistent in itself."""
        return torch.where(swap, other, latent)

    def rank(self, error: Tensor) -> None:
        """Take note of the members' held-out `error` [E], so that the best members imagine."""

    def member_errors(self, batch: dict[str, Any]) -> Tensor:
        """Return [E] held-out error of each member, for `rank`."""
        return torch.zeros(self.heads)


class StateDynamics(Dynamics):
    """Dynamics whose latents hold a state [Ds], in the units of a StateTransform."""

    state_transform: StateTransform

    def state(self, latent: Tensor) -> Tensor:
        """Return the state [... Ds] of latents [... C]."""
        return latent[..., : self.state_transform.size]

    def fit(self, episodes: Episodes) -> None:
        self.state_transform.fit(episodes)

    def widen(self, episodes: Episodes) -> None:
        self.state_transform.widen(episodes)

    def decode(self, latent: Tensor, keys: Collection[str]) -> Obs:
        task = torch.zeros(len(latent), dtype=torch.int64, device=latent.device)
        return {k: {STATE: self.state(latent).clone(), TASK: task}[k] for k in keys}

    def features(self, latent: Tensor) -> Tensor:
        return self.state_transform.features(self.state(latent))

    def outside(self, latent: Tensor) -> Tensor:
        return self.state_transform.outside(self.state(latent))


def unrolled_metrics(loss: Tensor, error: Tensor, valid: Tensor) -> Metrics:
    """Return the loss, and the mean of errors [E B L] at the first and at the last step, where `valid` [E B L]."""
    steps = torch.where(valid, error, 0.0).sum(dim=(0, 1)) / valid.sum(dim=(0, 1)).clamp_min(1)
    return {"nll": float(loss), "error_1": float(steps[0]), f"error_{len(steps)}": float(steps[-1])}


def by_blocks(function: Callable[..., Any], *inputs: Tensor, block: int = 64) -> tuple[Tensor, ...]:
    """Apply `function` to inputs [N ...] in blocks of equal size; it returns tensors [N ...].

    The last block is filled up with copies of its first row: so a row's result does not depend on how many there are.
    """
    rows = len(inputs[0])
    short = -rows % block
    filled = [torch.cat([x, x[:1].expand(short, *x.shape[1:])]) if short else x for x in inputs]
    done = [function(*part) for part in zip(*(x.split(block) for x in filled), strict=True)]
    return tuple(torch.cat(x)[:rows] for x in zip(*done, strict=True))

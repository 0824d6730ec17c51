"""A world whose dynamics are known exactly: a point that moves by its action."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from robopolicy.core.types import STATE, EnvSpec, Feature, Metrics, Obs
from robopolicy.datasets.episodes import Episodes
from robopolicy.world_models.envs.imagined import ImaginedEnv
from robopolicy.world_models.models.dynamics import Dynamics, History, Imagined
from robopolicy.world_models.models.world import World
from tests.fakes import POINT_ACTION

FEATURES = {STATE: Feature((2,), names=("x", "y"))}
SPEC = EnvSpec(
    id="point", observation=FEATURES, action=POINT_ACTION, tasks=("go to the origin",), dt=0.1, horizon=6, digest="p",
)  # fmt: skip


class PointDynamics(Dynamics):
    """next = state + action + `drift` · (draw > ½); uncertainty |y|; x > 9 is outside the data; x < −5 diverges."""

    def __init__(self, *, drift: float = 0.0) -> None:
        super().__init__()
        self.spec, self.latent_dim, self.feature_dim, self.unroll, self.drift = SPEC, 2, 2, 2, drift

    def encode(self, history: History) -> Tensor:
        return history.obs[STATE]

    def decode(self, latent: Tensor, keys: Collection[str]) -> Obs:
        return {k: {STATE: latent.clone()}[k] for k in keys}

    def features(self, latent: Tensor) -> Tensor:
        return latent

    def outside(self, latent: Tensor) -> Tensor:
        return latent[:, 0] > 9.0

    def step(self, latent: Tensor, action: Tensor, *, episode: Tensor, draw: Tensor | None) -> Imagined:
        shift = 0.0 if draw is None else self.drift * (draw > 0.5).float()[:, None]
        after = latent + action + shift
        return Imagined(torch.where(latent[:, :1] < -5.0, torch.nan, after), latent[:, 1].abs())

    def loss(self, batch: dict[str, Any]) -> tuple[Tensor, Metrics]:
        return batch[STATE].sum() * 0.0, {}


class NearOrigin(nn.Module):
    """Success where |x| < 0.05 after the action and at the latent before: it has lasted two steps."""

    threshold: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.window = 2
        self.register_buffer("threshold", torch.tensor(0.5))

    def frame_scores(self, features: Tensor) -> Tensor:
        near = (features[..., 0].abs() < 0.05).float()
        return torch.stack([near, near], dim=-1)

    def window_score(self, frame_scores: Tensor) -> Tensor:
        return frame_scores[:, -2:, 0].amin(-1)

    def forward(self, features: Tensor) -> Tensor:
        return self.window_score(self.frame_scores(features))


def point_world(*, bound: float = 1.0, drift: float = 0.0) -> World:
    world = World(SPEC, PointDynamics(drift=drift), NearOrigin())  # type: ignore[arg-type]
    world.bound.fill_(bound)
    return world


def point_env(
    starts: list[list[float]], num_envs: int, *, bound: float = 1.0, drift: float = 0.0, **kw: Any
) -> ImaginedEnv:
    return ImaginedEnv(point_world(bound=bound, drift=drift), at(starts), num_envs, **kw)


def at(starts: list[list[float]]) -> History:
    """Of points that have not moved yet, as a window of two has them."""
    return History.first({STATE: torch.tensor(starts).reshape(-1, 2)}, 2, 2)


def walk(lengths: list[int], *, seed: int = 0, success: list[bool] | None = None, dims: int = 2) -> Episodes:
    """Episodes of random steps of the point; state t+1 = state t + action t. Successful ones succeed at their end."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    action = 0.2 * torch.rand(total, 2, generator=generator) - 0.1
    state, at = torch.zeros(total, dims), 0
    for n in lengths:
        state[at] = torch.rand(dims, generator=generator)
        for t in range(1, n):
            state[at + t, :2] = state[at + t - 1, :2] + action[at + t - 1]
            state[at + t, 2:] = state[at + t - 1, 2:]
        at += n
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), torch.tensor(lengths).cumsum(0)])
    won = torch.zeros(total, dtype=torch.bool)
    for e, good in enumerate(success or [False] * len(lengths)):
        won[starts[e + 1] - 1] = good
    names = ("x", "y", "p", "q")[:dims]
    return Episodes(
        obs={STATE: state}, action=action, reward=won.float(), terminated=won.clone(), success=won, starts=starts,
        seeds=torch.arange(len(lengths)), observation={STATE: Feature((dims,), names=names)}, action_spec=POINT_ACTION,
        dt=0.1, tasks=("go to the origin",),
    )  # fmt: skip


def with_state(episodes: Episodes, state: torch.Tensor, names: tuple[str, ...]) -> Episodes:
    feature = Feature((state.shape[1],), names=names)
    return replace(episodes, obs={STATE: state}, observation={STATE: feature})


def relative(lengths: list[int]) -> Episodes:
    """[x, y, goal (differs per episode), goal − x, a constant]: the fourth follows from the others."""
    episodes = walk(lengths, dims=3)
    x, y, goal = episodes.obs[STATE].T
    return with_state(episodes, torch.stack([x, y, goal, goal - x, 0 * x + 7], 1), ("x", "y", "goal", "rel", "seven"))

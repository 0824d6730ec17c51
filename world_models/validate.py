"""How good a world is on episodes that it was not trained on: open-loop errors beside baselines, scores, doubt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from robopolicy.data.episodes import Episodes
from robopolicy.noise import keyed_uniform
from robopolicy.types import STATE
from world_models.world import World

HORIZONS = (1, 5, 20, 50)  # steps of the open-loop error
_STREAM, _PHASE_STREAM = 9301, 9302
Rollout = Callable[[Tensor, Tensor], Tensor]  # states [B Ds], actions [B L Da] → successors [B L Ds]


def open_loop(
    rollout: Rollout,
    episodes: Episodes,
    std: Tensor,
    *,
    horizons: tuple[int, ...] = HORIZONS,
    stride: int = 5,
    difference: Callable[[Tensor], Tensor] = lambda x: x,
) -> dict[int, dict[str, Any]]:
    """Error of states predicted k steps ahead from true ones, under the true actions.

    Every `stride`-th frame of an episode that has a frame k steps later is a start.

    Args:
        std: [Ds] deviations that errors are measured in. difference: how much differences count as (angles wrap).

    Returns:
        {k: {"windows": their number, "error": mean |error| / std over windows and numbers, "by_number": [Ds] mean
        |error| in the data's units}}; no windows, no numbers.
    """
    state = episodes.obs[STATE]
    first, last = episodes.starts[:-1], episodes.starts[1:] - 1
    frame = torch.arange(episodes.num_frames)
    begins = frame[(frame - first[episodes.episode_of]) % stride == 0]
    found: dict[int, dict[str, Any]] = {}
    for k in horizons:
        starts = begins[begins + k <= last[episodes.episode_of[begins]]]
        if not len(starts):
            found[k] = {"windows": 0, "error": None, "by_number": None}
            continue
        actions = episodes.action[starts[:, None] + torch.arange(k)]
        miss = difference(rollout(state[starts], actions)[:, -1] - state[starts + k]).abs()
        found[k] = {
            "windows": len(starts),
            "error": float((miss / std).mean()),
            "by_number": miss.mean(0).tolist(),
        }
    return found


def copy_last(state: Tensor, action: Tensor) -> Tensor:
    """Nothing ever moves."""
    return state[:, None].expand(-1, action.shape[1], -1)


def fit_linear(episodes: Episodes, *, ridge: float = 1e-6) -> Rollout:
    """s' = s + A s + B a + c by ridge regression on all transitions, in standard units."""
    state, action = episodes.obs[STATE].double(), episodes.action.double()
    within = episodes.episode_of[1:] == episodes.episode_of[:-1]
    mean, std = state.mean(0), state.std(0).clamp_min(1e-9)
    a_mean, a_std = action.mean(0), action.std(0).clamp_min(1e-9)

    def inputs(s: Tensor, a: Tensor) -> Tensor:
        return torch.cat([(s - mean) / std, (a - a_mean) / a_std, torch.ones(len(s), 1, dtype=s.dtype)], dim=1)

    x = inputs(state[:-1][within], action[:-1][within])
    y = ((state[1:] - state[:-1]) / std)[within]
    weights = torch.linalg.solve(x.T @ x + ridge * len(x) * torch.eye(x.shape[1], dtype=x.dtype), x.T @ y)

    def rollout(start: Tensor, actions: Tensor) -> Tensor:
        at, out = start.double(), []
        for k in range(actions.shape[1]):
            at = at + inputs(at, actions[:, k].double()) @ weights * std
            out.append(at)
        return torch.stack(out, dim=1).float()

    return rollout


def dream(world: World, *, likeliest: bool) -> Rollout:
    """The world's own rollout: phases drawn as in imagination, or the likeliest ones."""

    def rollout(state: Tensor, action: Tensor) -> Tensor:
        rows = torch.arange(len(state))
        latent, out = world.dynamics.encode({STATE: state[:, None]}), []
        episode = keyed_uniform(rows, torch.zeros_like(rows), (1,), stream=_STREAM)[:, 0]
        for k in range(action.shape[1]):
            draw = keyed_uniform(rows, torch.full_like(rows, k), (1,), stream=_PHASE_STREAM)[:, 0]
            latent = world.dynamics.step(latent, action[:, k], episode=episode, draw=None if likeliest else draw).latent
            out.append(world.dynamics.decode(latent)[STATE])
        return torch.stack(out, dim=1)

    return rollout


@torch.no_grad()
def scores(world: World, episodes: Episodes) -> Tensor:
    """[F] success scores of every frame and the action taken there."""
    numbers = torch.arange(episodes.num_frames)
    out = []
    for frames in numbers.split(4096):
        window = episodes.history(frames, world.success.window)[STATE]
        out.append(world.score(window, episodes.action[frames]))
    return torch.cat(out)


@torch.no_grad()
def doubts(world: World, episodes: Episodes) -> tuple[Tensor, Tensor]:
    """[F] doubt at every frame, and [F] error of the likeliest step in deviations of a state (NaN at last frames)."""
    state = episodes.obs[STATE]
    zero = torch.zeros(len(state))
    imagined = world.dynamics.step(
        world.dynamics.encode({STATE: state[:, None]}), episodes.action, episode=zero, draw=None
    )
    std = state.std(0).clamp_min(1e-9)
    error = torch.full((len(state),), torch.nan)
    follows = episodes.episode_of[1:] == episodes.episode_of[:-1]
    after = world.dynamics.decode(imagined.latent)[STATE]
    error[:-1] = torch.where(follows, ((after[:-1] - state[1:]).abs() / std).mean(1), torch.nan)
    return imagined.doubt, error


def per_episode(values: Tensor, episodes: Episodes) -> Tensor:
    """[E] highest of `values` [F] in each episode."""
    out = torch.full((episodes.num_episodes,), -torch.inf, dtype=values.dtype)
    return out.scatter_reduce(0, episodes.episode_of, values, "amax")


def succeeded(episodes: Episodes) -> Tensor:
    """[E] bool: success held at some frame."""
    return per_episode(episodes.success.float(), episodes) > 0

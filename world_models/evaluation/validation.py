"""Validate a world model on held-out episodes: open-loop errors beside baselines, success scores, uncertainty."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from robopolicy.core.rng import keyed_uniform
from robopolicy.core.types import STATE
from robopolicy.datasets.episodes import Episodes, succeeded
from robopolicy.world_models.models.dynamics import History
from robopolicy.world_models.models.success import EpisodeScores
from robopolicy.world_models.models.world import World

HORIZONS = (1, 5, 20, 50)  # steps of the open-loop error
_STREAM, _PHASE_STREAM = 9301, 9302
_SAME = 1e-6  # a smaller deviation of a number is rounding
_ROWS = 512  # histories that are encoded, and rollouts whose pictures are held, at once
# Histories [B S ...] up to a frame, actions [B L Da] from there on, and a key → what that shows after each [B L ...].
Rollout = Callable[[History, Tensor, str], Tensor]


def open_loop(
    rollout: Rollout,
    episodes: Episodes,
    missed: Callable[[Tensor, Tensor], Tensor],
    *,
    key: str = STATE,
    horizons: tuple[int, ...] = HORIZONS,
    stride: int = 5,
    memory: int = 1,
) -> dict[int, Tensor]:
    """Errors of frames predicted k steps ahead from true frames, under the true actions.

    Every `stride`-th frame of an episode that has a frame k steps later is a start.

    Args:
        missed: predicted and true frames [B ...] → errors [B ...].
        key: which feature is predicted. memory: frames up to the start that the rollout may know.

    Returns:
        {k: errors [W ...]}; W = 0 without any start.
    """
    first, last = episodes.starts[:-1], episodes.starts[1:] - 1
    frame = torch.arange(episodes.num_frames)
    begins = frame[(frame - first[episodes.episode_of]) % stride == 0]
    found = {}
    for k in horizons:
        starts, parts = begins[begins + k <= last[episodes.episode_of[begins]]], []
        for rows in starts.split(_ROWS) if len(starts) else ():
            actions = episodes.action[rows[:, None] + torch.arange(k)]
            shown = rollout(History.before(episodes, rows, memory), actions, key)[:, -1]
            parts.append(missed(shown, episodes.obs[key][rows + k]))
        found[k] = torch.cat(parts) if parts else torch.empty(0, 1)
    return found


def squared_picture_error(shown: Tensor, true: Tensor) -> Tensor:
    """Return the mean squared errors [B] of images [B 3 h w], of numbers from 0 to 1."""
    return (shown.double() - true.double()).div_(255.0).square_().mean((1, 2, 3))


def copy_last(history: History, action: Tensor, key: str) -> Tensor:
    """Predict the last frame for all steps."""
    last = history.obs[key][:, -1:]
    return last.expand(-1, action.shape[1], *last.shape[2:])


def wrapping(world: World) -> Callable[[Tensor], Tensor]:
    """Return the function that maps differences of angles [... Ds] to the nearest turn; see StateTransform.wrap."""
    transform = getattr(world.dynamics, "state_transform", None)
    return transform.wrap if transform is not None else lambda difference: difference


def fit_linear(episodes: Episodes, *, wrap: Callable[[Tensor], Tensor], ridge: float = 1e-6) -> Rollout:
    """Fit s' = s + A s + B a + c by ridge regression to all transitions, in standard units; of states alone.

    Args:
        wrap: maps angles to the nearest turn, see wrapping.
    """
    state, action = episodes.obs[STATE].double(), episodes.action.double()
    within = episodes.episode_of[1:] == episodes.episode_of[:-1]
    mean, std = state.mean(0), state.std(0).clamp_min(1e-9)
    a_mean, a_std = action.mean(0), action.std(0).clamp_min(1e-9)

    def inputs(s: Tensor, a: Tensor) -> Tensor:
        return torch.cat([(s - mean) / std, (a - a_mean) / a_std, torch.ones(len(s), 1, dtype=s.dtype)], dim=1)

    x = inputs(state[:-1][within], action[:-1][within])
    y = (wrap(state[1:] - state[:-1]) / std)[within]
    weights = torch.linalg.solve(x.T @ x + ridge * len(x) * torch.eye(x.shape[1], dtype=x.dtype), x.T @ y)

    def rollout(history: History, actions: Tensor, key: str) -> Tensor:
        at, out = history.obs[STATE][:, -1].double(), []
        for k in range(actions.shape[1]):
            at = wrap(at + inputs(at, actions[:, k].double()) @ weights * std)
            out.append(at)
        return torch.stack(out, dim=1).float()

    return rollout


def dream(world: World, *, likeliest: bool) -> Rollout:
    """Return the world's own rollout: outcomes drawn as in imagination, or the likeliest ones."""

    @torch.no_grad()
    def rollout(history: History, action: Tensor, key: str) -> Tensor:
        rows = torch.arange(len(history))
        latent, out = world.dynamics.encode(history)[:, -1], []
        episode = keyed_uniform(rows, torch.zeros_like(rows), (1,), stream=_STREAM)[:, 0]
        for k in range(action.shape[1]):
            draw = keyed_uniform(rows, torch.full_like(rows, k), (1,), stream=_PHASE_STREAM)[:, 0]
            latent = world.dynamics.step(latent, action[:, k], episode=episode, draw=None if likeliest else draw).latent
            out.append(world.dynamics.decode(latent, (key,))[key])
        return torch.stack(out, dim=1)

    return rollout


@torch.no_grad()
def scores(world: World, episodes: Episodes) -> Tensor:
    """Return [F] success scores of every frame and the action taken there."""
    out = []
    for frames in torch.arange(episodes.num_frames).split(_ROWS):
        window = world.windows(History.before(episodes, frames, world.memory))
        out.append(world.score(window, world.after(window, episodes.action[frames])))
    return torch.cat(out)


@torch.no_grad()
def success_windows(world: World, episodes: Episodes) -> Tensor:
    """Return the classifier's inputs [S W+1 F] of every frame where an action succeeded."""
    frames = episodes.success.nonzero()[:, 0]
    window = world.windows(History.before(episodes, frames, world.memory))
    return world.success_features(window, world.after(window, episodes.action[frames]))


@torch.no_grad()
def uncertainties(world: World, episodes: Episodes) -> tuple[Tensor, Tensor]:
    """Return uncertainty [F] and error [F] of the likeliest step, in deviations of the state (NaN at last frames).

    An element of the state that is constant over all frames keeps its own unit.
    """
    state, dynamics = episodes.obs[STATE], world.dynamics
    uncertainty, after = [], []
    for frames in torch.arange(episodes.num_frames).split(_ROWS):
        latent = dynamics.encode(History.before(episodes, frames, dynamics.memory))[:, -1]
        imagined = dynamics.step(latent, episodes.action[frames], episode=torch.zeros(len(frames)), draw=None)
        uncertainty.append(imagined.uncertainty)
        after.append(dynamics.decode(imagined.latent, (STATE,))[STATE])
    std = state.std(0)
    std = torch.where(std > _SAME, std, 1.0)
    error = torch.full((len(state),), torch.nan)
    follows = episodes.episode_of[1:] == episodes.episode_of[:-1]
    miss = wrapping(world)(torch.cat(after)[:-1] - state[1:]).abs()
    error[:-1] = torch.where(follows, (miss / std).mean(1), torch.nan)
    return torch.cat(uncertainty), error


def per_episode(values: Tensor, episodes: Episodes) -> Tensor:
    """Return [E] highest of `values` [F] in each episode."""
    out = torch.full((episodes.num_episodes,), -torch.inf, dtype=values.dtype)
    return out.scatter_reduce(0, episodes.episode_of, values, "amax")


def episode_scores(values: Tensor, episodes: Episodes) -> EpisodeScores:
    """Return the highest of the scores `values` [F] of each episode, before success first held and since."""
    held = episodes.success.long().cumsum(0)
    before = torch.cat([held.new_zeros(1), held])[episodes.starts[:-1]]  # [E] successes in earlier episodes
    since = held > before[episodes.episode_of]
    return EpisodeScores(
        per_episode(torch.where(since, -torch.inf, values), episodes),
        per_episode(torch.where(since, values, -torch.inf), episodes),
        succeeded(episodes),
    )

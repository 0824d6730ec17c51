"""Validate a world model on held-out episodes: open-loop errors beside baselines, success scores, uncertainty."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from robopolicy.core.rng import keyed_uniform
from robopolicy.core.types import STATE, Obs
from robopolicy.datasets.episodes import Episodes
from robopolicy.world_models.models.dynamics import History
from robopolicy.world_models.models.world import World

HORIZONS = (1, 5, 20, 50)  # steps of the open-loop error
_STREAM, _PHASE_STREAM = 9301, 9302
_ROWS = 512  # histories that are encoded, and rollouts whose pictures are held, at once
# Histories [B S ...] up to a frame, actions [B L Da] from there on, and a key → what that shows after each [B L ...].
Rollout = Callable[[History, Tensor, str], Tensor]


def open_loop(
    rollout: Rollout,
    episodes: Episodes,
    std: Tensor,
    *,
    horizons: tuple[int, ...] = HORIZONS,
    stride: int = 5,
    difference: Callable[[Tensor], Tensor] = lambda x: x,
    memory: int = 1,
) -> dict[int, dict[str, Any]]:
    """Error of states predicted k steps ahead from true frames, under the true actions.

    Every `stride`-th frame of an episode that has a frame k steps later is a start.

    Args:
        std: [Ds] deviations that errors are measured in. difference: how much differences count as (angles wrap).
        memory: frames up to the start that the rollout may know.

    Returns:
        {k: {"windows": their number, "error": mean |error| / std over windows and numbers, "by_number": [Ds] mean
        |error| in the data's units}}; no windows, no numbers.
    """
    found: dict[int, dict[str, Any]] = {}
    for k in horizons:
        missed = [
            difference(rollout(history, actions, STATE)[:, -1] - after[STATE]).abs()
            for history, actions, after in _windows(episodes, k, stride, memory, STATE)
        ]
        miss = torch.cat(missed) if missed else None
        found[k] = {
            "windows": 0 if miss is None else len(miss),
            "error": None if miss is None else float((miss / std).mean()),
            "by_number": None if miss is None else miss.mean(0).tolist(),
        }
    return found


def open_loop_pictures(
    rollout: Rollout,
    episodes: Episodes,
    key: str,
    *,
    horizons: tuple[int, ...] = HORIZONS,
    stride: int = 5,
    memory: int = 1,
) -> dict[int, dict[str, Any]]:
    """Compute `open_loop` of the images `key`.

    Returns:
        {k: {"windows", "mse": mean squared error of numbers from 0 to 1, "psnr": of that mean, in dB}}.
    """
    found: dict[int, dict[str, Any]] = {}
    for k in horizons:
        parts = [
            (rollout(history, actions, key)[:, -1].double() - after[key].double()).div_(255.0).square_().mean((1, 2, 3))
            for history, actions, after in _windows(episodes, k, stride, memory, key)
        ]
        mse = float(torch.cat(parts).mean()) if parts else None
        found[k] = {
            "windows": sum(map(len, parts)),
            "mse": mse,
            "psnr": None if mse is None else -10.0 * math.log10(max(mse, 1e-12)),
        }
    return found


def _windows(episodes: Episodes, k: int, stride: int, memory: int, key: str) -> Iterator[tuple[History, Tensor, Obs]]:
    """Histories up to the starts, the k actions from there on, and the true frames after these."""
    first, last = episodes.starts[:-1], episodes.starts[1:] - 1
    frame = torch.arange(episodes.num_frames)
    begins = frame[(frame - first[episodes.episode_of]) % stride == 0]
    starts = begins[begins + k <= last[episodes.episode_of[begins]]]
    for rows in starts.split(_ROWS) if len(starts) else ():
        actions = episodes.action[rows[:, None] + torch.arange(k)]
        yield History.before(episodes, rows, memory), actions, {key: episodes.obs[key][rows + k]}


def copy_last(history: History, action: Tensor, key: str) -> Tensor:
    """Predict the last frame for all steps."""
    last = history.obs[key][:, -1:]
    return last.expand(-1, action.shape[1], *last.shape[2:])


def fit_linear(episodes: Episodes, *, ridge: float = 1e-6) -> Rollout:
    """s' = s + A s + B a + c by ridge regression on all transitions, in standard units; of states alone."""
    state, action = episodes.obs[STATE].double(), episodes.action.double()
    within = episodes.episode_of[1:] == episodes.episode_of[:-1]
    mean, std = state.mean(0), state.std(0).clamp_min(1e-9)
    a_mean, a_std = action.mean(0), action.std(0).clamp_min(1e-9)

    def inputs(s: Tensor, a: Tensor) -> Tensor:
        return torch.cat([(s - mean) / std, (a - a_mean) / a_std, torch.ones(len(s), 1, dtype=s.dtype)], dim=1)

    x = inputs(state[:-1][within], action[:-1][within])
    y = ((state[1:] - state[:-1]) / std)[within]
    weights = torch.linalg.solve(x.T @ x + ridge * len(x) * torch.eye(x.shape[1], dtype=x.dtype), x.T @ y)

    def rollout(history: History, actions: Tensor, key: str) -> Tensor:
        at, out = history.obs[STATE][:, -1].double(), []
        for k in range(actions.shape[1]):
            at = at + inputs(at, actions[:, k].double()) @ weights * std
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
    """Return uncertainty [F] and error [F] of the likeliest step, in deviations of the state (NaN at last frames)."""
    state, dynamics = episodes.obs[STATE], world.dynamics
    uncertainty, after = [], []
    for frames in torch.arange(episodes.num_frames).split(_ROWS):
        latent = dynamics.encode(History.before(episodes, frames, dynamics.memory))[:, -1]
        imagined = dynamics.step(latent, episodes.action[frames], episode=torch.zeros(len(frames)), draw=None)
        uncertainty.append(imagined.uncertainty)
        after.append(dynamics.decode(imagined.latent, (STATE,))[STATE])
    std = state.std(0).clamp_min(1e-9)
    error = torch.full((len(state),), torch.nan)
    follows = episodes.episode_of[1:] == episodes.episode_of[:-1]
    miss = (torch.cat(after)[:-1] - state[1:]).abs()
    error[:-1] = torch.where(follows, (miss / std).mean(1), torch.nan)
    return torch.cat(uncertainty), error


def per_episode(values: Tensor, episodes: Episodes) -> Tensor:
    """Return [E] highest of `values` [F] in each episode."""
    out = torch.full((episodes.num_episodes,), -torch.inf, dtype=values.dtype)
    return out.scatter_reduce(0, episodes.episode_of, values, "amax")


def succeeded(episodes: Episodes) -> Tensor:
    """Return whether [E] success held at some frame."""
    return per_episode(episodes.success.float(), episodes) > 0

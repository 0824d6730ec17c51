"""Dynamics error of synthetic windows against the true task: guided diffusion beside rollouts of an ensemble.

    python scripts/compare_windows.py --trajectories runs/windows --ensemble runs/world --task reach --policy runs/bc \\
        --dataset data/play [--guidance 0 0.3 1 3] [--count 200] [--seed 100]

Windows begin in recorded states of episodes that neither model was trained on. An episode of the native tasks is a
function of its seed and its actions, so the true simulator is brought to such a state by its seed and the actions up to
there, and then given the actions of the window: where it comes to is the truth, not another model's opinion. Errors
are mean |difference| in deviations of the data over all numbers of the state, at 1, 5, 10 … steps, of windows that have
ended neither in truth nor in the model. Beside them: how far the window's actions are from the policy's own (root mean
square, demonstrated range ±1), and how often a success that is claimed is one. Rows as JSON, one a line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robopolicy.buffers.relabeling import base_actions
from robopolicy.config.compose import task_node
from robopolicy.config.instantiate import build
from robopolicy.core.errors import DataError
from robopolicy.core.rng import keyed_uniform
from robopolicy.core.types import STATE, VecEnv
from robopolicy.datasets.episodes import Episodes, take
from robopolicy.policies.base import Policy
from robopolicy.policies.normalizer import ACTION
from robopolicy.runs.checkpointer import load_policy
from robopolicy.world_models.models.dynamics import History
from robopolicy.world_models.models.trajectories import Trajectories, load_trajectories
from robopolicy.world_models.models.windows import Window
from robopolicy.world_models.models.world import World, load_world
from robopolicy.world_models.training.data import load_source, split
from robopolicy.world_models.training.synthetic import check_belongs, check_policy, frames_of, guide_of

STEPS = (1, 5, 10, 20)
_EPISODE_STREAM, _PHASE_STREAM, _TOLERANCE = 9411, 9412, 1e-3


class TrueWindows(NamedTuple):
    """What W windows of actions lead to in truth."""

    state: Tensor  # [W L+1 Ds]
    success: Tensor  # [W L] bool
    alive: Tensor  # [W L] bool: the episode had not ended before


def truth(env: VecEnv, episodes: Episodes, frames: Tensor, action: Tensor) -> TrueWindows:
    """From recorded `frames` [W], `action` [W L Da] in `env` of W envs.

    Raises:
        DataError: the env comes elsewhere than was recorded.
    """
    count, length = action.shape[:2]
    rows, episode = torch.arange(count), episodes.episode_of[frames]
    begins, before = episodes.starts[:-1][episode], frames - episodes.starts[:-1][episode]
    obs = env.reset(episodes.seeds[episode])
    state = torch.zeros(count, length + 1, obs[STATE].shape[-1])
    success, alive = (torch.zeros(count, length, dtype=torch.bool) for _ in range(2))
    over = torch.zeros(count, dtype=torch.bool)
    for t in range(int(before.max()) + length):
        k = t - before
        at = k.clamp(0, length - 1)
        state[k == 0, 0] = obs[STATE][k == 0]
        now = (k >= 0) & (k < length)
        step = env.step(torch.where(now[:, None], action[rows, at], episodes.action[begins + before.clamp_max(t)]))
        state[rows[now], at[now] + 1] = step.next_obs[STATE][now]
        success[rows[now], at[now]] = (step.success & ~over)[now]
        alive[rows[now], at[now]] = ~over[now]
        over |= step.ended
        obs = step.obs
    miss = (state[:, 0] - episodes.obs[STATE][frames]).abs() / episodes.obs[STATE].std(0).clamp_min(1e-6)
    if float(miss.max()) > _TOLERANCE:
        raise DataError(
            f"the task leads {float(miss.max()):.3g} deviations away from where the same actions led when recorded: "
            "it is not the task, or the version of it, that was recorded"
        )
    return TrueWindows(state, success, alive)


@torch.no_grad()
def rollout(world: World, policy: Policy, spec: Any, first: Tensor, seeds: Tensor, length: int) -> Window:
    """The policy in the world from `first` [W Ds], one step after another, as in imagination."""
    begin = History.first({STATE: first}, spec.action.dim, world.dynamics.memory)
    latents, states = [world.dynamics.encode(begin)[:, -1]], [first]
    zero = torch.zeros_like(seeds)
    member = keyed_uniform(seeds, zero, (1,), stream=_EPISODE_STREAM)[:, 0]
    low, high = torch.tensor([spec.action.low, spec.action.high])
    actions, success = [], []
    for k in range(length):
        planned = base_actions(frames_of(torch.stack(states, dim=1), spec, seeds), policy)
        actions.append(planned.view(len(first), k + 1, -1)[:, -1].clamp(low, high))
        past = [latents[max(0, k + 1 - w)] for w in range(world.success.window, 0, -1)]
        draw = keyed_uniform(seeds, zero + k, (1,), stream=_PHASE_STREAM)[:, 0]
        latents.append(world.dynamics.step(latents[-1], actions[-1], episode=member, draw=draw).latent)
        success.append(world.score(torch.stack(past, dim=1), latents[-1]) > world.success.threshold)
        states.append(world.dynamics.decode(latents[-1], (STATE,))[STATE])
    won = torch.stack(success, dim=1)
    return Window(torch.stack(states, dim=1), torch.stack(actions, dim=1), won, won.cummax(dim=1).values)


def errors(window: Window, true: TrueWindows, model: Trajectories, std: Tensor) -> dict[str, Any]:
    """Numbers of one row; see the module."""
    missed = (model.state_transform.wrap(window.state - true.state)[:, 1:].abs() / std).mean(-1)  # [W L]
    ended = window.terminated.cummax(dim=1).values
    runs = torch.cat([torch.ones_like(ended[:, :1]), ~ended[:, :-1]], dim=1)
    both = runs & true.alive & ~ended & ~true.success
    found: dict[str, Any] = {}
    for k in (k for k in STEPS if k <= missed.shape[1]):
        of = missed[both[:, k - 1], k - 1]
        found[f"error_{k}"] = float(of.mean()) if len(of) else None
        found[f"median_{k}"] = float(of.median()) if len(of) else None
        found[f"windows_{k}"] = len(of)
    claimed, held = window.success.any(1), true.success.any(1)
    return found | {"claimed": int(claimed.sum()), "true": int(held.sum()), "claimed_true": int((claimed & held).sum())}


@torch.no_grad()
def compare(
    model: Trajectories,
    world: World,
    policy: Policy,
    env: VecEnv,
    episodes: Episodes,
    *,
    guidance: list[float],
    spread: float,
    seed: int,
) -> list[dict[str, Any]]:
    """One row for every guidance, and one for the ensemble; `env` has as many envs as there shall be windows."""
    check_policy(model, policy)
    check_belongs(model, episodes, offers="the dataset")
    generator = torch.Generator().manual_seed(seed)
    free = (~episodes.success).nonzero()[:, 0]
    frames = free[torch.randperm(len(free), generator=generator)[: env.num_envs]]
    first, std = episodes.obs[STATE][frames], model.state_transform.std
    seeds = torch.randint(1 << 40, (len(frames),), generator=generator)
    noise = torch.randn(len(frames), *model.noise_shape, generator=generator)
    rows = []
    for setting in [*guidance, None]:
        began = time.perf_counter()
        if setting is None:
            window = rollout(world, policy, model.spec, first, seeds, model.length)
        else:
            guide = guide_of(policy, model, seeds, guidance=setting, spread=spread)
            window = model.sample(first, noise=noise, guide=guide)
        seconds = time.perf_counter() - began
        own = base_actions(frames_of(window.state[:, :-1], model.spec, seeds), policy).view_as(window.action)
        low, high = torch.tensor([model.spec.action.low, model.spec.action.high])
        done, planned = (model.normalizer.normalize(ACTION, x) for x in (window.action, own.clamp(low, high)))
        rows.append({
            "setting": "ensemble" if setting is None else f"guidance_{setting:g}", "windows": len(frames),
            **errors(window, truth(env, episodes, frames, window.action), model, std),
            "action_gap": float((done - planned).square().mean().sqrt()), "seconds": seconds,
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("trajectories", "ensemble", "policy", "dataset"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--task", required=True)
    parser.add_argument("--guidance", type=float, nargs="+", default=[0.0, 0.1, 0.3, 1.0, 3.0])
    parser.add_argument("--spread", type=float, default=0.1)
    parser.add_argument("--holdout", type=float, default=0.15, help="loop.holdout of both models")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=100)
    given = parser.parse_args()
    torch.set_num_threads(1)
    episodes = load_source(given.dataset, "--dataset")
    held = take(episodes, ~split(episodes, given.holdout)[0])
    env = build(task_node(given.task), "task", num_envs=given.count, seed=0)
    for row in compare(
        load_trajectories(given.trajectories), load_world(given.ensemble), load_policy(given.policy, env=env.spec), env,
        held, guidance=given.guidance, spread=given.spread, seed=given.seed,
    ):  # fmt: skip
        print(json.dumps(row))


if __name__ == "__main__":
    main()

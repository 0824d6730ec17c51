"""Real rollouts of a policy: their rows, which say how often it succeeds, and their episodes, to learn from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from robopolicy.core.types import TASK, Obs, Step, VecEnv
from robopolicy.datasets.demonstrations import EpisodeBuffer
from robopolicy.datasets.lerobot_writer import DatasetWriter
from robopolicy.envs.wrappers import Wrapper
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.rollout import evaluate
from robopolicy.policies.base import Policy


class RecordingEnv(Wrapper):
    """Keeps every episode that ends in it, by its seed; of repeats the first."""

    def __init__(self, env: VecEnv) -> None:
        super().__init__(env)
        keys = tuple(k for k in env.spec.observation if k != TASK)
        self.buffer, self.obs = EpisodeBuffer(env.spec, env.num_envs, keys), Obs()
        self.episodes: dict[int, Any] = {}

    def reset(self, seeds: Tensor | None = None) -> Obs:
        self.obs = self.env.reset(seeds)
        self.buffer.age.zero_()
        return self.obs

    def step(self, action: Tensor) -> Step:
        running = self.env.episode_seed.clone()
        step = self.env.step(action)
        for episode in self.buffer.add(self.obs, step, episode_seed=running):
            self.episodes.setdefault(episode.seed, episode)
        self.obs = step.obs
        return step


def roll_out(policy: Policy, env: VecEnv, seeds: Tensor, *, policy_id: str = "") -> tuple[EpisodeTable, list[Any]]:
    """The rows of `seeds` and their episodes, both in that order; `env` emits single frames."""
    recorded = RecordingEnv(env)
    with torch.random.fork_rng():
        rows = evaluate(policy, cast(VecEnv, recorded), seeds, policy_id=policy_id)
    return rows, [recorded.episodes[s] for s in seeds.tolist()]


def record_rollouts(policy: Policy, env: VecEnv, seeds: Tensor, out: Path, *, facts: Mapping[str, Any]) -> EpisodeTable:
    """Roll out `seeds` and write them all, failures and near misses too, as a LeRobotDataset v3 in `out`.

    Pictures too, where the env shows them: a model of pictures is refitted on these episodes.

    Episodes whose physics broke down are in the rows, as failures, and not in the dataset.

    Args:
        facts: go into `meta/robopolicy.json`. A dataset that an interrupted recording left is replaced.
    """
    rows, episodes = roll_out(policy, env, seeds)
    spec = env.spec
    with DatasetWriter(
        out, observation=spec.observation, action=spec.action, dt=spec.dt, tasks=spec.tasks, overwrite=True,
        provenance={"env": {"id": spec.id, "digest": spec.digest, "horizon": spec.horizon}, **facts},
    ) as writer:  # fmt: skip
        for e in episodes:
            if e.valid:
                writer.add_episode(
                    obs=e.obs, action=e.action, reward=e.reward, success=e.success, terminated=e.terminated,
                    task=e.task, seed=e.seed,
                )  # fmt: skip
    return rows

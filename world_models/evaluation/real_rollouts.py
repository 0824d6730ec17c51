"""Roll a policy out in an env, and return both the rows of its episodes and the episodes themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from robopolicy.core.rng import kept_generators
from robopolicy.core.types import TASK, Obs, Step, VecEnv
from robopolicy.datasets.episode_buffer import EpisodeBuffer
from robopolicy.datasets.lerobot_writer import DatasetWriter
from robopolicy.envs.wrappers import Wrapper
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.rollout import evaluate
from robopolicy.policies.base import Policy


class RecordingEnv(Wrapper):
    """Keep every finished episode by its seed; the first one of each seed."""

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
    """Return the rows and the episodes of `seeds`, in that order; `env` emits single frames."""
    recorded = RecordingEnv(env)
    with kept_generators(policy):
        rows = evaluate(policy, cast(VecEnv, recorded), seeds, policy_id=policy_id)
    return rows, [recorded.episodes[s] for s in seeds.tolist()]


def record_rollouts(policy: Policy, env: VecEnv, seeds: Tensor, out: Path, *, facts: Mapping[str, Any]) -> EpisodeTable:
    """Roll out `seeds` and write all episodes, failures too, as a LeRobotDataset v3 in `out`.

    The dataset has the env's images. Episodes with a physics fault are in the rows, as failures, not in the dataset.
    An existing dataset is replaced.

    Args:
        facts: provenance for `meta/robopolicy.json`.
    """
    rows, episodes = roll_out(policy, env, seeds)
    spec = env.spec
    with DatasetWriter(
        out, observation=spec.observation, action=spec.action, dt=spec.dt, tasks=spec.tasks, overwrite=True,
        provenance={"env": {"id": spec.id, "digest": spec.digest, "horizon": spec.horizon}, **facts},
    ) as writer:  # fmt: skip
        for episode in episodes:
            if episode.valid:
                writer.add_episode(**episode.columns())
    return rows

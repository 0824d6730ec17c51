"""Present a dataset as a `VecEnv`, so that off-policy algorithms train on it unchanged.

Actions have no effect: a step returns the recorded action as `executed`, and its recorded result. Replays store
`executed`, so they hold the recording, with the base actions of the current policy.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robopolicy.config.schema import Count
from robopolicy.core.errors import CheckpointError, ConfigError, DataError
from robopolicy.core.rng import keyed_uniform
from robopolicy.core.types import EnvSpec, Obs, Step, check_action
from robopolicy.datasets.episodes import Episodes
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.envs.episode_queue import EpisodeQueue

_STREAM = 9421


class RecordedEnv:
    """N recorded episodes at once; the seed of an episode chooses one.

    A dataset lacks the state after an episode's last action. After a terminated episode the last frame replaces it;
    elsewhere the step has no length and is not valid. An episode ends with the first frame that terminates, where a
    recorder set it on several.

    Raises:
        DataError: the dataset has neither rewards nor successes.
    """

    def __init__(self, episodes: Episodes, num_envs: int, *, seed: int = 0, name: str = "dataset") -> None:
        if not episodes.outcomes:
            raise DataError(f"{name}: has neither rewards nor successes, which learning from its transitions needs")
        self.episodes, self.num_envs, self.device = episodes, num_envs, torch.device("cpu")
        self.queue = EpisodeQueue(seed, {})
        content = episodes.action.numpy().tobytes() + episodes.starts.numpy().tobytes()
        self.spec = EnvSpec(
            id=f"recorded {name}", observation=episodes.observation, action=episodes.action_spec, tasks=episodes.tasks,
            dt=episodes.dt, horizon=int(episodes.lengths.max()), digest=hashlib.sha256(content).hexdigest()[:16],
            resumable=True,
        )  # fmt: skip
        self.episode_seed = torch.zeros(num_envs, dtype=torch.int64)
        self._frame = torch.zeros(num_envs, dtype=torch.int64)
        self.reset()

    def reset(self, seeds: Tensor | None = None) -> Obs:
        self.queue.start(seeds, num_envs=self.num_envs)
        self._begin(torch.arange(self.num_envs))
        return self.observe()

    def step(self, action: Tensor) -> Step:
        check_action(action, self.spec, self.num_envs)
        data, frame = self.episodes, self._frame
        last = frame == data.starts[1:][data.episode_of[frame]] - 1
        terminated = data.terminated[frame]
        unknown = last & ~terminated
        self._frame = torch.where(last, frame, frame + 1)
        next_obs = self.observe()
        obs = next_obs
        if bool((ended := last | terminated).any()):
            self._begin(ended.nonzero()[:, 0])
            obs = self.observe()
        return Step(
            obs=obs,
            next_obs=next_obs,
            executed=data.action[frame],
            steps=(~unknown).to(torch.int64),
            reward=torch.where(unknown, 0.0, data.reward[frame]),
            terminated=terminated,
            truncated=unknown,
            success=data.success[frame],
            valid=~unknown,
            info={},
        )

    def observe(self) -> Obs:
        """Return the observations to act on now."""
        return {k: self.episodes.obs[k][self._frame] for k in self.spec.observation}

    def state_dict(self) -> dict[str, Any]:
        return {"frame": self._frame.clone(), "episode_seed": self.episode_seed.clone(),
                **self.queue.state_dict(), "digest": self.spec.digest}  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["digest"] != self.spec.digest or len(state["frame"]) != self.num_envs:
            raise CheckpointError(
                f"{self.spec.id}: the saved state is of recording {state['digest']} with {len(state['frame'])} envs; "
                f"this one is {self.spec.digest} with {self.num_envs}. Resume with the dataset it was saved under."
            )
        self._frame, self.episode_seed = state["frame"].clone(), state["episode_seed"].clone()
        self.queue.load_state_dict(state)

    def _begin(self, rows: Tensor) -> None:
        """Start the next episodes in the queue in `rows` [M]."""
        seeds = torch.from_numpy(self.queue.next(len(rows))[0])
        unit = keyed_uniform(seeds, torch.zeros_like(seeds), (1,), stream=_STREAM)[:, 0].double()
        self.episode_seed, self._frame = self.episode_seed.clone(), self._frame.clone()
        self.episode_seed[rows] = seeds
        self._frame[rows] = self.episodes.starts[(unit * self.episodes.num_episodes).long()]


def make(dataset: Path | None = None, *, num_envs: Count, seed: int = 0) -> RecordedEnv:
    """Build the env of a dataset, without its images.

    Args:
        dataset: the recording, a LeRobotDataset v3.

    Raises:
        ConfigError: no dataset is named.
    """
    if dataset is None:
        raise ConfigError("world.dataset: needs a value. Add world.dataset=<path of a recorded dataset>")
    return RecordedEnv(load_episodes(dataset, cameras=()), num_envs, seed=seed, name=dataset.name)

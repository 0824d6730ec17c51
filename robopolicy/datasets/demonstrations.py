"""Demonstrations from a scripted expert: all envs at once, episodes chosen by seed and never by how soon they end."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from robopolicy.core.errors import ConfigError, DataError, closest
from robopolicy.core.rng import Split, episode_seeds
from robopolicy.core.types import IMAGES, TASK, EnvSpec, Obs, Step, VecEnv
from robopolicy.datasets.lerobot_writer import DatasetWriter
from robopolicy.datasets.metadata import RecordingMeta, num_episodes, recorded


class Demonstrator(Protocol):
    """Whatever can show the task, e.g. `sim.make_expert(env)`. State is per env and begins anew at `reset`."""

    def reset(self, mask: Tensor | None, *, episode_seed: Tensor) -> None:
        """Begin new episodes where `mask` [N] bool is true (None: everywhere); `episode_seed` [N] int64."""
        ...

    def act(self, obs: Obs) -> Tensor:
        """[N Da] action for single frames `obs`."""
        ...


class ProgressBar(Protocol):
    def update(self, step: int, **numbers: float) -> None: ...


class ProgressTracker(Protocol):
    def progress(self, total: int, description: str) -> AbstractContextManager[Any]: ...


@dataclass(frozen=True)
class RecordedDemos:
    """What `record_demos` did. `attempted` counts seeds up to the last one that was needed; `dropped` of them had a
    physics fault."""

    path: Path
    episodes: int
    frames: int
    attempted: int
    successes: int
    dropped: int
    seconds: float


@dataclass
class _Episode:
    """A finished episode of T frames, as `DatasetWriter.add_episode` takes it."""

    obs: Obs
    action: Tensor
    reward: Tensor
    success: Tensor
    terminated: bool
    valid: bool
    task: str
    seed: int


class EpisodeBuffer:
    """Frames of N running episodes, handed out as whole episodes where they end. Memory: N × horizon frames."""

    def __init__(self, spec: EnvSpec, num_envs: int, keys: tuple[str, ...]) -> None:
        self.spec, self.keys = spec, keys
        self.age = torch.zeros(num_envs, dtype=torch.int64)  # [N] frames so far
        self._env = torch.arange(num_envs)
        self._store: dict[str, Tensor] = {}  # [horizon N ...]

    def add(self, obs: Obs, step: Step, *, episode_seed: Tensor) -> list[_Episode]:
        """Take one step of all envs: `obs` [N ...] acted on, the answer, and the seeds [N] of these episodes.

        Steps of length 0 (an env that was idle while it reset) are no frames.
        """
        row = {**{k: obs[k] for k in self.keys}, "action": step.executed, "reward": step.reward,
               "success": step.success, "valid": step.valid}  # fmt: skip
        for key, value in row.items():
            if key not in self._store:
                self._store[key] = value.new_zeros((self.spec.horizon + 1, *value.shape))
            self._store[key][self.age, self._env] = value
        self.age += step.steps > 0
        ended = (step.ended & (self.age > 0)).nonzero()[:, 0].tolist()
        episodes = [self._take(i, bool(step.terminated[i]), int(episode_seed[i]), self._task(obs, i)) for i in ended]
        self.age[ended] = 0
        return episodes

    def _task(self, obs: Obs, env: int) -> str:
        return self.spec.tasks[int(obs[TASK][env])] if TASK in obs else self.spec.tasks[0]

    def _take(self, env: int, terminated: bool, seed: int, task: str) -> _Episode:
        part = {k: v[: int(self.age[env]), env].clone() for k, v in self._store.items()}
        obs = {k: part[k] for k in self.keys}
        valid = bool(part["valid"].all())
        return _Episode(obs, part["action"], part["reward"], part["success"], terminated, valid, task, seed)


def record_demos(
    *,
    env: VecEnv,
    expert: Demonstrator,
    episodes: int,
    out: str | Path,
    only_success: bool = True,
    cameras: tuple[str, ...] | None = None,
    seed_split: Split = "train",
    run_seed: int = 0,
    max_attempts: int | None = None,
    provenance: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    tracker: ProgressTracker | None = None,
) -> RecordedDemos:
    """Record `episodes` demonstrations of `expert` as a LeRobotDataset v3.

    What an interrupted recording of the same left in `out` is its beginning: it is recorded again, and replaced.

    A fixed list of seeds is run; kept are the first `episodes` of them, in the list's order, that succeed (end with
    success). So the dataset is a function of the seeds: the same whatever N is, and short episodes are not favoured.

    Args:
        only_success: False keeps failures too (not physics faults).
        cameras: names of the env's cameras to record; None: all that it emits.
        seed_split, run_seed: the list is `episode_seeds(seed_split, run_seed, max_attempts)`.
        max_attempts: seeds to try before giving up; None: 20 × episodes + 20.
        provenance: further facts for `meta/robopolicy.json` (expert, expert_noise …).

    Raises:
        ConfigError: an unknown camera, no episodes asked for.
        DataError: `out` exists and is not the beginning of this, or too few successes; those found are kept in `out`.
    """
    if episodes < 1:
        raise ConfigError(f"episodes must be at least 1, found {episodes}")
    keys, began = _keys(env.spec, cameras), time.monotonic()
    seeds = episode_seeds(seed_split, run_seed, max_attempts or 20 * episodes + 20)
    facts: dict[str, Any] = {
        "env": {"id": env.spec.id, "digest": env.spec.digest, "horizon": env.spec.horizon},
        "expert": f"{type(expert).__module__}.{type(expert).__qualname__}",
        "seed_split": seed_split,
        "run_seed": run_seed,
        "only_success": only_success,
    }
    if hasattr(expert, "expert_noise"):
        facts["expert_noise"] = expert.expert_noise
    facts |= provenance or {}
    observation = {k: f for k, f in env.spec.observation.items() if k in {*keys, TASK}}
    begun = _begun(Path(out), {**facts, "observation": tuple(observation)}, episodes, overwrite=overwrite)
    kept = attempted = successes = dropped = frames = 0
    with (
        DatasetWriter(
            out,
            observation=observation,
            action=env.spec.action,
            dt=env.spec.dt,
            tasks=env.spec.tasks,
            provenance={**facts, "episodes": episodes},
            overwrite=overwrite,
            begun=begun,
        ) as writer,
        tracker.progress(episodes, "demonstrations") if tracker else _NoProgress() as bar,
    ):
        for episode in _in_seed_order(env, expert, seeds, keys):
            attempted += 1
            success = episode.valid and bool(episode.success[-1])
            successes, dropped = successes + success, dropped + (not episode.valid)
            if episode.valid and (success or not only_success):
                writer.add_episode(
                    obs=episode.obs, action=episode.action, reward=episode.reward, success=episode.success,
                    terminated=episode.terminated, task=episode.task, seed=episode.seed,
                )  # fmt: skip
                kept, frames = kept + 1, frames + len(episode.action)
            writer.meta.provenance |= {"attempted": attempted, "successes": successes, "dropped": dropped}
            bar.update(kept, attempted=attempted, success_rate=successes / attempted)
            if kept == episodes:
                break
        else:
            raise DataError(
                f"the expert succeeded in {successes} of {attempted} episodes of {env.spec.id} ({dropped} physics "
                f"faults), {episodes} were asked for. Raise max_attempts, lower its expert_noise, or keep failures too "
                "with only_success=false. "
                + (
                    f"The {kept} found are in {out}; training takes them with incomplete=true."
                    if kept
                    else "None was kept, so nothing was written."
                )
            )
    return RecordedDemos(Path(out), kept, frames, attempted, successes, dropped, time.monotonic() - began)


def _begun(out: Path, facts: dict[str, Any], episodes: int, *, overwrite: bool) -> int:
    """Episodes in `out` that an interrupted recording of the same left there; 0 where there is none.

    Raises:
        DataError: an interrupted recording of something else, or of more, and it may not be overwritten.
    """
    meta = RecordingMeta.load(out) if recorded(out) == "part" else None
    if meta is None:
        return 0
    before, now = ({k: json.loads(json.dumps(v)) for k, v in found.items()} for found in
                   ({**meta.provenance, "observation": meta.observation}, facts))  # fmt: skip
    differ = [f"{k} was {before.get(k)!r}, now {v!r}" for k, v in now.items() if before.get(k) != v]
    there = num_episodes(out)
    if there > episodes:
        differ.append(f"it holds {there} episodes, now {episodes} are asked for")
    if not differ:
        return there
    if not overwrite:
        raise DataError(
            f"{out}: holds an interrupted recording of something else: {'; '.join(differ)}. Repeat the command that "
            "began it, choose another path, or replace it with overwrite=true."
        )
    return 0


def _in_seed_order(env: VecEnv, expert: Demonstrator, seeds: Tensor, keys: tuple[str, ...]) -> Any:
    """Run every seed to its end; yield episodes in the order of `seeds`, as soon as those before are done."""
    place = {seed: i for i, seed in enumerate(seeds.tolist())}
    waiting: dict[int, _Episode] = {}
    buffer, due = EpisodeBuffer(env.spec, env.num_envs, keys), 0
    # Fewer seeds than envs: the surplus envs run repeats, which are ignored.
    padded = seeds if len(seeds) >= env.num_envs else seeds.repeat(-(-env.num_envs // len(seeds)))
    obs = env.reset(padded)
    expert.reset(None, episode_seed=env.episode_seed)
    while due < len(seeds):
        running = env.episode_seed.clone()
        with torch.no_grad():
            action = expert.act(obs)
        step = env.step(action)
        for episode in buffer.add(obs, step, episode_seed=running):
            at = place.get(episode.seed, -1)
            if at >= due:  # neither done before nor a surplus episode
                waiting.setdefault(at, episode)
        if bool(step.ended.any()):
            expert.reset(step.ended, episode_seed=env.episode_seed)
        obs = step.obs
        while due in waiting:
            yield waiting.pop(due)
            due += 1


def _keys(spec: EnvSpec, cameras: tuple[str, ...] | None) -> tuple[str, ...]:
    offered = [k.removeprefix(IMAGES) for k in spec.observation if k.startswith(IMAGES)]
    for camera in cameras or ():
        if camera not in offered:
            raise ConfigError(
                f"{spec.id}: emits no pictures of camera {camera!r}. {closest(camera, offered)} "
                f"Build the env with cameras=({camera!r},)."
            )
    wanted = offered if cameras is None else cameras
    return tuple(k for k in spec.observation if k != TASK and (not k.startswith(IMAGES) or k[len(IMAGES) :] in wanted))


class _NoProgress:
    def __enter__(self) -> _NoProgress:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, step: int, **numbers: float) -> None:
        pass

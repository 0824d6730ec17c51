"""Record demonstrations of a scripted expert in all envs at once; seeds choose the episodes, not their lengths."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from robopolicy.core.errors import ConfigError, DataError, closest
from robopolicy.core.protocols import ShowsProgress
from robopolicy.core.rng import episode_seeds
from robopolicy.core.types import IMAGES, TASK, EnvSpec, Obs, VecEnv
from robopolicy.datasets.episode_buffer import EpisodeBuffer, RecordedEpisode
from robopolicy.datasets.lerobot_writer import DatasetWriter
from robopolicy.datasets.metadata import RecordingMeta, num_episodes, recorded


class TooFewEpisodes(DataError):
    """The expert succeeded too rarely. `successes` of `attempted` episodes."""

    def __init__(self, message: str, *, successes: int, attempted: int) -> None:
        super().__init__(message)
        self.successes, self.attempted = successes, attempted


class Demonstrator(Protocol):
    """Expert that demonstrates the task, e.g. `sim.make_expert(env)`. `reset` clears the state of an env."""

    def reset(self, mask: Tensor | None, *, episode_seed: Tensor) -> None:
        """Begin new episodes where `mask` [N] bool is true (None: everywhere); `episode_seed` [N] int64."""
        ...

    def act(self, obs: Obs) -> Tensor:
        """Return [N Da] action for single frames `obs`."""
        ...


@dataclass(frozen=True)
class RecordedDemos:
    """Result of `record_demos`: `attempted` counts seeds up to the last needed one, `dropped` physics faults.

    `env_steps` are those of all attempted episodes, of which `frames` were kept. `too_short` are episodes of one frame,
    which make no film.
    """

    path: Path
    episodes: int
    frames: int
    attempted: int
    successes: int
    dropped: int
    env_steps: int
    seconds: float
    too_short: int = 0


_COUNTS = ("episodes", "frames", "attempted", "successes", "dropped", "env_steps", "too_short")  # of RecordedDemos


def record_demos(
    *, env: VecEnv, expert: Demonstrator, episodes: int, out: str | Path, only_success: bool = True,
    cameras: tuple[str, ...] | None = None, run_seed: int = 0,
    max_attempts: int | None = None, provenance: Mapping[str, Any] | None = None, overwrite: bool = False,
    tracker: ShowsProgress | None = None,
) -> RecordedDemos:  # fmt: skip
    """Record `episodes` demonstrations of `expert` as a LeRobotDataset v3.

    An interrupted recording of the same command in `out` is recorded again and replaced.

    A fixed list of seeds is run. The first `episodes` of them, in the list's order, that end with success are kept. So
    the dataset depends on the seeds alone, not on N, and short episodes are not favoured.

    Args:
        only_success: False keeps failures too (not physics faults).
        cameras: names of the env's cameras to record; None: all that it emits.
        run_seed: the list is `episode_seeds("demonstrations", run_seed, max_attempts)`.
        max_attempts: seeds to try before giving up; None: 20 × episodes + 20.
        provenance: further facts for `meta/robopolicy.json` (expert, expert_noise …).

    Raises:
        ConfigError: an unknown camera, no episodes asked for.
        DataError: `out` exists and is no interrupted recording of this command; or too few successes, which are kept
            in `out`.
    """
    if episodes < 1:
        raise ConfigError(f"episodes must be at least 1, found {episodes}")
    _check_expert(expert)
    keys, began = _keys(env.spec, cameras), time.monotonic()
    spec: EnvSpec = getattr(expert, "recorded_as", env.spec)  # a policy says what the actions of a nameless env mean
    seeds = episode_seeds("demonstrations", run_seed, max_attempts or 20 * episodes + 20)
    facts = _facts(env.spec, expert, run_seed, only_success) | dict(provenance or {})
    observation = {k: f for k, f in env.spec.observation.items() if k in {*keys, TASK}}
    shortest = 2 if any(key.startswith(IMAGES) for key in observation) else 1
    begun = begun_episodes(Path(out), {**facts, "observation": tuple(observation)}, episodes, overwrite=overwrite)
    count = Counter[str]()
    with (
        DatasetWriter(
            out, observation=observation, action=spec.action, dt=spec.dt, tasks=spec.tasks,
            provenance={**facts, "episodes": episodes}, overwrite=overwrite, begun=begun,
        ) as writer,
        tracker.progress(episodes, "demonstrations") if tracker else nullcontext(_NoProgress()) as bar,
    ):  # fmt: skip
        for episode in _in_seed_order(env, expert, seeds, EpisodeBuffer(spec, env.num_envs, keys)):
            success = episode.valid and bool(episode.success[-1])
            count.update(attempted=1, successes=int(success), dropped=int(not episode.valid))
            count.update(env_steps=len(episode.action), too_short=int(len(episode.action) < shortest))
            if episode.valid and (success or not only_success) and len(episode.action) >= shortest:
                writer.add_episode(**episode.columns())
                count.update(episodes=1, frames=len(episode.action))
            writer.meta.provenance |= {k: count[k] for k in _COUNTS[2:]}
            rate = count["successes"] / count["attempted"]
            bar.update(count["episodes"], attempted=count["attempted"], success_rate=rate)
            if count["episodes"] == episodes:
                break
        else:
            raise _too_few(env.spec.id, count, episodes, Path(out))
    return RecordedDemos(Path(out), **{k: count[k] for k in _COUNTS}, seconds=time.monotonic() - began)


def _check_expert(expert: Demonstrator) -> None:
    if lacking := [name for name in ("reset", "act") if not callable(getattr(expert, name, None))]:
        raise ConfigError(
            f"expert: a {type(expert).__name__} has no {lacking[0]}(). Expected reset(mask, *, episode_seed) and "
            "act(obs) -> actions [N Da]."
        )


def _facts(spec: EnvSpec, expert: Demonstrator, run_seed: int, only_success: bool) -> dict[str, Any]:
    """Return the provenance of a recording by `expert`."""
    facts: dict[str, Any] = {
        "env": {"id": spec.id, "digest": spec.digest, "horizon": spec.horizon},
        "expert": f"{type(expert).__module__}.{type(expert).__qualname__}",
        "seed_split": "demonstrations",
        "run_seed": run_seed,
        "only_success": only_success,
    }
    own = ("expert_noise", "policy_digest", "speed")
    return facts | {key: getattr(expert, key) for key in own if hasattr(expert, key)}


def _too_few(env_id: str, count: Counter[str], episodes: int, out: Path) -> TooFewEpisodes:
    kept, whole = count["episodes"], recorded(out) == "whole"  # a dataset that was to be replaced
    where = f"beside {out}, which is as it was" if whole else f"in {out}"
    found = f"The {kept} found are {where}; training takes them with incomplete=true."
    text = (
        f"the expert succeeded in {count['successes']} of {count['attempted']} episodes of {env_id} "
        f"({count['dropped']} physics faults), {episodes} were asked for. Raise max_attempts, lower its expert_noise, "
        f"or keep failures too with only_success=false. {found if kept else 'None was kept, so nothing was written.'}"
    )
    return TooFewEpisodes(text, successes=count["successes"], attempted=count["attempted"])


def begun_episodes(out: Path, facts: dict[str, Any], episodes: int | None, *, overwrite: bool) -> int:
    """Return the episodes in `out` of an interrupted recording of the same command; 0 where there is none.

    Args:
        facts: of this command: provenance, and the keys that it observes. episodes: asked for; None: all that come.

    Raises:
        DataError: an interrupted recording of another command, or of more episodes, without `overwrite`.
    """
    meta = RecordingMeta.load(out) if recorded(out) == "part" else None
    if meta is None:
        return 0
    before, now = ({k: json.loads(json.dumps(v)) for k, v in found.items()} for found in
                   ({**meta.provenance, "observation": meta.observation}, facts))  # fmt: skip
    differ = [f"{k} was {before.get(k)!r}, now {v!r}" for k, v in now.items() if before.get(k) != v]
    there = num_episodes(out)
    if episodes is not None and there > episodes:
        differ.append(f"it holds {there} episodes, now {episodes} are asked for")
    if not differ:
        return there
    if not overwrite:
        raise DataError(
            f"{out}: holds an interrupted recording of another command: {'; '.join(differ)}. Repeat the command that "
            "began it, choose another path, or replace it with overwrite=true."
        )
    return 0


def _in_seed_order(env: VecEnv, expert: Demonstrator, seeds: Tensor, buffer: EpisodeBuffer) -> Any:
    """Run every seed to its end; yield episodes in the order of `seeds` as soon as possible."""
    place = {seed: i for i, seed in enumerate(seeds.tolist())}
    waiting: dict[int, RecordedEpisode] = {}
    due = 0
    # Fewer seeds than envs: the surplus envs run repeats, which are ignored.
    padded = seeds if len(seeds) >= env.num_envs else seeds.repeat(-(-env.num_envs // len(seeds)))
    obs = env.reset(padded)
    expert.reset(None, episode_seed=env.episode_seed)
    while due < len(seeds):
        running = env.episode_seed.clone()
        with torch.no_grad():
            action = torch.as_tensor(expert.act(obs))  # NumPy is welcome
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
    def update(self, step: int, **numbers: float) -> None:
        pass

"""Choose the real frames in which imagined episodes begin, from training or held-out data."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from robopolicy.core.errors import ConfigError
from robopolicy.datasets.compatibility import misfits
from robopolicy.datasets.episodes import Episodes, take
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.runs.run_dir import read_config
from robopolicy.world_models.models.dynamics import History
from robopolicy.world_models.models.world import World
from robopolicy.world_models.training.data import HOLDOUT, split

Part = Literal["train", "held_out", "all"]
Where = Literal["first", "any"]


def starts_of(episodes: Episodes, length: int, *, where: Where = "first") -> History:
    """Return first frames of all episodes, or all frames before a success, with `length` − 1 earlier frames.

    Raises:
        ConfigError: `where` is "any" and the successes of episodes are unknown.
    """
    if where == "first":
        return History.before(episodes, episodes.starts[:-1], length)
    if not episodes.outcomes:
        raise ConfigError(
            "world.branch, world.start_at=any: episodes begin before a success, and this dataset does not say where "
            "one is. Give one with next.success, or begin with the first frames."
        )
    count = episodes.success.long().cumsum(0)
    before = (count - episodes.success.long())[episodes.starts[:-1]]
    return History.before(episodes, (count == before[episodes.episode_of]).nonzero()[:, 0], length)


def own_starts(model: Path, world: World, part: Part, *, where: Where = "first") -> History:
    """Return starts in the data of `model`.

    Args:
        part: episodes of its training, held-out episodes, or all.

    Raises:
        ConfigError: its run does not name the data, or the data does not fit it.
    """
    parts = []
    paths, holdout = made_from(model)
    for path in paths:
        episodes = fitting(path, world)
        seen = split(episodes, holdout)[0]
        mask = {"train": seen, "held_out": ~seen, "all": torch.ones_like(seen)}[part]
        parts.append(starts_of(take(episodes, mask), world.memory, where=where))
    return History.join(parts)


def made_from(model: Path) -> tuple[list[Path], float]:
    """Return the datasets of a model, and the share of held-out episodes (`loop.holdout`)."""
    config = (read_config(run) if (run := run_of(model)) is not None else None) or {}
    loop = config.get("loop") or {}
    named = [config.get("dataset"), *(loop.get("data") or {}).values()]
    if not (paths := [Path(p) for p in named if p]):
        raise ConfigError(f"world.starts: {model} does not name its training data. Add world.starts=<dataset>.")
    return paths, HOLDOUT if (share := loop.get("holdout")) is None else float(share)


def run_of(model: Path) -> Path | None:
    """Return the run directory of a model."""
    return next((p for p in (model, *model.resolve().parents) if (p / "config.yaml").is_file()), None)


def fitting(path: Path, world: World) -> Episodes:
    """Load a dataset of the world's env.

    Raises:
        ConfigError: it is of another env; all differences are listed.
    """
    episodes = load_episodes(path, needed=world.spec.observation)
    if problems := misfits(world.spec, episodes, needs="the world model", offers=str(path)):
        raise ConfigError("world.starts does not fit the world model:\n  - " + "\n  - ".join(problems))
    return episodes

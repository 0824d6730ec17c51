"""Where imagined episodes begin: real observations, told apart by whether the model has learned from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from robopolicy.data.episodes import Episodes
from robopolicy.data.lerobot import load_episodes
from robopolicy.errors import ConfigError
from robopolicy.runs import read_config
from robopolicy.spec import check_action_spec, check_features
from robopolicy.types import Obs
from world_models.data import HOLDOUT, split, take
from world_models.world import World

Part = Literal["train", "held_out", "all"]
Where = Literal["first", "any"]


@dataclass(frozen=True)
class Starts:
    """Windows of S real observations [S W ...] that imagined episodes begin with; the last frame is the first state."""

    obs: Obs

    @classmethod
    def of(cls, episodes: Episodes, window: int, *, where: Where = "first") -> Starts:
        """First frames of all episodes, or all frames that are not yet a success, with the frames before them."""
        frames = episodes.starts[:-1] if where == "first" else (~episodes.success).nonzero()[:, 0]
        return cls({k: v for k, v in episodes.history(frames, window).items() if k in episodes.observation})

    def __len__(self) -> int:
        return len(next(iter(self.obs.values())))


def own_starts(model: Path, world: World, part: Part, *, where: Where = "first") -> Starts:
    """Starts in the data that `model` was made from.

    Args:
        part: of the episodes that it has learned from, of those that it was calibrated and judged on, or of all.

    Raises:
        ConfigError: it does not lie in a run that says what it was made from, or that data does not fit it.
    """
    parts = []
    paths, holdout = made_from(model)
    for path in paths:
        episodes = fitting(path, world)
        seen = split(episodes, holdout)[0]
        mask = {"train": seen, "held_out": ~seen, "all": torch.ones_like(seen)}[part]
        parts.append(Starts.of(take(episodes, mask), world.success.window, where=where).obs)
    return Starts({k: torch.cat([p[k] for p in parts]) for k in parts[0]})


def made_from(model: Path) -> tuple[list[Path], float]:
    """Datasets that a model was made from, and the share of their episodes that it was not shown (`loop.holdout`)."""
    config = (read_config(run) if (run := run_of(model)) is not None else None) or {}
    loop = config.get("loop") or {}
    named = [config.get("dataset"), *(loop.get("data") or {}).values()]
    if not (paths := [Path(p) for p in named if p]):
        raise ConfigError(f"world.starts: {model} does not say what it was trained on. Add world.starts=<dataset>.")
    return paths, float(loop.get("holdout", HOLDOUT))


def run_of(model: Path) -> Path | None:
    """The run directory that a model lies in."""
    return next((p for p in (model, *model.resolve().parents) if (p / "config.yaml").is_file()), None)


def fitting(path: Path, world: World) -> Episodes:
    """The episodes of a dataset that is of the world's env.

    Raises:
        ConfigError: it is not; all differences are listed.
    """
    episodes = load_episodes(path, needed=world.spec.observation)
    said = {"needs": "the world model", "offers": str(path)}
    problems = check_features(world.spec.observation, episodes.observation, **said)
    problems += check_action_spec(world.spec.action, episodes.action_spec, **said)
    if abs(world.spec.dt - episodes.dt) > 1e-6:
        problems.append(f"dt: the world model steps {world.spec.dt} s, {path} has a frame every {episodes.dt} s")
    if problems:
        raise ConfigError("world.starts does not fit the world model:\n  - " + "\n  - ".join(problems))
    return episodes

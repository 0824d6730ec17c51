"""The point of point.py, seen by a camera: a bright dot on a grey ground, 8 pixels a side."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from robopolicy.core.types import IMAGES, STATE, EnvSpec, Feature
from robopolicy.datasets.episodes import Episodes
from robopolicy.world_models.models.rssm import RSSM
from tests.world_models.point import SPEC, walk

FRONT = IMAGES + "front"
SIDE = 8  # pixels
SEEN: EnvSpec = replace(SPEC, observation={**SPEC.observation, FRONT: Feature((3, SIDE, SIDE), "uint8")})


def drawn_at(place: Tensor) -> Tensor:
    """uint8 [F 3 8 8] of points [F 2] from −0.5 to 1.5: one colour of the dot is the same everywhere."""
    axis = torch.linspace(-0.5, 1.5, SIDE)
    near = torch.exp(-((place[:, 0, None, None] - axis) ** 2 + (place[:, 1, None, None] - axis[:, None]) ** 2) / 0.1)
    return (60 + 180 * near)[:, None].expand(-1, 3, -1, -1).round().to(torch.uint8)


def filmed(lengths: list[int], *, seed: int = 0, success: list[bool] | None = None) -> Episodes:
    """As `walk`, with pictures of what happens."""
    episodes = walk(lengths, seed=seed, success=success)
    obs = {**episodes.obs, FRONT: drawn_at(episodes.obs[STATE])}
    return replace(episodes, obs=obs, observation=SEEN.observation)


def small(episodes: Episodes, **changes: object) -> RSSM:
    """A tiny model in the units of `episodes`."""
    torch.manual_seed(0)
    given = {"units": 16, "variables": 4, "classes": 4, "width": 16, "depth": 16, "unroll": 3, "memory": 3,
             "disagreement_heads": 2, "block": 16, **changes}  # fmt: skip
    model = RSSM(replace(SEEN, observation=episodes.observation), **given)  # type: ignore[arg-type]
    model.fit(episodes)
    return model

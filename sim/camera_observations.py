"""Add pictures and point clouds of cameras in the scene to the observations of native tasks."""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robopolicy.core.errors import DataError
from robopolicy.core.types import IMAGES, POINTS, Feature, Obs
from robopolicy.sim.render import Camera, DepthImage
from robopolicy.utils.point_clouds import PointCloud, Points

Array = NDArray[np.float64]
_MARGIN = 0.05  # m, by which the default box of point clouds exceeds the workspace
_ABOVE_TABLE = 0.005  # m
_log = logging.getLogger(__name__)


class CameraObservations:
    """Renders `observation.images.<cam>` uint8 [3 h w] and `observation.points.<cam>` float32 [P 3].

    Args:
        camera: renders states. workspace: of the task, m.
        cameras, image_size, points, cloud: see Simulation.
    """

    def __init__(
        self, camera: Camera, workspace: tuple[Any, Any], *, cameras: tuple[str, ...], image_size: tuple[int, int],
        points: tuple[str, ...], cloud: PointCloud | None,
    ) -> None:  # fmt: skip
        self.camera, self.cameras, self.image_size = camera, tuple(cameras), tuple(image_size)
        self.points, self.cloud = tuple(points), cloud or PointCloud()
        self._warned = set[str]()  # cameras of which an empty cloud was reported
        if self.cloud.box is None:
            self.cloud = replace(self.cloud, box=_box(*workspace))

    @property
    def features(self) -> dict[str, Feature]:
        images = {IMAGES + c: Feature((3, *self.image_size), dtype="uint8") for c in self.cameras}
        return images | {POINTS + c: Feature((self.cloud.count, 3), names=self.cloud.names) for c in self.points}

    def identity(self, quality: str) -> dict[str, Any]:
        """Return the part of the env's digest; envs without clouds and moved cameras keep their digests."""
        some = bool(self.cameras or self.points)
        found: dict[str, Any] = {
            "cameras": self.cameras,
            "image_size": self.image_size if self.cameras else None,
            "render_quality": quality if some else None,
        }
        if self.points:
            found |= {"points": self.points, "cloud": asdict(self.cloud)}
        return found | ({"camera_offset": self.camera.offset} if some and any(self.camera.offset) else {})

    def observe(
        self, states: Array, extra: Array, tools: Array, seeds: Tensor, steps: NDArray[np.int64],
        seen: NDArray[np.bool_] | None,
    ) -> Obs:  # fmt: skip
        """Render M envs.

        Args:
            states: [M 1+nq+nv] of the physics. extra: [M E] of the task. tools: [M 3] m, their centre points.
            seeds, steps: [M] of the episodes.
            seen: [M] envs that are rendered, the others are black (clouds: zero); None: all.

        Raises:
            ConfigError: no such camera.
            DataError: a cloud is empty at the first step of an episode.
        """
        obs, rows = Obs(), range(len(states)) if seen is None else seen.nonzero()[0].tolist()
        for name in self.cameras:
            taken = np.zeros((len(states), 3, *self.image_size), dtype=np.uint8)
            for k in rows:
                taken[k] = self.camera.picture(states[k], extra[k], name, *self.image_size)
            obs[IMAGES + name] = torch.from_numpy(taken)
        for name in self.points:
            clouds = np.zeros((len(states), self.cloud.count, 3), dtype=np.float32)
            for k in rows:
                image = self.camera.depth(states[k], extra[k], name, *self.cloud.size)
                self._fill(clouds[k], name, image, tools[k], int(seeds[k]), int(steps[k]))
            obs[POINTS + name] = torch.from_numpy(clouds)
        return obs

    def _fill(self, out: Points, name: str, image: DepthImage, tool: Array, seed: int, step: int) -> None:
        """Write a cloud into `out` [P 3]. Where an episode loses sight of everything, it stays zero."""
        try:
            out[:] = self.cloud(*image, tool=tool, seed=seed, step=step)
        except DataError as error:
            problem = f"{POINTS}{name}, episode seed {seed}, step {step}: {error}"
            if step == 0:  # a wrong box or pose
                raise DataError(problem) from None
            if name not in self._warned:
                self._warned.add(name)
                _log.warning("%s The cloud is zero there; further ones are not reported.", problem)


def _box(low: tuple[float, ...], high: tuple[float, ...]) -> Any:
    """Return the default box: around the workspace, without the table's top at z = 0."""
    return (low[0] - _MARGIN, low[1] - _MARGIN, _ABOVE_TABLE), tuple(v + _MARGIN for v in high)

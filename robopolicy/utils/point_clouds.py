"""Turn a depth image into a point cloud of fixed size: back-project, crop to a box, sample.

The simulator and real cameras use this code, so policies see the same clouds from both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
from numpy.typing import NDArray

from robopolicy.core.errors import ConfigError, DataError
from robopolicy.core.rng import step_seed

Array = NDArray[np.float64]
Points = NDArray[np.float32]
Corner = tuple[float, float, float]
_Side = Annotated[int, pydantic.Field(ge=1, le=4096, description="int from 1 to 4096")]  # pixels
_SAMPLING_STREAM = 9003
_UNDISTORT = 20  # iterations
_CANDIDATES = 2  # of farthest-point sampling, for each point that it returns: its time grows with them


@dataclass(frozen=True)
class Intrinsics:
    """Camera: focal lengths and principal point in pixels, as in ROS's CameraInfo. Pixel centres are whole coordinates.

    Args:
        distortion: k1, k2, p1, p2 of Brown's model, as OpenCV has them; 0: a pinhole camera.

    Raises:
        ConfigError: a number that is not finite, or a focal length that is not positive.
    """

    fx: float
    fy: float
    cx: float
    cy: float
    distortion: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        numbers = (self.fx, self.fy, self.cx, self.cy, *self.distortion)
        if not np.isfinite(numbers).all() or min(self.fx, self.fy) <= 0:
            raise ConfigError(f"intrinsics: expected finite fx, fy > 0 and cx, cy in pixels, found {numbers}")

    def rays(self, column: NDArray[np.integer], row: NDArray[np.integer]) -> tuple[Array, Array]:
        """Return x/z and y/z [M] of the points that pixels [M] show."""
        x: Array = ((column - self.cx) / self.fx).astype(np.float64, copy=False)
        y: Array = ((row - self.cy) / self.fy).astype(np.float64, copy=False)
        seen = x, y
        k1, k2, p1, p2 = self.distortion
        for _ in range(_UNDISTORT if any(self.distortion) else 0):  # fixed point, as in OpenCV's undistortPoints
            square = x * x + y * y
            radial = 1 + square * (k1 + square * k2)
            x, y = (
                (seen[0] - 2 * p1 * x * y - p2 * (square + 2 * x * x)) / radial,
                (seen[1] - p1 * (square + 2 * y * y) - 2 * p2 * x * y) / radial,
            )
        return x, y

    def pixels(self, x: Array, y: Array) -> tuple[Array, Array]:
        """Return columns and rows [M] of the pixels that show points at x/z = `x`, y/z = `y` [M]."""
        (k1, k2, p1, p2), square = self.distortion, x * x + y * y
        radial = 1 + square * (k1 + square * k2)
        bent = x * radial + 2 * p1 * x * y + p2 * (square + 2 * x * x)
        return bent * self.fx + self.cx, (y * radial + p1 * (square + 2 * y * y) + 2 * p2 * x * y) * self.fy + self.cy

    def check(self, size: tuple[int, int]) -> None:
        """Raise ConfigError where the distortion cannot be undone in all of a picture of `size` (height, width).

        Where it is strong, Brown's model folds over: one pixel stands for two rays, or for none.
        """
        grid = np.meshgrid(np.linspace(0, size[1] - 1, 16).round(), np.linspace(0, size[0] - 1, 16).round())
        column, row = (g.ravel().astype(np.int64) for g in grid)
        with np.errstate(all="ignore"):
            found = self.pixels(*self.rays(column, row))
            off = max(np.abs(found[0] - column).max(), np.abs(found[1] - row).max())
        if not off < 0.5:
            raise ConfigError(
                f"distortion: {self.distortion} cannot be undone in all of {size[1]} × {size[0]} pixels. Calibrate the "
                "camera again with boards near the picture's edge, or rectify its pictures"
            )

    @classmethod
    def of_view(cls, fovy: float, height: int, width: int) -> Intrinsics:
        """Return those of square pixels and a centred axis. `fovy`: vertical angle of view, rad."""
        focal = height / (2 * np.tan(fovy / 2))
        return cls(focal, focal, (width - 1) / 2, (height - 1) / 2)


@dataclass(frozen=True)
class PointCloud:
    """How depth images become `observation.points.<camera>` float32 [count 3] in metres.

    Args:
        box: lowest and highest corner in m; other points are dropped. None: no limits; in simulation a box around the
            task's workspace, above the table.
        count: P, number of points.
        size: (height, width) of rendered depth images.
        frame: "base", or "tool": the origin is the tool's centre point, and the axes stay those of the base. The box is
            in the frame of the base for both.
        sampling: "farthest" spreads the points evenly over surfaces. "random" draws pixels, keyed by episode and step.
    """

    box: tuple[Corner, Corner] | None = None
    count: Annotated[int, pydantic.Field(ge=1, le=65536, description="int from 1 to 65536")] = 512
    size: tuple[_Side, _Side] = (96, 96)
    frame: Literal["base", "tool"] = "base"
    sampling: Literal["farthest", "random"] = "farthest"

    def __post_init__(self) -> None:
        if self.frame not in ("base", "tool"):
            raise ConfigError(f"cloud.frame must be 'base' or 'tool', found {self.frame!r}")
        if self.sampling not in ("farthest", "random"):
            raise ConfigError(f"cloud.sampling must be 'farthest' or 'random', found {self.sampling!r}")
        if self.count < 1:
            raise ConfigError(f"cloud.count must be at least 1 point, found {self.count}")
        if self.box is not None:
            corners = np.asarray(self.box, dtype=np.float64)
            if corners.shape != (2, 3) or not np.isfinite(corners).all() or not (corners[0] < corners[1]).all():
                raise ConfigError(
                    f"cloud.box: expected a lowest and a highest corner in m, low < high, found {self.box}"
                )

    @property
    def names(self) -> tuple[str, str, str]:
        """Names of the coordinates, which tell the frames apart: a policy of one frame does not fit the other."""
        return (f"{self.frame}_x", f"{self.frame}_y", f"{self.frame}_z")

    def __call__(
        self, depth: NDArray[np.floating], camera: Intrinsics, pose: Array, *, tool: Array, seed: int, step: int,
        fewest: int = 1,
    ) -> Points:  # fmt: skip
        """Compute the cloud [count 3] of a depth image, see `depth_to_points`.

        Args:
            pose: [4 4] of the camera's optical frame in the base.
            tool: [3] m, the tool's centre point in the base.
            seed, step: of the episode and inside it; they key random sampling.
            fewest: see `sample`.

        Raises:
            DataError: fewer than `fewest` points lie in the box.
        """
        points = self.sample(depth_to_points(depth, camera, pose), seed=seed, step=step, fewest=fewest)
        return points - tool.astype(np.float32) if self.frame == "tool" else points

    def sample(self, points: Points, *, seed: int, step: int, fewest: int = 1) -> Points:
        """Crop `points` [M 3] to the box and return `count` of them; too few are repeated in their order.

        Args:
            fewest: points that must lie in the box.

        Raises:
            DataError: fewer lie there.
        """
        inside = points if self.box is None else crop(points, self.box)
        if len(inside) < fewest:
            span = (
                f"x, y, z from {_said(points.min(0))} to {_said(points.max(0))}" if len(points) else "no depth at all"
            )
            box = "of any size" if self.box is None else f"from {_said(self.box[0])} to {_said(self.box[1])}"
            few = f"has {len(inside)} points, expected {fewest} or more" if len(inside) else "is empty"
            raise DataError(
                f"point cloud {few}: the box {box} m holds {len(inside) or 'none'} of {len(points)} points; the camera "
                f"saw {span}. Widen the box (task.cloud.box), or correct the camera's pose."
            )
        if len(inside) <= self.count:
            return np.resize(inside, (self.count, 3))
        if self.sampling == "random":
            draw = np.random.default_rng(step_seed(seed, step, stream=_SAMPLING_STREAM))
            return inside[draw.choice(len(inside), self.count, replace=False)]
        most = min(len(inside), _CANDIDATES * self.count)
        return farthest_points(inside[np.linspace(0, len(inside) - 1, most).astype(np.int64)], self.count)


def depth_to_points(depth: NDArray[np.floating], camera: Intrinsics, pose: Array) -> Points:
    """Back-project a depth image: float32 [M 3] in the frame in which `pose` is given, rows of the image in order.

    Args:
        depth: [h w] m along the optical axis. Pixels that are 0, negative, NaN or infinite have no depth and no point.
        pose: [4 4] of the camera's optical frame: x right, y down, z forward.

    Raises:
        DataError: another shape, integers (millimetres of a raw image), or a pose that is not finite.
    """
    if depth.ndim != 2 or depth.dtype.kind != "f":
        raise DataError(f"depth: expected floats [h w] in m, found {depth.dtype} {list(depth.shape)}")
    if pose.shape != (4, 4) or not np.isfinite(pose).all():
        raise DataError(f"pose: expected 16 finite numbers [4 4], found {pose.tolist()}")
    with np.errstate(invalid="ignore"):
        row, column = np.nonzero((depth > 0) & np.isfinite(depth))
    z = depth[row, column].astype(np.float64)
    x, y = camera.rays(column, row)
    return (np.stack([x * z, y * z, z], axis=1) @ pose[:3, :3].T + pose[:3, 3]).astype(np.float32)


def thinned(depth: NDArray[Any], camera: Intrinsics, most: int) -> tuple[NDArray[Any], Intrinsics]:
    """Return every k-th pixel of every k-th row of a depth image, and the camera of this image.

    Pixels are left out, not averaged: the mean of two surfaces is a point on neither.

    Args:
        depth: [h w]. most: k is the largest with which `most` pixels or more are left, or 1.
    """
    k = max(1, math.isqrt(depth.size // max(most, 1)))
    first = (k - 1) // 2
    lens = replace(camera, fx=camera.fx / k, fy=camera.fy / k, cx=(camera.cx - first) / k, cy=(camera.cy - first) / k)
    return depth[first::k, first::k], lens


def crop(points: Points, box: tuple[Sequence[float], Sequence[float]]) -> Points:
    """Return those of `points` [M 3] that lie inside `box` (lowest and highest corner), or on its faces."""
    low, high = np.asarray(box, dtype=np.float64)
    return points[((points >= low) & (points <= high)).all(axis=1)]


def farthest_points(points: Points, count: int) -> Points:
    """Choose `count` of `points` [M ≥ count 3], each the farthest from those before it (Eldar et al. 1997).

    The first one is farthest from the centre, so the choice is a function of the points alone.
    """
    axes, columns = np.ascontiguousarray(points.T), points[:, :, None]  # [3 M], [M 3 1]
    chosen, distance = np.empty(count, dtype=np.int64), np.full(len(points), np.inf, dtype=np.float32)
    gap, square = np.empty_like(axes), np.empty_like(distance)
    chosen[0] = newest = np.argmax(((axes - axes.mean(axis=1, keepdims=True)) ** 2).sum(axis=0))
    for i in range(1, count):
        np.multiply(np.subtract(axes, columns[newest], out=gap), gap, out=gap)
        np.add(np.add(gap[0], gap[1], out=square), gap[2], out=square)
        np.minimum(distance, square, out=distance)
        chosen[i] = newest = distance.argmax()
    return points[chosen]


def _said(corner: Sequence[float] | NDArray[np.floating]) -> str:
    return "(" + ", ".join(f"{v:.3g}" for v in corner) + ")"

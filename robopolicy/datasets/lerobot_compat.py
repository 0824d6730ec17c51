"""Adapt LeRobot's dataset writer: its features and its image pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robopolicy.core.errors import DataError
from robopolicy.core.types import IMAGES, Feature


def check_column(key: str, value: NDArray[Any], shape: tuple[int, ...], *, where: str) -> None:
    """Raise DataError unless `value` has `shape` and its floats are finite."""
    if value.shape != shape:
        raise DataError(f"{where}: {key!r} must have shape {shape}, found {value.shape}")
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        frame = int(np.argwhere(~np.isfinite(value))[0][0])
        raise DataError(f"{where}, frame {frame}: {key!r} holds NaN or infinity")


def lerobot_feature(key: str, feature: Feature) -> dict[str, Any]:
    if key.startswith(IMAGES):
        if feature.dtype != "uint8" or len(feature.shape) != 3 or feature.shape[0] != 3:
            raise DataError(f"{key!r}: images must be uint8 (3, h, w), found {feature.dtype} {feature.shape}")
        _, h, w = feature.shape
        return {"dtype": "video", "shape": (h, w, 3), "names": ["height", "width", "channels"]}
    names = list(feature.names) if feature.names else None
    return {"dtype": feature.dtype, "shape": tuple(feature.shape) or (1,), "names": names}


@contextmanager
def skip_image_embedding() -> Iterator[None]:
    """Skip LeRobot's pass over every row that embeds image files: our images are videos.

    The pass takes three quarters of the time that LeRobot needs to save an episode (60 of 80 ms).
    """
    from lerobot.datasets import dataset_writer

    embed = getattr(dataset_writer, "embed_images", None)
    if embed is None:  # another LeRobot: just slower
        yield
        return
    dataset_writer.embed_images = lambda dataset: dataset
    try:
        yield
    finally:
        dataset_writer.embed_images = embed

"""Typed models of a LeRobot dataset's JSON files; values of other types are reported, never converted."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Positive = Annotated[float, Field(strict=True, gt=0.0, allow_inf_nan=False)]
Natural = Annotated[int, Field(strict=True, ge=0)]
_DIMENSIONS = 8  # of a feature, at most
_FIELD = re.compile(r"\{([^{}]*)\}")
_PATH_FIELDS = {"video_key", "chunk_index", "file_index"}


def _flat(names: Any) -> Any:
    """LeRobot's older style is {"motors": [...]}; of {"height": 16, …} the keys are the names."""
    if names is None:
        return None
    if isinstance(names, dict):
        groups = names.values()
        names = [n for g in groups for n in (g if isinstance(g, list) else [g])] if all(
            isinstance(g, list | str) for g in groups) else list(names)  # fmt: skip
    if not isinstance(names, list) or any(isinstance(n, list | dict) or n is None for n in names):
        raise ValueError("expected a list of names")
    return tuple(map(str, names))


class Column(BaseModel):
    """An entry of info.json's `features`: dtype, shape of a frame, and names of its elements or axes."""

    model_config = ConfigDict(frozen=True)

    dtype: Annotated[str, Field(strict=True, min_length=1)]
    shape: Annotated[tuple[Annotated[int, Field(strict=True, ge=1)], ...], Field(max_length=_DIMENSIONS)]
    names: Annotated[tuple[str, ...] | None, BeforeValidator(_flat)] = None
    info: dict[str, Any] | None = None
    video_info: dict[str, Any] | None = None

    @property
    def is_picture(self) -> bool:
        return self.dtype in ("video", "image")

    @property
    def is_text(self) -> bool:
        return self.dtype in ("string", "language")

    @property
    def is_depth(self) -> bool:
        said = {**(self.video_info or {}), **(self.info or {})}
        return bool(said.get("is_depth_map") or said.get("video.is_depth_map"))

    @property
    def is_number(self) -> bool:
        try:
            return np.dtype(self.dtype).kind in "fiub"
        except TypeError:
            return False

    @property
    def size(self) -> int:
        """Elements of a frame."""
        return math.prod(self.shape)

    def picture_size(self) -> tuple[int, int]:
        """Return (h, w) of an image, for either axis of channels.

        Raises:
            ValueError: shape or names are not those of a picture.
        """
        if len(self.shape) != 3:
            raise ValueError(f"shape: expected three axes of a picture, found {self.shape}")
        if self.names is not None and len(self.names) != 3:
            raise ValueError(f"names: expected one for each of three axes, found {self.names}")
        first, last = ((self.names or ("", "", ""))[k].startswith("channel") for k in (0, 2))
        if not first and not last:
            colours = next((c for c in (3, 1, 4) if c in (self.shape[0], self.shape[2])), None)
            if colours is None:
                raise ValueError(f"shape: expected 3 channels first or last, found {self.shape}")
            first = self.shape[0] == colours
        height, width = self.shape[1:] if first else self.shape[:2]
        return height, width


def _template(path: Any) -> Any:
    """Only plain fields may be filled in: an attribute or a path out of the dataset is none."""
    if path is None:
        return None
    if not isinstance(path, str):
        raise ValueError("expected text")
    fields = {f.partition(":")[0] for f in _FIELD.findall(path)}
    formats = {f.partition(":")[2] for f in _FIELD.findall(path)}
    if fields != _PATH_FIELDS or any(not re.fullmatch(r"(0?\d{1,2}d)?", f) for f in formats):
        raise ValueError("expected the path of LeRobot v3 with {video_key}, {chunk_index:03d} and {file_index:03d}")
    if path.startswith(("/", "~")) or "\\" in path or ".." in path.split("/"):
        raise ValueError("expected a path inside the dataset")
    return path


class Info(BaseModel):
    """`meta/info.json`, as far as it is read."""

    codebase_version: Annotated[str, Field(strict=True)]
    fps: Positive
    total_episodes: Natural
    total_frames: Natural
    video_path: Annotated[str | None, BeforeValidator(_template)] = None
    features: dict[str, Column]

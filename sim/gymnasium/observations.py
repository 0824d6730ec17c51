"""Map observations of a Gymnasium vector env to our features; images must be RGB of uint8."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict
from numpy.typing import NDArray
from torch import Tensor

from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.core.types import ENV_STATE, IMAGES, STATE, TASK, Obs

_PICTURE_SIDE = 16  # a Box with two axes of at least this length is taken for a picture
_STATE_LIMIT = 4000  # numbers of `observation.state`; the smallest usual picture, 64×64, has more
_LEROBOT = {"agent_pos": STATE, "environment_state": ENV_STATE}  # its names in an env: the feature of each
PIXELS = "pixels"  # its name of pictures: a box, or a Dict of them, whose cameras go by their own names
_SAME = 1e-3  # relative and absolute; first observations of one seed may differ by so much
_CAMERA = re.compile(r"\w+([.-]\w+)*")  # it becomes part of file names


class ObservationLayout(NamedTuple):
    """Where an observation's boxes go: `images` become features of their own, `vectors` are joined into the state.

    LeRobot's `agent_pos` and `environment_state`, where they are all vectors, stay two features.
    """

    boxes: dict[str, Box]
    images: tuple[str, ...]
    vectors: tuple[str, ...]
    bare: bool  # one Box, no Dict

    @property
    def joined(self) -> dict[str, tuple[str, ...]]:
        """The boxes of each of our features of numbers, without features of no elements."""
        apart = set(self.vectors) == set(_LEROBOT)
        found = {f: (key,) for key, f in _LEROBOT.items()} if apart else {STATE: self.vectors}
        return {f: keys for f, keys in found.items() if any(math.prod(self.boxes[k].shape) for k in keys)}

    def counted(self, feature: str) -> tuple[str, ...]:
        """Return the names of the elements of one of our features of numbers."""
        return tuple(f"{k}_{i}" for k in self.joined[feature] for i in range(math.prod(self.boxes[k].shape)))


def layout(space: gymnasium.Space, name: str) -> ObservationLayout:
    """Sort the boxes of an observation space.

    Raises:
        ConfigError: another space than Box or Dict of Box, or one whose numbers are a picture that is not RGB uint8.
    """
    boxes, count = dict[str, Any](leaves(space)), sum(1 for _ in leaves(space))
    if count > len(boxes):
        raise ConfigError(f"{name}: observation_space: two parts of {space} have one name. Rename one in a wrapper.")
    if wrong := {k: type(v).__name__ for k, v in boxes.items() if not isinstance(v, Box)}:
        others = ",".join(k for k, v in boxes.items() if k not in wrong and not is_rgb(v))
        raise ConfigError(
            f"{name}: observation_space: expected Box or Dict of Box, found {wrong}. "
            f"{f'Take the others alone: task.keys=[{others}]. ' if others else ''}In Python flatten or drop these with "
            "gymnasium.wrappers.FlattenObservation, FilterObservation or TransformObservation."
        )
    for key, box in boxes.items():
        if is_rgb(box) and not _CAMERA.fullmatch(key):
            raise ConfigError(
                f"{name}: observation_space: picture {key!r}: a camera's name becomes part of file names; expected "
                "letters, digits, '_', and '.' or '-' between them"
            )
        if not is_rgb(box) and (what := picture(box)):
            raise ConfigError(
                f"{name}: observation {key!r} is a Box {box.shape} of {box.dtype}: {what[0]}. Pictures are RGB of "
                f"uint8, [h w 3] or [3 h w]. {what[1]} If it is no picture, give it one axis: "
                "gymnasium.wrappers.ReshapeObservation."
            )
    images = tuple(k for k, v in boxes.items() if is_rgb(v))
    found = ObservationLayout(boxes, images, tuple(k for k in boxes if k not in images), not isinstance(space, Dict))
    count = sum(math.prod(boxes[k].shape) for k in found.vectors)
    if not count <= _STATE_LIMIT or not (count or images):
        raise ConfigError(
            f"{name}: observation_space: expected 1 to {_STATE_LIMIT} numbers for {STATE!r}, found {count} in "
            f"{ {k: boxes[k].shape for k in found.vectors} }. Pictures belong into boxes of their own, RGB of uint8."
        )
    return found


def leaves(tree: Any, name: str | None = None) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a nested dict of spaces or values, by name with dots; a bare one is `main`."""
    inner = tree.spaces if isinstance(tree, Dict) else tree
    if not isinstance(inner, Mapping):
        yield "main" if name is None else name, tree
        return
    for key, value in inner.items():
        yield from leaves(value, str(key) if name in (None, PIXELS) else f"{name}.{key}")


def is_rgb(box: Box) -> bool:
    """Return whether a Box is an RGB image: uint8, either [h w 3] or [3 h w]."""
    shape = box.shape
    return bool(box.dtype == np.uint8 and len(shape) == 3 and (shape[0] == 3) != (shape[2] == 3) and 0 not in shape)


def picture(box: Box) -> tuple[str, str] | None:
    """Return the problem and the fix of a Box that resembles an image but is not RGB uint8, else None."""
    shape, n = box.shape, len(box.shape)
    if n < 2 or not (box.dtype == np.uint8 or sorted(shape)[-2] >= _PICTURE_SIDE):
        return None
    if n == 2 or (n == 3 and 1 in (shape[0], shape[2])):
        return "a grey picture", (
            "Leave gymnasium.wrappers.GrayscaleObservation away, or repeat the channel with TransformObservation."
        )
    if n == 3 and 3 in (shape[0], shape[2]) and box.dtype != np.uint8:
        return "a picture of other numbers than uint8", (
            "Leave what scales it away, or convert it with gymnasium.wrappers.TransformObservation."
        )
    if n == 3 and shape[2] == 4:
        return "an RGBA picture, or four grey ones", (
            "Keep the first three channels with gymnasium.wrappers.TransformObservation, or stack none."
        )
    return "a stack of pictures, or of channels", (
        "Leave gymnasium.wrappers.FrameStackObservation away: policies stack frames themselves, n_obs_steps=…; or take "
        "three channels with TransformObservation."
    )


class Observations:
    """Convert batches of observations, and check them against the env's space."""

    def __init__(self, layout: ObservationLayout, env: str) -> None:
        self.layout, self.env = layout, env

    def __call__(self, raw: Any, count: int) -> Obs:
        """Gymnasium's batch of `count` to our features.

        Raises:
            SpecError: shapes or dtypes other than the space's, or numbers that are not finite.
        """
        if not (self.layout.bare or isinstance(raw, Mapping)):
            raise SpecError(f"{self.env}: observation: expected a dict, found {type(raw).__name__}")
        parts, found = {"main": raw} if self.layout.bare else dict(leaves(raw)), dict[str, NDArray[Any]]()
        for key, box in self.layout.boxes.items():
            if key not in parts:
                raise SpecError(f"{self.env}: observation: expected key {key!r}, found {sorted(parts)}")
            value = as_array(parts[key], f"{self.env}: observation {key!r}")
            if value.shape != (count, *box.shape):
                raise SpecError(f"{self.env}: observation {key!r}: expected {(count, *box.shape)}, found {value.shape}")
            found[key] = value
        obs: Obs = {}
        for key in self.layout.images:
            picture = found[key]
            if picture.dtype != np.uint8:
                raise SpecError(f"{self.env}: observation {key!r}: expected uint8, found {picture.dtype}")
            picture = picture if picture.shape[-3] == 3 else np.moveaxis(picture, -1, -3)
            obs[IMAGES + key] = torch.from_numpy(np.array(picture, dtype=np.uint8))
        for feature, keys in self.layout.joined.items():
            obs[feature] = self._joined(feature, {k: found[k] for k in keys}, count)
        obs[TASK] = torch.zeros(count, dtype=torch.int64)
        return obs

    def _joined(self, feature: str, vectors: dict[str, NDArray[Any]], count: int) -> Tensor:
        parts = []
        for key, value in vectors.items():
            if value.dtype.kind not in "biuf":
                raise SpecError(f"{self.env}: observation {key!r}: expected numbers, found {value.dtype}")
            with np.errstate(over="ignore"):  # found below
                parts.append(np.asarray(value, dtype=np.float32).reshape(count, -1))
        state = np.concatenate(parts, axis=1)
        if not (good := np.isfinite(state)).all():
            row, i = (int(k) for k in np.argwhere(~good)[0])
            raise SpecError(
                f"{self.env}: observation {self.layout.counted(feature)[i]!r} of env {row}: expected a finite number, "
                f"found {state[row, i]}. Where the physics failed, the env has to end the episode before it."
            )
        return torch.from_numpy(state)

    def one(self, raw: Any) -> Obs:
        """Return a batch of one, of one env's observation without batch axis."""
        if isinstance(raw, Mapping):
            parts = {k: as_array(v, f"{self.env}: observation {k!r}")[None] for k, v in leaves(raw)}
            return self(parts, 1)
        return self(as_array(raw, f"{self.env}: observation")[None], 1)


def as_array(value: Any, what: str) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged rows, or a tensor on a GPU
        raise SpecError(f"{what}: expected a NumPy array, found {type(value).__name__} ({error})") from error


def differ(a: Tensor, b: Tensor, *, picture: bool) -> bool:
    """Return whether the first observations of an episode differ, which began twice."""
    if picture:  # renderers may differ by a level
        return not float((a.float() - b.float()).abs().mean()) <= 2.0
    return not bool(torch.isclose(a, b, rtol=_SAME, atol=_SAME).all())
